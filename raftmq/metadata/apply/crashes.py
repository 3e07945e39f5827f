"""Crashes beside committed offsets: what a crash counts for, and when its count is gone. Pure.

A member has crashed if its session has ended: it has not left. One that a rebalance has left out is
among them only if it was not heard for as long as that may take; the coordinator says which.
The count belongs to the first record of a partition that is not committed, and is gone when the
committed offset moves. Without a committed offset it belongs to the record with which the group
begins to read.

    the member handled one record alone     it counts for that record, and for nothing else
    else                                    it counts for all that the member held, up to
                                            ACCIDENTS_MAX: any record in hand may have been it

Invariant: above ACCIDENTS_MAX a count tells of crashes during which the record was the only one at
work in its process (decision 0043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.metadata.commands import NO_OFFSET, PartitionId
from raftmq.metadata.image import CommittedOffset, Crashes
from raftmq.model import ACCIDENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from immutables import Map

    from raftmq.metadata.commands import CrashedMember, StoredOffset

NO_CRASHES = Crashes()


def crashes_counted(
    offsets: Map[PartitionId, CommittedOffset], crashed: Iterable[CrashedMember], now_ms: int
) -> Map[PartitionId, CommittedOffset]:
    """The offsets of a group once these members have crashed."""
    found = offsets.mutate()
    for member in crashed:
        held = [PartitionId(part.topic_id, n) for part in member.held for n in part.numbers]
        own = [key for key in held if _alone_by(found.get(key)) == member.member_id]
        for key in own or held:
            there = found.get(key)
            count = NO_CRASHES.count if there is None else (there.crashes or NO_CRASHES).count
            after = Crashes(count + 1 if own else max(count, min(count + 1, ACCIDENTS_MAX)))
            if there is None:
                found[key] = CommittedOffset(NO_OFFSET, committed_at_ms=now_ms, crashes=after)
            else:
                found[key] = replace(there, crashes=after)
    return found.finish()


def crashes_kept(there: CommittedOffset | None, commit: StoredOffset) -> Crashes | None:
    """What stands beside an offset once it is committed where `there` was."""
    count = 0
    if there is not None and there.crashes is not None and _is_same_record(there, commit):
        count = there.crashes.count
    return Crashes(count, commit.alone_by) if count or commit.alone_by else None


def _is_same_record(there: CommittedOffset, commit: StoredOffset) -> bool:
    """Where nothing was committed, the first record that is handled alone is the one with which the
    member has begun; of any other commit nobody knows how many records lie before it.
    """
    is_first = there.offset == NO_OFFSET and bool(commit.alone_by)
    return there.offset == commit.offset or is_first


def _alone_by(there: CommittedOffset | None) -> str | None:
    return None if there is None or there.crashes is None else there.crashes.alone_by or None
