"""The version of raftmq: printed by `raftmq --version`, sent by both sides of a connection.

A module of its own, so that reading it imports nothing else.
"""

__version__ = "0.1.0"
SOFTWARE = f"raftmq {__version__}"  # what each side calls itself in Hello
