"""Reading a log: a slice of a file for `sendfile`, checked batches, an offset by its time.

Owns where a read starts and ends; a slice always holds whole batches. Touches files only through
the `read` that it is given, so that the same code runs on the loop while everything is cached and
in a worker thread when it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.files import FileSlice
from raftmq.errors import CorruptRecord, OffsetOutOfRange, UnsupportedCompression
from raftmq.model import NO_TIMESTAMP, TimestampOffset
from raftmq.partition.storage.entries import read_waiting
from raftmq.partition.storage.retention import SegmentAge
from raftmq.wire.header import check_batch
from raftmq.wire.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.segment import BatchStart, FoundBatch, Segment
    from raftmq.wire.header import BatchHeader


class LogSlice(NamedTuple):
    """Whole batches of one segment: offsets [start_offset, end_offset) in `bytes`.

    The first batch may begin below the offset that was asked for.
    """

    start_offset: int
    end_offset: int
    bytes: FileSlice


class SlicePlan(NamedTuple):
    """What to find, with all that the log's own thread must say about it."""

    segment: Segment
    offset: int
    end: BatchStart  # of what the segment held when the plan was made
    end_offset: int  # of what the reader may see
    bytes_max: int

    def find(self, read: ReadBytes = read_waiting) -> LogSlice:
        """Raises CorruptRecord: the way to the batch is damaged."""
        segment = self.segment
        if self.offset >= self.end_offset:
            return LogSlice(self.offset, self.offset, FileSlice(segment.file, 0, 0))
        start = segment.start_of(self.offset, read)
        end = self.end
        if self.end_offset < end.offset:
            end = segment.start_of(self.end_offset, read)
        if end.position - start.position > self.bytes_max:
            end = _shortened(segment, start, self.bytes_max, read)
        if end.offset > self.end_offset:  # the one batch that is always served lies beyond it
            end = start
        length = end.position - start.position
        return LogSlice(start.offset, end.offset, FileSlice(segment.file, start.position, length))


def plan_slice(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> SlicePlan:
    """Batches from the one that holds `offset`, about `bytes_max` bytes, at least one batch.

    Args:
        end_offset: what the reader may see (a high watermark); default the log end. At or beyond
            it the slice is empty.

    Raises:
        OffsetOutOfRange: below the log start or beyond the log end.
        CorruptRecord: beyond damage that recovery found, or in rot.
    """
    check_range(log, offset)
    end_offset = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    rot = log.rot_at(offset)
    if rot is not None:
        if rot.offset <= offset < end_offset:
            raise CorruptRecord(str(rot), offset=offset)
        end_offset = min(end_offset, rot.offset)
    segment = log.segment_of(offset)
    return SlicePlan(segment, offset, segment.end, end_offset, bytes_max)


def check_range(log: PartitionLog, offset: int) -> None:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return
    if log.damage and offset >= log.damage.offset:
        raise CorruptRecord(str(log.damage), offset=offset)
    raise OffsetOutOfRange(
        f"offset {offset} of {log.name}; it holds {log.log_start_offset} to {log.log_end_offset}"
    )


def _shortened(segment: Segment, start: BatchStart, bytes_max: int, read: ReadBytes) -> BatchStart:
    """The last known batch start within `bytes_max`; behind the first batch at the least."""
    end = segment.start_before(start.position + bytes_max, read)
    if end.position > start.position:
        return end
    return segment.start_of(segment.locate(start.offset, read).header.end_offset, read)


def read_batches(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> Iterator[RecordBatch]:
    """The batches of one slice, each checked: CRC, place, leader epoch.

    Raises:
        CorruptRecord: at the first batch that is not what was written.
    """
    piece = plan_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset).find()
    data = memoryview(piece.bytes.read())
    where = f"{piece.bytes.file.path}, read from byte {piece.bytes.position}"
    expected, at = piece.start_offset, 0
    while expected < piece.end_offset:
        batch = RecordBatch.decode(data, at, where=where)
        _check_place(log, batch.header, expected, at, where)
        yield batch
        expected, at = batch.header.end_offset, at + batch.header.size


def _check_place(
    log: PartitionLog, header: BatchHeader, offset: int, position: int, where: str
) -> None:
    epoch = log.epochs.epoch_at(max(offset, log.log_start_offset))
    if (header.base_offset, header.leader_epoch) != (offset, epoch):
        raise CorruptRecord(
            f"offset {header.base_offset} of leader epoch {header.leader_epoch}, expected offset "
            f"{offset} of epoch {epoch}",
            position=position,
            where=where,
        )


def find_timestamp(
    log: PartitionLog, timestamp: int, segments: Sequence[Segment]
) -> TimestampOffset | None:
    """The first record whose timestamp is `timestamp` (ms) or later; None if there is none."""
    for segment in segments:
        if segment.end_offset <= log.log_start_offset or segment.largest_timestamp() < timestamp:
            continue
        for found in segment.batches_since(timestamp):
            answer = _in_batch(segment, found, timestamp, log.log_start_offset)
            if answer:
                return answer
    return None


def _in_batch(
    segment: Segment, found: FoundBatch, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    data = segment.file.read(found.position, found.header.size)
    try:
        header = check_batch(data, where=f"{segment.path}, batch at byte {found.position}")
    except CorruptRecord as error:
        error.offset = found.header.base_offset
        raise
    try:
        batch = RecordBatch.decode(data)
        records = list(zip(batch.timestamps, batch.offsets, strict=True))
    except (CorruptRecord, UnsupportedCompression):  # as a producer sent it: the header must do
        records = [(header.max_timestamp, max(header.base_offset, log_start_offset))]
    for stamp, offset in records:
        if stamp >= timestamp and offset >= log_start_offset:
            return TimestampOffset(stamp, offset)
    return None


def ages_of(log: PartitionLog) -> Iterator[SegmentAge]:
    """Of the sealed segments, for `retention.retained_start_offset`."""
    for index, segment in enumerate(log.segments[:-1]):
        yield SegmentAge(segment.end_offset, segment.size, _youngest_from(log, index))


def _youngest_from(log: PartitionLog, index: int) -> int | None:
    """The largest timestamp of that segment; where rot hides it, of the next that can tell."""
    for segment in log.segments[index:-1]:
        try:
            return segment.largest_timestamp()
        except CorruptRecord as error:
            log.doubt(error)
    timestamp = log.active.max_timestamp
    return None if timestamp == NO_TIMESTAMP else timestamp
