"""Scheduled batches, and what settles them: what a batch says of it, deliveries and copies. Pure.

A scheduled batch has a bit in its attributes, and its due time in the directory. A delivery has its
records, for readers; a copy carried forward takes its place when its segment is to be deleted; both
name the offset that they settle, and leave out what is cancelled (docs/decisions/0041). Owns the
marks by which batches say this, and how the two are made.

Invariants:
1. Whatever has a mark has the CRC of the head, which covers it, and records without gaps.
2. Record count and directory of a delivery or copy count all records that are stored. What is left
   out is named by its delta, and readers subtract it.
3. Chunks and their entries are the original's, byte for byte: none is opened.
4. Bytes are sealed anew only if their own CRC was right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TimestampType
from raftmq.wire.batch.columns import INT64_MAX, is_increasing
from raftmq.wire.batch.directory import join_directory, split_directory
from raftmq.wire.batch.fixed_keys import DIRECTORY_START, may_be_marked
from raftmq.wire.batch.head import is_head_sound, seal_batch
from raftmq.wire.batch.header import (
    COLUMNS_BIT,
    COMPRESSION_BITS,
    HEADER,
    NO_LEADER_EPOCH,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.wire.batch.directory import SplitDirectory
    from raftmq.wire.batch.fixed_keys import FixedKeys
    from raftmq.wire.batch.header import Buffer


class ScheduleMark(NamedTuple):
    """What a batch says of its being scheduled.

    Attributes:
        due_ms: when its records are, or were, to be delivered.
        delivers: base offset of the scheduled batch that it delivers; None: it is no delivery.
        replaces: base offset of the scheduled batch that it stands in for; None: it is no copy.
        first: base offset of the first original of a copy, from which handles count.
        left_out: deltas of its records that are cancelled, rising.
    """

    due_ms: int
    delivers: int | None = None
    replaces: int | None = None
    first: int | None = None
    left_out: tuple[int, ...] = ()


def read_mark(
    buffer: Buffer, position: int, header: BatchHeader, *, where: str = ""
) -> ScheduleMark | None:
    """The mark of the batch at `position`, of which only the head must be in `buffer`; None: it has
    none, if its CRC or `believed_directory` vouches for the head.

    Raises:
        CorruptRecord: it contradicts itself or the header, or the CRC of the head is wrong.
    """
    if not header.is_columns:
        return None
    if not (header.is_scheduled or may_be_marked(buffer, position)):
        return None
    marked = _read_marked(buffer, position, header, where)
    return None if marked is None else marked.mark


class _MarkedDirectory(NamedTuple):
    mark: ScheduleMark
    split: SplitDirectory


def _read_marked(
    buffer: Buffer, position: int, header: BatchHeader, where: str = ""
) -> _MarkedDirectory | None:
    split = split_directory(buffer, position, header, where=where)
    keys = split.keys
    if keys is not None and keys.due_ms is not None:
        mark = ScheduleMark(keys.due_ms, keys.delivers, keys.replaces, keys.first, split.left_out)
        problem = _problem_of_head(buffer, position, split, keys) or _problem_of(header, mark)
    elif header.is_scheduled:
        problem = "without a due time"
    else:  # keys of nobody
        return None
    if problem:
        raise CorruptRecord(f"scheduling: {problem}", position=position, where=where)
    return _MarkedDirectory(mark, split)


def _problem_of_head(buffer: Buffer, position: int, split: SplitDirectory, keys: FixedKeys) -> str:
    assert keys.check_at is not None, "a due time stands behind it"
    check = position + DIRECTORY_START + keys.check_at
    is_sound = is_head_sound(buffer, position, check, split.chunks_position)
    return "" if is_sound else "the CRC-32C of the head is wrong"


def _problem_of(header: BatchHeader, mark: ScheduleMark) -> str:
    """What contradicts itself, or an empty string."""
    return (
        _problem_of_kind(header, mark)
        or _problem_of_numbers(mark)
        or _problem_of_left_out(header, mark)
    )


def _problem_of_kind(header: BatchHeader, mark: ScheduleMark) -> str:
    is_delivery, is_copy = mark.delivers is not None, mark.replaces is not None
    if is_delivery and is_copy:
        return "a delivery and a copy at once"
    if header.is_scheduled is is_delivery:
        return "a delivery that is scheduled" if is_delivery else "a due time of nothing scheduled"
    is_of_producer = header.producer_id != NO_PRODUCER_ID or header.is_transactional
    if is_of_producer and (is_delivery or is_copy):
        return "a delivery or a copy of a producer"
    if is_delivery and header.timestamp_type is not TimestampType.LOG_APPEND_TIME:
        return "a delivery without the broker's time"
    return ""


def _problem_of_numbers(mark: ScheduleMark) -> str:
    due_ms, delivers, replaces, first, _ = mark
    if max(due_ms, delivers or 0, replaces or 0, first or 0) > INT64_MAX:
        return "a time or an offset of more than 63 bits"
    if replaces is not None and first is not None and first > replaces:
        return f"a copy of {replaces}, whose first original is {first}"
    return ""


def _problem_of_left_out(header: BatchHeader, mark: ScheduleMark) -> str:
    # So each delta is that of a record.
    if header.last_offset_delta != header.record_count - 1:
        return "records with gaps between their offsets"
    left_out = mark.left_out
    if not left_out:
        return ""
    if mark.delivers is None and mark.replaces is None:
        return "records left out of an original"
    if not is_increasing(left_out) or left_out[-1] > header.last_offset_delta:
        return "records left out that it does not have"
    return "all records left out" if len(left_out) == header.record_count else ""


# -- Deliveries and copies ------------------------------------------------------------------------


def delivery_of(
    original: Buffer, *, original_offset: int, now_ms: int, left_out: Iterable[int] = ()
) -> bytearray:
    """The delivery of one whole scheduled batch, an original or a copy, without an offset yet.

    Args:
        original_offset: base offset of that batch in its log, which the delivery settles.
        now_ms: the moment of delivery, the timestamp of all its records.
        left_out: deltas of the records that are cancelled, not all; beside those that a copy
            leaves out itself.

    Raises:
        CorruptRecord: not a sound scheduled batch.
    """
    header, split, due_ms, deltas = _opened(original, left_out)
    directory = join_directory(split.entries, deltas, due_ms=due_ms, delivers=original_offset)
    changed = _of_nobody(header)._replace(
        attributes=header.attributes & COMPRESSION_BITS | COLUMNS_BIT | TIMESTAMP_TYPE_BIT,
        max_timestamp=now_ms,
    )
    return _sealed(changed, directory, original, split)


def copy_of(
    original: Buffer, *, replaces: int, first: int, left_out: Iterable[int] = ()
) -> bytearray:
    """The copy of one whole scheduled batch, an original or a copy, without an offset yet.

    Args:
        replaces: base offset of that batch in its log.
        first: base offset of the first original.
        left_out: as `delivery_of`.

    Raises:
        CorruptRecord: not a sound scheduled batch.
    """
    header, split, due_ms, deltas = _opened(original, left_out)
    directory = join_directory(split.entries, deltas, due_ms=due_ms, copy_of=(replaces, first))
    changed = _of_nobody(header)._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)
    return _sealed(changed, directory, original, split)


def _opened(
    original: Buffer, left_out: Iterable[int]
) -> tuple[BatchHeader, SplitDirectory, int, list[int]]:
    """Header, directory and due time of a scheduled batch, and the deltas to be left out."""
    # All of it: a new CRC over bytes that have changed would vouch for them.
    header = check_batch(original)
    marked = _read_marked(original, 0, header) if header.is_scheduled else None
    if marked is None:
        raise CorruptRecord("not a scheduled batch", position=0)
    mark, split = marked
    deltas = sorted({*left_out, *mark.left_out})
    assert len(deltas) < header.record_count, "what is cancelled whole is settled"
    assert not deltas or 0 <= deltas[0] <= deltas[-1] <= header.last_offset_delta, deltas
    return header, split, mark.due_ms, deltas


def _of_nobody(header: BatchHeader) -> BatchHeader:
    """The header without a producer and a place in the log."""
    return header._replace(
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def _sealed(
    header: BatchHeader, directory: bytes, original: Buffer, split: SplitDirectory
) -> bytearray:
    chunks = memoryview(original)[split.chunks_position : header.size]
    return seal_batch(bytearray().join((HEADER.pack(*header), directory, chunks)))
