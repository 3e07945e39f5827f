"""Records that may have ended their process: handled alone, noted in the quorum, set aside. Pure.

The quorum counts crashes beside the committed offset of a partition (`metadata/apply/crashes.py`).
Below ACCIDENTS_MAX a crash is taken for an accident. From then on the worker that gets the
partition handles its first records alone, one at a time with nothing beside it, and notes in the
quorum which one it is: a crash counts for that record then, and for no other. Who is innocent, is
handled, and gone. Nothing is set aside for crashes beside others: at least one was of it alone.
"""

from __future__ import annotations

from raftmq.model import ACCIDENTS_MAX


def is_suspect(crashes: int) -> bool:
    """Whether the first records of a partition with so many crashes are handled alone."""
    return crashes >= ACCIDENTS_MAX


def is_poison(crashes: int, attempts: int) -> bool:
    """Whether a record is set aside that so many crashes count for."""
    return crashes >= max(attempts, ACCIDENTS_MAX + 1)


def died(crashes: int) -> str:
    """Why it is set aside."""
    return f"its process died {crashes} times"
