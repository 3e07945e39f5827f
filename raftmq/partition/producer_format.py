"""File format of producer snapshots: packing, reading and checking of producer state. Pure.

What a partition knew of its producers when its log ended at one offset:

    magic "RMQP" | format version u16 | end offset i64 | count of producers u32 |
        count of markers u32 | unread begin i64 | unread end i64
    each producer, plain ones first, and of each kind the longest idle first:
        producer id i64 | epoch u16 | next sequence u32 | idle seconds u32 | generation i64 |
        digest u32 | partition count u32 | open offset i64 | marker offset i64 | count of runs u8
        each run, newest last: first sequence u32 | base offset i64 | count of records u32
    each marker that may not be committed, oldest first: first offset of its transaction i64 |
        marker offset i64
    in version 4: base offset i64 of each segment with events of the schedule, lowest
        first
    CRC-32C of all before u32

Owns the layout and which values are believed. Anything wrong raises CorruptRecord: a snapshot only
saves time, and recovery walks the log instead (Kafka: the `.snapshot` files of producer state).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from raftmq.errors import CorruptRecord
from raftmq.partition.producers import Remembered, SavedProducers
from raftmq.partition.sequences import (
    NO_COUNT,
    NO_DIGEST,
    NO_GENERATION,
    NO_OFFSET,
    RUN_RECORDS_MAX,
    RUNS_MAX,
    SEQUENCES,
    ProducerState,
    SequenceRun,
)
from raftmq.partition.transactions import ALL_READ, NotedMarker, UnreadPart
from raftmq.wire.batch.header import PARTITION_COUNT_MAX, is_named
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = b"RMQP"
# 1 had no named producers, 2 no transactions: such a file is not read, and the log is walked once.
# "Says nothing of transactions" must never read as "none is open".
VERSION = 3
SCHEDULE_VERSION = 4  # where any segment has events of the schedule
_HEAD = Struct(">4sHqIIqq")  # layouts: see the top of the module
_PRODUCER = Struct(">qHIIqIIqqB")
_MARKER = Struct(">qq")
_RUN = Struct(">IqI")
_BASE = Struct(">q")
_CRC = Struct(">I")
_IDLE_SECONDS_MAX = (1 << 32) - 1  # what the u32 can hold: longer than any limit of idle time


def pack_snapshot(
    end_offset: int,
    remembered: Sequence[Remembered],
    markers: Sequence[NotedMarker] = (),
    unread: UnreadPart = ALL_READ,
    event_segments: Sequence[int] = (),
) -> bytes:
    """The bytes of a snapshot at `end_offset`; arguments as `SavedProducers` has them."""
    counts = len(remembered), len(markers)
    version = SCHEDULE_VERSION if event_segments else VERSION
    body = bytearray(_HEAD.pack(MAGIC, version, end_offset, *counts, *unread))
    for producer_id, producer, idle_seconds in remembered:
        epoch, next_sequence, runs, *rest = producer
        idle = min(int(idle_seconds), _IDLE_SECONDS_MAX)
        body += _PRODUCER.pack(producer_id, epoch, next_sequence, idle, *rest, len(runs))
        for run in runs:
            body += _RUN.pack(*run)
    for marker in markers:
        body += _MARKER.pack(*marker)
    for base_offset in event_segments:
        body += _BASE.pack(base_offset)
    return bytes(body) + _CRC.pack(crc32c(body))


def read_snapshot(data: bytes, end_offset: int) -> SavedProducers:
    """
    Raises:
        CorruptRecord: not a snapshot at that offset, or not one that this version can read.
    """
    end = _check_frame(data, end_offset)
    _, version, _, count, marker_count, *unread = _HEAD.unpack_from(data)
    found: dict[int, Remembered] = {}
    position = _HEAD.size
    for _ in range(count):
        one, position = _read_producer(data, position, end, end_offset)
        found[one.producer_id] = one
    markers_end = position + marker_count * _MARKER.size
    bases_length = end - markers_end if version == SCHEDULE_VERSION else 0
    # Bytes are left over or missing, or an id stands there twice.
    is_whole = markers_end + bases_length == end and not bases_length % _BASE.size
    if markers_end > end or not is_whole or len(found) != count:
        raise CorruptRecord(
            f"{len(found)} producers in {position} bytes, {count} in {end} promised, with "
            f"{marker_count} markers"
        )
    markers = tuple(NotedMarker(*each) for each in _MARKER.iter_unpack(data[position:markers_end]))
    event_segments = tuple(base for (base,) in _BASE.iter_unpack(data[markers_end:end]))
    begin, end = unread
    is_possible = 0 <= begin < end <= end_offset or (begin, end) == ALL_READ
    if not is_possible or not _may_stand(markers, end_offset):
        raise CorruptRecord(f"unread from {begin} to {end}, markers {markers[:3]} ...")
    return SavedProducers(list(found.values()), markers, UnreadPart(begin, end), event_segments)


def _may_stand(markers: Sequence[NotedMarker], end_offset: int) -> bool:
    before = NotedMarker(-1, -1)
    for marker in markers:
        if not before.first_offset < marker.first_offset < marker.marker_offset < end_offset:
            return False
        if marker.marker_offset <= before.marker_offset:
            return False
        before = marker
    return True


def _check_frame(data: bytes, end_offset: int) -> int:
    """Check CRC, magic, version and offset. Returns where the producers end and the CRC begins."""
    end = len(data) - _CRC.size
    if end < _HEAD.size or _CRC.unpack_from(data, end) != (crc32c(data[:end]),):  # torn, or rotten
        raise CorruptRecord("the snapshot of producers fails its CRC")
    magic, version, said, *_ = _HEAD.unpack_from(data)
    # Of a later version, or a file under a wrong name.
    is_known = version in (VERSION, SCHEDULE_VERSION)
    if (magic, said) != (MAGIC, end_offset) or not is_known:
        raise CorruptRecord(
            f"magic {magic!r}, version {version}, offset {said} in the snapshot of producers; "
            f"expected {MAGIC!r}, {VERSION} or {SCHEDULE_VERSION}, {end_offset}"
        )
    return end


def _read_producer(data: bytes, position: int, end: int, end_offset: int) -> tuple[Remembered, int]:
    """One producer, and where the next one begins."""
    runs_at = position + _PRODUCER.size
    if runs_at > end:  # the count in the head is too high
        raise CorruptRecord("a producer is cut off", position=position)
    fields = _PRODUCER.unpack_from(data, position)
    producer_id, epoch, next_sequence, idle, *rest, count = fields
    following = runs_at + count * _RUN.size
    if following > end:
        raise CorruptRecord("runs of a producer are cut off", position=position)
    runs = tuple(SequenceRun(*each) for each in _RUN.iter_unpack(data[runs_at:following]))
    producer = ProducerState(epoch, next_sequence, runs, *rest)
    if not _may_be(producer_id, producer, end_offset):
        raise CorruptRecord(f"producer {producer_id}: {producer}", position=position)
    return Remembered(producer_id, producer, float(idle)), following


def _may_be(producer_id: int, producer: ProducerState, end_offset: int) -> bool:
    """Whether such a state can exist: a sound CRC only shows that the bytes are as written."""
    epoch, next_sequence, runs, *account, open_offset, marker_offset = producer
    generation, _, partition_count = account
    is_in_transaction = (open_offset, marker_offset) != (NO_OFFSET, NO_OFFSET)
    return (
        producer_id >= 0
        and epoch <= PRODUCER_EPOCH_MAX
        and next_sequence < SEQUENCES
        and len(runs) <= RUNS_MAX
        and all(_is_possible(run, end_offset) for run in runs)
        and generation >= NO_GENERATION
        and partition_count <= PARTITION_COUNT_MAX
        and NO_OFFSET <= open_offset < end_offset
        and NO_OFFSET <= marker_offset < end_offset
        and not (is_named(producer_id) and is_in_transaction)
        and (is_named(producer_id) or account == [NO_GENERATION, NO_DIGEST, NO_COUNT])
    )


def _is_possible(run: SequenceRun, end_offset: int) -> bool:
    return (
        run.first_sequence < SEQUENCES
        and 0 < run.record_count <= RUN_RECORDS_MAX
        and 0 <= run.base_offset <= end_offset - run.record_count
    )
