"""The version of raftmq: printed by `raftmq --version`, sent by clients when they connect.

A module of its own, so that reading it imports nothing else.
"""

__version__ = "0.1.0"
