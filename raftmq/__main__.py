"""`python -m raftmq` is `raftmq`."""

from __future__ import annotations

import sys


def main() -> None:
    """Ctrl-C while modules are still being loaded ends it as later on."""
    try:
        from raftmq.cli.main import main as program
    except KeyboardInterrupt:
        sys.exit(130)
    program()


if __name__ == "__main__":
    main()
