"""What the batches of a log say to its schedule: scheduled, delivered, cancelled, carried, decided.

Owns how an event is read from a batch, from its head or its control record alone. The list of a
segment on disk (`lists`) has the same events, so that an opening need not read the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from raftmq.errors import CorruptRecord
from raftmq.model import NO_PRODUCER_ID, TimestampType
from raftmq.partition.scheduling.columns import ScheduledBatch
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.head import head_length
from raftmq.wire.batch.header import HEADER_SIZE
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.batch.scheduling import read_mark

if TYPE_CHECKING:
    from raftmq.wire.batch.header import BatchHeader, Buffer

HEAD_BYTES_USUAL = 512  # of most heads, so that one read is enough
# Of a control batch. A cancel of 10,000 records, the largest, has 80 kB; a longer one is none.
CONTROL_BYTES_MAX = 96 << 10


class _Event(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """As the list of a segment has it: nothing is left to skip in one, however it is nested."""


class Scheduled(_Event, frozen=True, tag=0):
    batch: ScheduledBatch


class Copied(_Event, frozen=True, tag=1):
    """A copy carried forward; see `Schedule.on_copy`."""

    batch: ScheduledBatch
    replaced: int
    first_offset: int
    left_out: tuple[int, ...] = ()


class Delivered(_Event, frozen=True, tag=2):
    offset: int
    original: int


class Cancelled(_Event, frozen=True, tag=3):
    offset: int
    records: tuple[int, ...]


class Decided(_Event, frozen=True, tag=4):
    """The marker of a transaction that has scheduled something."""

    offset: int
    producer_id: int
    is_commit: bool


ScheduleEvent: TypeAlias = Scheduled | Copied | Delivered | Cancelled | Decided


def offset_of(event: ScheduleEvent) -> int:
    """Base offset of the batch that says so."""
    return event.batch.base_offset if isinstance(event, Scheduled | Copied) else event.offset


def moved(event: ScheduleEvent, distance: int) -> ScheduleEvent:
    """The same, of a batch that stands so many bytes further in its segment."""
    if not isinstance(event, Scheduled | Copied):
        return event
    batch = event.batch._replace(position=event.batch.position + distance)
    return msgspec.structs.replace(event, batch=batch)


def may_have_event(header: BatchHeader) -> bool:
    """Whether the batch may be an event, by its header; else it need not be read.

    Markers of transactions are events, too, and not read here: see `decision` in `lists`."""
    if header.is_control:
        return header.producer_id == NO_PRODUCER_ID and not header.is_transactional
    if not header.is_columns:
        return False
    is_brokers = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return header.is_scheduled or (is_brokers and header.producer_id == NO_PRODUCER_ID)


def bytes_needed(buffer: Buffer, header: BatchHeader) -> int:
    """How many bytes of a batch that may be an event `event_of` needs, by its first
    HEAD_BYTES_USUAL bytes, or all that it has; 0: it is no event.

    Raises:
        CorruptRecord: it is scheduled, and has no head.
    """
    if header.is_control:
        return header.size if header.size <= CONTROL_BYTES_MAX else 0
    length = head_length(buffer, 0, header) if len(buffer) > HEADER_SIZE + 4 else 0
    if not length and header.is_scheduled:
        raise CorruptRecord("a scheduled batch without a directory")
    return length


def event_of(
    buffer: Buffer, at: int, header: BatchHeader, position: int, *, where: str = ""
) -> ScheduleEvent | None:
    """What the batch at `at` says, which stands at `position` of its segment; None: nothing.

    Args:
        buffer: has at least the `bytes_needed` of it.

    Raises:
        CorruptRecord: it contradicts itself.
    """
    offset = header.base_offset
    if header.is_control:
        control = RecordBatch.decode(buffer, at, where=where).control
        if control.type != ControlType.CANCEL:
            return None
        return Cancelled(offset, control.cancelled)
    mark = read_mark(buffer, at, header, where=where)
    if mark is None:
        return None
    if mark.delivers is not None:
        return Delivered(offset, mark.delivers)
    # Of others what is scheduled is pending at once.
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    batch = ScheduledBatch(
        offset, header.record_count, mark.due_ms, position, header.size, producer_id
    )
    if mark.replaces is None or mark.first is None:
        return Scheduled(batch)
    return Copied(batch, mark.replaces, mark.first, mark.left_out)
