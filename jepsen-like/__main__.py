"""`python jepsen-like`: see `python jepsen-like --help`."""

import sys

CANNOT = 2  # 1 would mean that a promise was broken

try:
    from jepsen_like.cli import main
except (ImportError, RuntimeError) as error:  # a package is missing; or assertions are off
    sys.stderr.write(f"jepsen-like: {error}\n")
    sys.exit(CANNOT)

if __name__ == "__main__":
    sys.exit(main())
