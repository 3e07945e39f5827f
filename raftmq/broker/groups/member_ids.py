"""Ids of members, which tell who came later.

A coordinator may die before anything stands in the metadata of a static member's new process. The
next one knows the process before it: it must fence whoever came earlier than that one, and never
whoever came later, who only has to join anew. So an id begins with the slot's epoch and the time.
"""

from __future__ import annotations

import re

_ID = re.compile(r"([0-9a-f]{8,})-([0-9a-f]{16,})-", re.ASCII)
NO_EPOCH = 0  # of a slot: nobody says when the id was given
MICROSECONDS = 1_000_000


class MemberIds:
    """Of one group, under one epoch of its slot."""

    def __init__(self, slot_epoch: int) -> None:
        self._slot_epoch, self._number = slot_epoch, 0

    def new(self, name: str, now: float) -> str:
        """`name` was never used before."""
        self._number = max(self._number + 1, round(now * MICROSECONDS))
        return f"{self._slot_epoch:08x}-{self._number:016x}-{name}"


def is_later(member_id: str, other: str) -> bool:
    """Whether `member_id` was surely given out later than `other`."""
    own, its = _order(member_id), _order(other)
    return own is not None and its is not None and own > its


def _order(member_id: str) -> tuple[int, int] | None:
    match = _ID.match(member_id)
    if match is None:
        return None
    slot_epoch, number = int(match[1], 16), int(match[2], 16)
    return None if slot_epoch == NO_EPOCH else (slot_epoch, number)
