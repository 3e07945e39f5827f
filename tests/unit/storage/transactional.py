"""Logs with transactions, each step in one line, and what a reader must drop by their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.partition.storage.aborted_index import Aborted
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import pack_prefix, read_header
from raftmq.wire.batch.records import RecordBatch, encode_batch, encode_control_batch
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.storage.log import PartitionLog
    from raftmq.wire.batch.header import BatchHeader

PREFIX_SIZE = 16


class Marked(NamedTuple):
    """A batch as the log has it; `kind` of a marker."""

    header: BatchHeader
    kind: ControlType | int | None


def append_as_leader_sent(log: PartitionLog, batch: bytes, *, epoch: int = 0) -> int:
    """Append one batch as a follower does; returns its offset."""
    header = read_header(batch)
    prefix = pack_prefix(header, base_offset=log.log_end_offset, leader_epoch=epoch)
    sent = prefix + batch[PREFIX_SIZE:]
    return log.append_replicated(sent, leader_epoch=epoch, now=0.0).base_offset


def send(log: PartitionLog, producer_id: int, *, epoch: int = 0, sequence: int = 0) -> int:
    """A batch of two records in the transaction of a producer; returns its offset."""
    return append_as_leader_sent(log, sent(producer_id, epoch=epoch, sequence=sequence))


def sent(producer_id: int, *, epoch: int = 0, sequence: int = 0, size: int = 20) -> bytes:
    batch = encode_batch(
        values=[b"x" * size] * 2,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return bytes(batch)


def end(log: PartitionLog, producer_id: int, *, commit: bool = False, epoch: int = 1) -> int:
    """The marker that ends the transaction of a producer; returns its offset."""
    return append_as_leader_sent(log, marker(producer_id, commit=commit, epoch=epoch))


def abort(log: PartitionLog, producer_id: int, *, epoch: int = 1) -> int:
    return end(log, producer_id, epoch=epoch)


def marker(producer_id: int, *, commit: bool, epoch: int = 1) -> bytes:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    batch = encode_control_batch(
        kind=kind,
        coordinator_epoch=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp=NOW_MS,
    )
    return bytes(batch)


# -- reference -----------------------------------------------------------------------------------


def marked_batches(log: PartitionLog) -> list[Marked]:
    """Every batch of the log's segments, read without any index."""
    found = []
    for segment in log.segments:
        for position, header in segment.walk_all():
            kind = None
            if header.is_control and header.is_transactional:
                data = segment.file.read(position, header.size)
                kind = RecordBatch.decode(data).control.type
            found.append(Marked(header, kind))
    return found


def all_aborted(batches: Iterable[Marked]) -> list[Aborted]:
    """Slowly, and in another way than the log: from each abort marker back to what it ended."""
    seen: list[Marked] = []
    found = []
    for each in batches:
        if each.kind == ControlType.ABORT:
            mine = []
            for before in reversed(seen):
                if before.header.producer_id == each.header.producer_id:
                    if before.kind in (ControlType.ABORT, ControlType.COMMIT):
                        break
                    mine.append(before.header)
            if mine:
                first = min(header.base_offset for header in mine)
                found.append(Aborted(each.header.producer_id, first, each.header.base_offset))
        if each.header.is_transactional:
            seen.append(each)
    return found


def expected_in(
    batches: Iterable[Marked], first_offset: int, end_offset: int, limit: int
) -> list[Aborted]:
    """What `aborted_in` must say of these batches."""
    found = [
        each
        for each in all_aborted(batches)
        if each.first_offset < end_offset and each.marker_offset > first_offset
    ]
    return sorted(found, key=lambda each: each.first_offset)[: limit + 1]


def open_in(batches: Iterable[Marked]) -> dict[int, int]:
    """First offset of what is open behind the batches, by producer id."""
    found: dict[int, int] = {}
    for header, kind in batches:
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            found.pop(header.producer_id, None)
        elif header.is_transactional:
            found.setdefault(header.producer_id, header.base_offset)
    return found


def open_by_log(log: PartitionLog) -> dict[int, int]:
    """The same as the log knows it."""
    assert log.aborted.open_at is not None
    return {
        producer_id: each.first_offset for producer_id, each in log.aborted.open_at.open.items()
    }
