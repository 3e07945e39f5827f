"""Rotten bytes of a log written anew, as another replica holds them.

Owns what may be written where, and the proof that the disk holds it. Replicas of a log hold the
same bytes, so that a batch of the right offset and epoch stood there before: nothing of the log is
another one afterwards but what was wrong. The mark of the rot stays until all has been read back.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.epochs import UNDEFINED_EPOCH, LeaderEpochs
from raftmq.partition.storage.rot import ROT_MARK, BatchCheck, read_mark, write_mark
from raftmq.partition.storage.segment import BatchStart, scan
from raftmq.wire.batch.header import iter_batches

if TYPE_CHECKING:
    from raftmq.partition.storage.flusher import RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import Segment
    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.partition")


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


# -- what is remembered --------------------------------------------------------------------


def plan_look(log: PartitionLog, offset: int) -> BatchCheck:
    """`offset` lies in the log."""
    segment = log.segment_of(offset)
    epochs = LeaderEpochs.replay(log.epochs.entries)
    return BatchCheck(segment, offset, segment.end, epochs, log.log_start_offset)


def recall(log: PartitionLog) -> None:
    """Look again wherever rot was found before this opening. Raises StorageError."""
    if not log.files.exists(log.folder / ROT_MARK):
        return
    is_known, places = True, read_mark(log.files, log.folder)
    for begin, end_offset in places:
        offset = max(begin, log.log_start_offset)  # the log may start inside of a batch
        is_known &= _look_again(log, offset, end_offset)
    if log.rotten:
        logger.error("rot is still there: log=%s places=%d", log.name, len(log.rotten))
    if is_known and places != [(rot.offset, rot.end_offset) for rot in log.rotten]:
        write_mark(log.files, log.folder, log.rotten)


def _look_again(log: PartitionLog, offset: int, end_offset: int) -> bool:
    """Whether the disk could be read there. What rots may become unreadable: whoever reads there
    will be told, and all the rest is served.

    All of the place is looked at: its beginning may have been put right, and no more of it.
    """
    segment = log.segment_of(offset)
    end_offset = min(end_offset, segment.end_offset)
    try:
        if offset < end_offset:
            # The page cache may show what was written over it, and what a failed sync has lost.
            segment.file.evict()
        while offset < end_offset:
            rot = plan_look(log, offset).find()
            if rot is not None:
                log.note_rot(rot)
                offset = max(rot.end_offset, offset + 1)
            else:
                offset = segment.locate(offset).header.end_offset
    except (CorruptRecord, StorageError) as error:
        logger.error("rot cannot be read: log=%s offset=%d reason=%s", log.name, offset, error)
        return False
    return True
