"""Reading a log: a slice of a file for `sendfile`, checked batches, an offset by its time.

Owns where a read starts and ends; a slice always holds whole batches. Touches files only through
the `read` that it is given, so that the same code runs on the loop while everything is cached and
in a worker thread when it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord, OffsetOutOfRange
from raftmq.model import TimestampOffset
from raftmq.partition.storage.entries import read_waiting
from raftmq.partition.storage.files import FileSlice
from raftmq.wire.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.segment import Segment
    from raftmq.partition.storage.segment_index import BatchStart
    from raftmq.partition.storage.walk import FoundBatch
    from raftmq.wire.header import BatchHeader


class LogSlice(NamedTuple):
    """Whole batches of one segment: offsets [start_offset, end_offset) in `bytes`.

    The first batch may begin below the offset that was asked for.
    """

    start_offset: int
    end_offset: int
    bytes: FileSlice


def read_slice(
    log: PartitionLog,
    offset: int,
    *,
    bytes_max: int,
    end_offset: int | None = None,
    read: ReadBytes = read_waiting,
) -> LogSlice:
    """Batches from the one that holds `offset`, about `bytes_max` bytes, at least one batch.

    Args:
        end_offset: what the reader may see (a high watermark); default the log end.

    Raises:
        OffsetOutOfRange: below the log start or beyond the log end.
        CorruptRecord: the way to the batch is damaged.
    """
    end_offset = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    check_range(log, offset)
    segment = log.segment_of(offset)
    start = segment.start_of(offset, read)
    end = segment.start_of(min(end_offset, segment.end_offset), read)
    if end.position - start.position > bytes_max:
        end = _shortened(segment, start, bytes_max, read)
    length = max(0, end.position - start.position)
    return LogSlice(start.offset, end.offset, FileSlice(segment.file, start.position, length))


def check_range(log: PartitionLog, offset: int) -> None:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return
    if log.damage and offset >= log.damage.offset:
        raise CorruptRecord(str(log.damage))
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
    piece = read_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
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
    log: PartitionLog, timestamp: int, *, read: ReadBytes = read_waiting
) -> TimestampOffset | None:
    """The first record whose timestamp is `timestamp` (ms) or later; None if there is none."""
    for segment in log.segments:
        if segment.end_offset <= log.log_start_offset:
            continue
        if segment.largest_timestamp(read) < timestamp:
            continue
        for found in segment.batches_since(timestamp, read):
            answer = _in_batch(log, segment, found, timestamp, read)
            if answer:
                return answer
    return None


def _in_batch(
    log: PartitionLog, segment: Segment, found: FoundBatch, timestamp: int, read: ReadBytes
) -> TimestampOffset | None:
    data = read(segment.file, found.position, found.header.size)
    batch = RecordBatch.decode(data, where=f"{segment.path}, batch at byte {found.position}")
    for offset, stamp in zip(batch.offsets, batch.timestamps, strict=True):
        if stamp >= timestamp and offset >= log.log_start_offset:
            return TimestampOffset(stamp, offset)
    return None
