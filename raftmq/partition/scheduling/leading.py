"""What a leader appends for scheduled records: deliveries, and copies carried forward.

Owns the second look: reading an original takes its time, so that whether it is pending, due, and
what of it is left out is asked in the turn in which its delivery is appended. Waits for nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.wire.batch.scheduling import copy_of, delivery_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.partition.replica import Replica
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.storage.log import PartitionLog

logger = logging.getLogger("raftmq.partition")

APPENDED_BYTES_MAX = 1 << 20  # of one append: about a millisecond


class ReadOriginal(NamedTuple):
    """A scheduled batch, as it stands in the log of the leader that has read it."""

    base_offset: int
    data: bytes


class LedLog(NamedTuple):
    """The log of a partition led here, in one leader epoch: what was read in one is not appended in
    another, as something else may stand at that offset."""

    log: PartitionLog
    leader_epoch: int

    @classmethod
    def of(cls, replica: Replica) -> LedLog | None:
        """None: it does not lead, or cannot append now."""
        leader, log = replica.leader, replica.log
        if leader is None or not log.is_sound or log.is_being_cut:
            return None
        return cls(log, leader.leader_epoch)

    def lasts(self, replica: Replica) -> bool:
        return LedLog.of(replica) == self


def deliver(
    replica: Replica, led: LedLog, originals: Iterable[ReadOriginal], *, now_ms: int
) -> int:
    """Append the deliveries of those that are still pending and due; returns their bytes.

    Raises:
        StorageError: the log is offline.
    """

    def delivery(entry: ScheduledEntry, data: bytes) -> bytearray | None:
        if entry.due_ms > now_ms:  # the clock has gone back
            led.log.schedule.give_back(entry.base_offset)
            return None
        return delivery_of(
            data, original_offset=entry.base_offset, now_ms=now_ms, left_out=entry.left_out
        )

    return _append(replica, led, originals, delivery)


def carry_forward(replica: Replica, led: LedLog, originals: Iterable[ReadOriginal]) -> int:
    """Append copies of those that are still pending; returns their bytes. Raises StorageError."""

    def copy(entry: ScheduledEntry, data: bytes) -> bytearray:
        first = entry.first_offset
        return copy_of(data, replaces=entry.base_offset, first=first, left_out=entry.left_out)

    return _append(replica, led, originals, copy)


def _append(
    replica: Replica,
    led: LedLog,
    originals: Iterable[ReadOriginal],
    make: Callable[[ScheduledEntry, bytes], bytearray | None],
) -> int:
    if not led.lasts(replica):
        return 0
    made, length = list[bytearray](), 0
    for original in originals:
        entry = led.log.schedule.pending_at(original.base_offset)
        if entry is None:  # delivered, cancelled or carried forward meanwhile
            continue
        try:
            batch = make(entry, original.data)
        except CorruptRecord as error:  # rot; the caller gives it back, for another attempt
            error.offset = original.base_offset
            logger.warning("cannot be delivered yet: log=%s reason=%s", led.log.name, error)
            led.log.doubt(error)
            continue
        if batch is not None:
            made.append(batch)
            length += len(batch)
    if made:
        replica.append_settling(made)
    return length
