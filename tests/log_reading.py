"""Reads logs for tests, on the spot: slices, checked batches, offsets by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.log import find_timestamp, plan_slice
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.model import TimestampOffset
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.wire.batch.header import BatchHeader


def read_slice(
    log: PartitionLog, offset: int, *, bytes_max: int, end_offset: int | None = None
) -> LogSlice:
    """Whole batches as a slice of a file, see `plan_slice`."""
    return plan_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset).find()


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> TimestampOffset | None:
    """The first record at or after `timestamp`, see `find_timestamp`."""
    return find_timestamp(log, timestamp, log.segments)


def read_batches(
    log: PartitionLog, offset: int, *, bytes_max: int = 1 << 20, end_offset: int | None = None
) -> Iterator[RecordBatch]:
    """The batches of one slice, each checked: CRC, place, leader epoch.

    Raises:
        CorruptRecord: at the first batch that is not what was written.
    """
    piece = read_slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
    data = memoryview(piece.bytes.read())
    where = f"{piece.bytes.file.path}, read from byte {piece.bytes.position}"
    expected, at = piece.start_offset, 0
    while expected < piece.end_offset:  # not by bytes: the offsets are what was asked for
        batch = RecordBatch.decode(data, at, where=where)
        _check_place(log, batch.header, expected, at, where)
        yield batch
        expected, at = batch.header.end_offset, at + batch.header.size


def _check_place(
    log: PartitionLog, header: BatchHeader, offset: int, position: int, where: str
) -> None:
    # The table begins at the log start, the first batch may begin before it.
    epoch = log.epochs.epoch_at(max(offset, log.log_start_offset))
    # Outside of what the CRC covers: compared with what the log knows.
    if (header.base_offset, header.leader_epoch) != (offset, epoch):
        raise CorruptRecord(
            f"offset {header.base_offset} of leader epoch {header.leader_epoch}, expected offset "
            f"{offset} of epoch {epoch}",
            position=position,
            where=where,
        )
