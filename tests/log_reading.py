"""Reads logs for tests, on the spot: slices, checked batches, offsets by time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.consumer.completed_fetches import CompletedFetch
from raftmq.client.consumer.fetch_response import Expected, check_answer
from raftmq.errors import CorruptRecord
from raftmq.partition.filtered_read import Verdicts, plan_filtered
from raftmq.partition.storage.log import plan_slice
from raftmq.partition.storage.lookups import find_timestamp
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.fetch import LeftOutRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.consumer.completed_fetches import Fetched
    from raftmq.model import TimestampOffset
    from raftmq.partition.filtered_read import FilterLimits
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.header import BatchHeader
    from raftmq.wire.batch.records import Record


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


class FilteredRead(NamedTuple):
    """`looked`: batches of which the header was read; `sent`: bytes."""

    pieces: list[Fetched]
    end_offset: int
    sent: int
    looked: int


def read_filtered(
    log: PartitionLog,
    offset: int,
    asked: TagFilter,
    limits: FilterLimits,
    *,
    end_offset: int | None = None,
) -> FilteredRead:
    """One look after the other, up to `end_offset` or until nothing more fits; each one checked as
    consumers check what they get.

    Raises:
        CorruptRecord: something was sent that a consumer does not take, or is left out unsaid.
    """
    read, damage = read_up_to_damage(log, offset, asked, limits, end_offset=end_offset)
    if damage is not None:
        raise damage
    return read


def read_up_to_damage(
    log: PartitionLog,
    offset: int,
    asked: TagFilter,
    limits: FilterLimits,
    *,
    end_offset: int | None = None,
) -> tuple[FilteredRead, CorruptRecord | None]:
    """As `read_filtered`; and the damage at which it ends, if any."""
    verdicts, sent, looked = Verdicts(asked), 0, 0
    pieces: list[Fetched] = []
    damage: CorruptRecord | None = None
    end = log.log_end_offset if end_offset is None else end_offset
    while offset < end and damage is None:
        plan = plan_filtered(log, offset, verdicts, limits, end_offset=end)
        try:
            found = plan.find()
        except CorruptRecord as error:
            damage = error
            break
        if found.seen is not None:
            plan.plan.segment.note_tags(found.seen)
        if found.end_offset == offset:
            break
        data = b"".join(
            piece if isinstance(piece, bytes) else piece.read() for piece in found.pieces
        )
        assert len(data) == found.length
        left_out = [LeftOutRange(*one, log.epochs.epoch_at(one[1] - 1)) for one in found.left_out]
        expected = Expected(offset, -1, 1 << 30, end, log.name, (), asked, left_out)
        checked, damage = check_answer(data, expected)
        assert damage or checked[-1].end_offset == found.end_offset
        pieces += checked
        offset = checked[-1].end_offset if checked else offset
        sent, looked = sent + found.length, looked + found.batch_count
    return FilteredRead(pieces, offset, sent, looked), damage


def records_of(read: FilteredRead) -> Iterator[Record]:
    """What a consumer hands out of it."""
    for piece in read.pieces:
        if isinstance(piece, CompletedFetch) and not piece.is_passed_over:
            batch = piece.batch
            if batch.header.record_count:
                yield from batch.records()
