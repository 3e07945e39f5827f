"""Records that may have ended their process: handled alone, noted in the quorum, set aside. Pure.

The quorum counts crashes beside the committed offset of a partition (`metadata/apply/crashes.py`).
Below ACCIDENTS_MAX a crash is taken for an accident. From then on the worker that gets the
partition handles its first records alone, one at a time with nothing beside it, and notes in the
quorum which one it is: a crash counts for that record then, and for no other. Who is innocent, is
handled, and gone. Nothing is set aside for crashes beside others: at least one was of it alone.

A record that has raised an error waits for its next attempt, and those behind it cannot be noted:
what is noted is the committed offset. They are handled nevertheless, under its note, as long as
that can count once: a crash then counts for it, like an accident. After that they wait.
"""

from __future__ import annotations

from raftmq.model import ACCIDENTS_MAX


def is_suspect(crashes: int) -> bool:
    """Whether the first records of a partition with so many crashes are handled alone."""
    return crashes >= ACCIDENTS_MAX


def is_poison(crashes: int, attempts: int) -> bool:
    """Whether a record is set aside that so many crashes count for."""
    return crashes >= max(attempts, ACCIDENTS_MAX + 1)


def is_passed(crashes: int, attempts: int) -> bool:
    """Whether others are handled, one at a time, while the first record waits, for which so many
    crashes count: one more does not set it aside.
    """
    return crashes <= ACCIDENTS_MAX and not is_poison(ACCIDENTS_MAX + 1, attempts)


def died(crashes: int) -> str:
    """Why it is set aside."""
    return f"its process died {crashes} times"
