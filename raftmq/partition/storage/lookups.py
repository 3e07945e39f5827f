"""Log reads without blocking the event loop: slices, timestamps, rot checks; page cache first.

Owns where a lookup runs: on the loop if the page cache has what it needs, else in a worker thread,
and again if the log was cut or trimmed meanwhile. Bytes that do not decode are reported to the log
(`PartitionLog.doubt`), as they may have rotted.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from raftmq.disk.files import WouldBlock
from raftmq.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    StorageError,
    UnsupportedCompression,
)
from raftmq.model import NO_TIMESTAMP, TimestampOffset, TimestampType
from raftmq.partition.filtered_read import FilteredPlan, plan_filtered
from raftmq.partition.storage.aborted_index import IndexLost, learn
from raftmq.partition.storage.entries import cached_reader, read_waiting
from raftmq.partition.storage.log import plan_aborted, plan_slice
from raftmq.partition.storage.mending import plan_look
from raftmq.partition.storage.rot import write_mark
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.disk.files import FileSlice
    from raftmq.disk.thread import RunSync
    from raftmq.partition.filtered_read import (
        FilteredSlice,
        FilterLimits,
        Verdicts,
        VisiblePlan,
    )
    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import FoundBatch, Segment

logger = logging.getLogger("raftmq.partition")


def find_slice_now(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None
) -> LogSlice:
    """Raises WouldBlock, and what `log.plan_slice` and reading raise."""
    plan = plan_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
    try:
        return plan.find(cached_reader())
    except CorruptRecord as error:  # on the way to the batch: may be rot
        log.doubt(error)
        raise


async def find_slice(
    log: PartitionLog, run_sync: RunSync, offset: int, *, bytes_max: int, end_offset: int | None
) -> LogSlice:
    while True:  # again only if the log was cut or trimmed meanwhile
        try:
            return find_slice_now(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        except WouldBlock:  # not in the page cache, or too much to read on the loop
            plan = plan_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
            changes = log.changes
        try:
            return await run_sync(partial(plan.find, read_waiting))  # waits for the disk
        except (CorruptRecord, StorageError) as error:
            if log.changes == changes:  # else it was cut or trimmed under the thread: try again
                log.doubt(error)
                raise


# -- Filtered ---------------------------------------------------------------------------------

# Of one look on the event loop: more than other lookups, as it is most of a filtered fetch, and
# its batches are counted, too.
LOOK_BYTES_MAX = 512 << 10


def look_filtered_now(
    log: PartitionLog,
    offset: int,
    verdicts: Verdicts | None,
    limits: FilterLimits,
    *,
    end_offset: int | None,
) -> FilteredSlice:
    """`plan_filtered` on the loop. Raises WouldBlock, and what planning and reading raise."""
    plan = plan_filtered(log, offset, verdicts, limits, end_offset=end_offset)
    try:
        found = plan.find(cached_reader(LOOK_BYTES_MAX))
    except CorruptRecord as error:  # on the way to a batch: may be rot
        log.doubt(error)
        raise
    _note_tags(plan, found)
    return found


async def look_filtered(
    log: PartitionLog,
    run_sync: RunSync,
    offset: int,
    verdicts: Verdicts | None,
    limits: FilterLimits,
    *,
    end_offset: int | None,
) -> FilteredSlice:
    """As `look_filtered_now`, in a worker thread where the page cache does not have it."""
    while True:  # again only if the log was cut or trimmed meanwhile
        try:
            return look_filtered_now(log, offset, verdicts, limits, end_offset=end_offset)
        except WouldBlock:
            plan = plan_filtered(log, offset, verdicts, limits, end_offset=end_offset)
            changes = log.changes
        try:
            found = await run_sync(partial(plan.find, read_waiting))  # waits for the disk
        except (CorruptRecord, StorageError) as error:
            if log.changes == changes:  # as above
                log.doubt(error)
                raise
        else:
            # Else what it has read may be cut: not even to be sent.
            if log.changes == changes:
                _note_tags(plan, found)
                return found


def _note_tags(plan: FilteredPlan | VisiblePlan, found: FilteredSlice) -> None:
    if isinstance(plan, FilteredPlan) and found.seen is not None:
        plan.plan.segment.note_tags(found.seen)


# -- Times and rot ----------------------------------------------------------------------------


def append_times_now(log: PartitionLog, base_offsets: Sequence[int]) -> tuple[int, ...]:
    """When the leader appended each of these batches, by its clock. NO_TIMESTAMP where that is not
    known: a batch that the page cache does not have, that was deleted, or that has its producer's
    timestamps, as it is older than the topic's LogAppendTime.
    """
    read = cached_reader()  # one budget for all: a request may have many duplicates
    return tuple([_append_time(log, offset, read) for offset in base_offsets])


def _append_time(log: PartitionLog, offset: int, read: ReadBytes) -> int:
    if not log.log_start_offset <= offset < log.log_end_offset:
        return NO_TIMESTAMP
    try:
        header = log.segment_of(offset).locate(offset, read).header
    except WouldBlock:
        return NO_TIMESTAMP
    except CorruptRecord as error:  # on the way to the batch: may be rot
        log.doubt(error)
        return NO_TIMESTAMP
    is_brokers = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return header.max_timestamp if is_brokers else NO_TIMESTAMP


def find_aborted_now(
    log: PartitionLog, first_offset: int, end_offset: int, limit: int
) -> list[Aborted]:
    """Raises WouldBlock, also where an index has to be built again."""
    try:
        return plan_aborted(log, first_offset, end_offset, limit).find(cached_reader())
    except IndexLost as lost:
        raise WouldBlock from lost


async def find_aborted(
    log: PartitionLog, run_sync: RunSync, first_offset: int, end_offset: int, limit: int
) -> list[Aborted]:
    """Raises IndexLost, upon which `build_aborted` builds it again."""
    while True:  # again only if the log was cut or trimmed meanwhile
        plan, changes = plan_aborted(log, first_offset, end_offset, limit), log.changes
        try:
            return plan.find(cached_reader())
        except WouldBlock:  # not in the page cache, or too much to read on the loop
            pass
        try:
            return await run_sync(plan.find)  # waits for the disk
        except StorageError:
            if log.changes == changes:  # as above
                raise


async def build_aborted(log: PartitionLog, run_sync: RunSync, base_offset: int) -> None:
    """Build the indexes that are lost from this segment on. The caller keeps cuts and trims away.

    Raises:
        CorruptRecord: rot hides what the batches say.
        StorageError: the disk refused.
    """
    while True:  # again only if the log was rolled meanwhile
        segments, end = list(log.segments), log.active.end
        try:
            # Until all batches since the last sound index are read.
            learned = await run_sync(partial(learn, segments, base_offset, end))
        except CorruptRecord as error:
            log.doubt(error)
            raise
        if learned is None or learned.active is log.active:
            log.aborted.adopt(learned)
            return


async def read_piece(piece: FileSlice, run_sync: RunSync) -> bytes:
    try:
        return piece.file.read_now(piece.position, piece.length)
    except WouldBlock:
        return await run_sync(piece.read)  # waits for the disk


def find_timestamp(
    log: PartitionLog, timestamp: int, segments: Sequence[Segment]
) -> TimestampOffset | None:
    """The first record whose timestamp is `timestamp` (ms) or later; None if there is none."""
    for segment in segments:
        # The time index says so without a walk.
        if segment.end_offset <= log.log_start_offset or segment.largest_timestamp() < timestamp:
            continue
        for found in segment.batches_since(timestamp):
            answer = _in_batch(segment, found, timestamp, log.log_start_offset)
            if answer:  # none: only the header's maximum was high, by a record below the log start
                return answer
    return None


def _in_batch(
    segment: Segment, found: FoundBatch, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    data = segment.file.read(found.position, found.header.size)
    try:
        header = check_batch(data, where=f"{segment.path}, batch at byte {found.position}")
    except CorruptRecord as error:
        error.offset = found.header.base_offset  # for `doubt`: which batch to check for rot
        raise
    try:
        batch = RecordBatch.decode(data)
        records = list(zip(batch.timestamps, batch.offsets, strict=True))
    except (CorruptRecord, UnsupportedCompression):
        # The CRC is right, so a producer sent it like this (decision 0009): by the header alone.
        records = [(header.max_timestamp, max(header.base_offset, log_start_offset))]
    for stamp, offset in records:
        # Timestamps of producers need not rise: the first one that is high enough.
        if stamp >= timestamp and offset >= log_start_offset:
            return TimestampOffset(stamp, offset)
    return None


async def find_offset(
    log: PartitionLog, run_sync: RunSync, timestamp: int
) -> TimestampOffset | None:
    """The offset of a timestamp. Always in a worker thread: it may have to decompress a batch."""
    while True:  # again only if the log was cut or trimmed meanwhile
        segments, changes = list(log.segments), log.changes
        try:
            # Waits for the disk.
            return await run_sync(partial(find_timestamp, log, timestamp, segments))
        except (CorruptRecord, StorageError) as error:
            if log.changes == changes:  # as above
                log.doubt(error)
                raise


async def find_rot(log: PartitionLog, run_sync: RunSync, offset: int) -> Rot | None:
    """Check the batch at `offset` on the disk; None: it is sound. The caller keeps cuts away.

    Raises:
        StorageError: the disk cannot be read, or the log is not in use.
        OffsetOutOfRange: it is not in the log.
    """
    if not log.is_sound:  # damage is known already, and an offline log is reopened
        raise StorageError(f"{log.name} is {log.offline_reason or log.damage}")
    if not log.log_start_offset <= offset < log.log_end_offset:  # deleted meanwhile
        raise OffsetOutOfRange(f"{log.name} has no offset {offset}")
    found = await run_sync(plan_look(log, offset).find)  # waits for the disk
    if found is not None:
        log.note_rot(found)
        try:
            # Until the mark is durable: the caller reports the rot afterwards.
            await run_sync(partial(write_mark, log.files, log.folder, log.rotten))
        except StorageError as error:  # reported all the same; a restart may forget it
            logger.warning("rot is not noted: log=%s reason=%s", log.name, error)
    return found
