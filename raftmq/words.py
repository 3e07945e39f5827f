"""Words of messages that depend on a value: its type with the article, a count with its noun.

Imports nothing of raftmq, so that every module may import it.
"""

from __future__ import annotations


def kind_of(value: object) -> str:
    """Its type, for "timeout is an int"."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


def counted(count: int, what: str) -> str:
    """For "1 partition", and "2 partitions"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
