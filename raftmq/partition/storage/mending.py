"""Rotten bytes of a log written anew, as another replica holds them.

Owns what may be written where, and the proof that the disk holds it. Replicas of a log hold the
same bytes, so that a batch of the right offset and epoch stood there before: nothing of the log is
another one afterwards but what was wrong. The mark of the rot stays until all has been read back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.epochs import UNDEFINED_EPOCH
from raftmq.partition.storage.rot import write_mark
from raftmq.partition.storage.segment import BatchStart, scan
from raftmq.wire.header import iter_batches

if TYPE_CHECKING:
    from raftmq.partition.storage.flusher import RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import Segment
    from raftmq.wire.header import Buffer


class Mending(NamedTuple):
    """What is written where.

    Attributes:
        begin, end: of what is written now; the next batch goes to `end`.
        is_last: behind it the log is sound again.
        changes: of the log, when this was planned.
    """

    rot: Rot
    segment: Segment
    begin: BatchStart
    end: BatchStart
    data: memoryview
    is_last: bool
    changes: int

    def write(self) -> None:
        self.segment.file.write(self.begin.position, [self.data])
        self.segment.file.sync()

    def check(self) -> None:
        """Read from the disk all that was written for this rot. Raises CorruptRecord."""
        file = self.segment.file
        file.evict()
        for _ in scan(file, self.rot.begin, self.end.position, UNDEFINED_EPOCH):
            pass


def plan_mending(log: PartitionLog, rot: Rot, begin: BatchStart, data: Buffer) -> Mending | None:
    """Have the batches in `data`, from another replica, stand from `begin` on. None: they never
    stood there, the logs have parted before.

    Raises:
        CorruptRecord: they are not sound. Its offset is that of the first one that is not.
    """
    segment, is_last = log.segment_of(rot.offset), False
    offset, position = begin
    try:
        for _, header in iter_batches(data):
            epoch = log.epochs.epoch_at(max(offset, log.log_start_offset))
            if header.base_offset != offset or header.leader_epoch != epoch:
                return None
            offset, position = header.end_offset, position + header.size
            is_behind = position >= rot.end.position and offset >= rot.end_offset
            is_last = is_behind or position >= segment.size
            if is_last:
                break
    except CorruptRecord as error:
        error.offset = offset
        raise
    if position > segment.size:
        return None
    end = BatchStart(offset, position)
    written = memoryview(data)[: position - begin.position]
    return Mending(rot, segment, begin, end, written, is_last, log.changes)


async def write_mending(log: PartitionLog, run_sync: RunSync, mending: Mending) -> None:
    """Nothing cuts the log meanwhile, and nothing else is synced.

    Raises:
        StorageError: the log has changed since this was planned, or its disk failed.
    """
    if not log.is_sound or log.changes != mending.changes:
        raise StorageError(f"{log.name} has changed meanwhile")
    try:
        await run_sync(mending.write)
    except StorageError as error:  # the sync may have been that of an append
        raise log.go_offline(error) from error


async def finish_mending(log: PartitionLog, run_sync: RunSync, last: Mending) -> None:
    """Nothing cuts the log meanwhile. Raises StorageError: it is not right yet."""
    try:
        await run_sync(last.check)
    except CorruptRecord as error:
        raise StorageError(
            f"{log.name}: the disk does not keep what is written: {error}"
        ) from error
    if not log.is_sound:
        raise StorageError(f"{log.name} is {log.offline_reason}")
    log.forget_rot(last.rot)
    await run_sync(partial(write_mark, log.files, log.folder, log.rotten))
