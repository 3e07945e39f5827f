"""`python -m raftmq` is `raftmq`."""

from __future__ import annotations

import sys

from raftmq.extras import MissingExtra, require_extra


def main() -> None:
    """Ctrl-C while modules are still being loaded ends it as later on."""
    try:
        require_extra("cli", "the command raftmq")
        from raftmq.cli.main import main as program
    except MissingExtra as error:
        sys.exit(f"raftmq: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    program()


if __name__ == "__main__":
    main()
