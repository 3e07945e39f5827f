"""`python -m raftmq` is `raftmq`."""

from raftmq.cli import main

if __name__ == "__main__":
    main()
