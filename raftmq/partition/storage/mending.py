"""Repair of bit rot in place: overwrites rotten batches with those of another replica.

Owns what may be written where, and the proof that the disk holds it (decision 0027). Replicas of a
log hold the same bytes, so a batch with the offset and epoch that our table has there is the one
that stood there. Never moves the log's end, nor writes outside of the rot and the batch that ends
it. The mark of the rot stays until all has been read back from the disk.
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
    from raftmq.disk.thread import RunSync
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import Segment
    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.partition")


class Mending(NamedTuple):
    """One write into rot.

    Attributes:
        begin, end: of this write; the next batch goes to `end`.
        is_last: the log is sound behind it.
        changes: `PartitionLog.changes` when this was planned.
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
        file.evict()  # or the page cache would answer
        for _ in scan(file, self.rot.begin, self.end.position, UNDEFINED_EPOCH):
            pass


def plan_mending(log: PartitionLog, rot: Rot, begin: BatchStart, data: Buffer) -> Mending | None:
    """Plan to write the batches in `data`, from another replica, from `begin` on. None: they never
    stood there, as the logs diverge before.

    Raises:
        CorruptRecord: they are not sound; with the offset of the first one that is not.
    """
    segment, is_last = log.segment_of(rot.offset), False
    offset, position = begin
    try:
        for _, header in iter_batches(data):
            epoch = log.epochs.epoch_at(max(offset, log.log_start_offset))
            # The leader's log is another one there.
            if header.base_offset != offset or header.leader_epoch != epoch:
                return None
            offset, position = header.end_offset, position + header.size
            is_behind = position >= rot.end.position and offset >= rot.end_offset
            is_last = is_behind or position >= segment.size
            if is_last:
                break  # what follows is sound here already
    except CorruptRecord as error:
        error.offset = offset  # for a report to the leader that sent it
        raise
    if position > segment.size:  # the original batches fit exactly, so these are others
        return None
    end = BatchStart(offset, position)
    written = memoryview(data)[: position - begin.position]
    return Mending(rot, segment, begin, end, written, is_last, log.changes)


async def write_mending(log: PartitionLog, run_sync: RunSync, mending: Mending) -> None:
    """The caller keeps cuts and flushes away meanwhile.

    Raises:
        StorageError: the log has changed since this was planned, or its disk failed.
    """
    # The planned bytes may belong to another place now.
    if not log.is_sound or log.changes != mending.changes:
        raise StorageError(f"{log.name} has changed meanwhile")
    try:
        await run_sync(mending.write)
    except StorageError as error:  # the failed sync may have covered an append (decision 0002)
        raise log.go_offline(error) from error


async def finish_mending(log: PartitionLog, run_sync: RunSync, last: Mending) -> None:
    """Read the rot back and forget it. The caller keeps cuts away. Raises StorageError: it is not
    repaired yet."""
    try:
        await run_sync(last.check)  # waits for the disk to show what it holds
    except CorruptRecord as error:
        raise StorageError(
            f"{log.name}: the disk does not keep what is written: {error}"
        ) from error
    if not log.is_sound:  # it failed during the read
        raise StorageError(f"{log.name} is {log.offline_reason}")
    log.forget_rot(last.rot)
    # Until the mark is replaced: a crash before leaves it, and the next opening checks again.
    await run_sync(partial(write_mark, log.files, log.folder, log.rotten))


# -- the mark at an opening ----------------------------------------------------------------


def plan_look(log: PartitionLog, offset: int) -> BatchCheck:
    """A check of the batch at `offset`, which lies in the log."""
    segment = log.segment_of(offset)
    epochs = LeaderEpochs.replay(log.epochs.entries)
    return BatchCheck(segment, offset, segment.end, epochs, log.log_start_offset)


def recall(log: PartitionLog) -> None:
    """Check all places again where rot was found before this opening. Raises StorageError."""
    if not log.files.exists(log.folder / ROT_MARK):  # the usual case: no rot was ever found
        return
    is_known, places = True, read_mark(log.files, log.folder)
    for begin, end_offset in places:
        offset = max(begin, log.log_start_offset)  # the log may start inside a batch
        is_known &= _check_again(log, offset, end_offset)
    if log.rotten:
        logger.error("rot is still there: log=%s places=%d", log.name, len(log.rotten))
    # A place that could not be read stays in the mark, for the next opening.
    if is_known and places != [(rot.offset, rot.end_offset) for rot in log.rotten]:
        write_mark(log.files, log.folder, log.rotten)


def _check_again(log: PartitionLog, offset: int, end_offset: int) -> bool:
    """Whether the disk could be read there. A failing disk may refuse it: readers there get the
    error, and all other offsets are served.

    Checks all of the place: a repair may have been interrupted behind its beginning.
    """
    segment = log.segment_of(offset)
    end_offset = min(end_offset, segment.end_offset)
    try:
        if offset < end_offset:
            # The page cache may show a repair that the disk has lost in a failed sync.
            segment.file.evict()
        while offset < end_offset:
            rot = plan_look(log, offset).find()
            if rot is not None:
                log.note_rot(rot)
                offset = max(rot.end_offset, offset + 1)
            else:
                offset = segment.locate(offset).header.end_offset
    except (CorruptRecord, StorageError) as error:  # EIO, say: the disk cannot read it
        logger.error("rot cannot be read: log=%s offset=%d reason=%s", log.name, offset, error)
        return False
    return True
