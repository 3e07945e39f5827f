"""Which version this is: what `raftmq --version` says, and clients when they connect."""

__version__ = "0.1.0"
