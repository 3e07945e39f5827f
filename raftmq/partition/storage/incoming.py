"""Validation of batches before an append: offsets, size, timestamps, format, duplicates.

Owns the rules for batches from producers (`place_produced`: a leader assigns base offset and
leader epoch, and trusts nothing) and from a leader (`place_replicated`: bytes stay as they are,
and must continue this log). Neither decodes records: the CRC covers them, and `check_structure`
reads the directory only. Fences, markers, and what settles scheduled batches (`place_settling`)
are written by the leader itself. Kafka: LogValidator.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RaftmqError,
)
from raftmq.model import DELAY_TICK_MS, NO_PRODUCER_ID, RecordFormat, TimestampType
from raftmq.partition.scheduling.events import Scheduled, event_of, moved
from raftmq.partition.scheduling.lists import decision
from raftmq.partition.storage.segment import FoundBatch
from raftmq.topic_config import DAY_MS
from raftmq.wire.batch.fixed_keys import DIRECTORY_START, MARKED_COUNT_MIN, is_marked
from raftmq.wire.batch.header import (
    COLUMNS_BIT,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    RECORDS_MAX,
    SCHEDULED_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Account,
    BatchHeader,
    Buffer,
    compute_crc,
    is_named,
    iter_batches,
    pack_prefix,
    read_header,
)
from raftmq.wire.batch.records import (
    account_of,
    check_structure,
    encode_control_batch,
    encode_fence,
    marker_of,
    stamp_log_append_time,
)
from raftmq.wire.messages.produce import BATCHES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raftmq.partition.admission import Admission
    from raftmq.partition.scheduling.events import ScheduleEvent
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.segment import BatchStart
    from raftmq.partition.transactions import MarkerWanted
    from raftmq.topic_config import TopicConfig
    from raftmq.wire.batch.control import ControlType

PREFIX_SIZE = 16  # bytes before `magic`, which the leader writes: see `pack_prefix`
# The attribute bits that the configuration of a topic fixes.
_KIND_BITS = COLUMNS_BIT | CONTROL_BIT | TIMESTAMP_TYPE_BIT
_FORMAT_BITS = {RecordFormat.COLUMNS: COLUMNS_BIT, RecordFormat.KAFKA: 0}
_TIMESTAMP_BITS = {
    TimestampType.CREATE_TIME: 0,
    TimestampType.LOG_APPEND_TIME: TIMESTAMP_TYPE_BIT,
}
NO_ACCOUNTS: Mapping[int, Account] = MappingProxyType({})
NO_MARKERS: Mapping[int, ControlType] = MappingProxyType({})


class Duplicate(NamedTuple):
    """A batch that stands in the log already. `number`: its place in the request, from 0."""

    number: int
    base_offset: int
    end_offset: int


class Placement(NamedTuple):
    """Batches with their place in the log, and the bytes to write for them.

    `batches` may be empty if there are `duplicates`. `accounts`: generation and digest in batches
    of named producers, by base offset. `markers`: what became of the transactions that they end, by
    base offset. `events`: what they say of scheduled records, in their order.
    """

    buffers: list[Buffer]
    batches: list[FoundBatch]
    length: int
    duplicates: Sequence[Duplicate] = ()
    accounts: Mapping[int, Account] = NO_ACCOUNTS
    markers: Mapping[int, ControlType] = NO_MARKERS
    events: Sequence[ScheduleEvent] = ()

    @property
    def end_offset(self) -> int:
        return self.batches[-1].header.end_offset

    def moved_to(self, position: int) -> Placement:
        """The same batches, from byte `position` on: after a roll they begin another segment."""
        distance = position - self.batches[0].position
        batches = [FoundBatch(at + distance, header) for at, header in self.batches]
        events = [moved(event, distance) for event in self.events]
        return self._replace(batches=batches, events=events)

    def base_offsets(self) -> list[int]:
        """Of every batch of the request, in its order."""
        offsets = [found.header.base_offset for found in self.batches]
        for number, base_offset, _ in self.duplicates:
            offsets.insert(number, base_offset)
        return offsets

    def highest_end_offset(self) -> int:
        """A replica that holds everything before it holds every batch of the request."""
        ends = [duplicate.end_offset for duplicate in self.duplicates]
        return max([*ends, self.end_offset] if self.batches else ends)


def place_produced(
    buffer: Buffer,
    *,
    offset: int,
    position: int,
    leader_epoch: int,
    config: TopicConfig,
    now_ms: int,
    admission: Admission,
    check_scheduled: Callable[[], None] = lambda: None,
) -> Placement:
    """Give the producer's batches the offsets from `offset` on; they will stand at `position`.

    Args:
        check_scheduled: raises the error for a scheduled batch where none may be taken.

    Raises:
        CorruptRecord, InvalidRecord, InvalidTimestamp, MessageTooLarge: nothing was appended.
        RaftmqError: see `Admission.original_offset`.
    """
    try:
        return _placed(
            buffer,
            offset=offset,
            position=position,
            leader_epoch=leader_epoch,
            config=config,
            now_ms=now_ms,
            admission=admission,
            check_scheduled=check_scheduled,
        )
    except CorruptRecord as error:  # `read_header` calls corrupt what is only not taken
        raise _not_taken(memoryview(buffer), error.position) or error from error


def _not_taken(buffer: memoryview, position: int | None) -> RaftmqError | None:
    """The error for a sound batch of too many records; None if the batch is corrupt indeed. A
    producer would send a "corrupt" batch again for ever, a too large one it can split."""
    if position is None or len(buffer) - position < HEADER_SIZE:  # the error names no batch
        return None
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    batch = buffer[position : position + header.size]
    is_many = header.record_count > RECORDS_MAX
    if header.magic != MAGIC or not is_many or len(batch) != header.size:
        return None
    if compute_crc(batch) != header.crc:  # corrupt indeed
        return None
    return MessageTooLarge(
        f"a batch of {header.record_count} records, at most {RECORDS_MAX} are taken: "
        "send smaller batches"
    )


def _placed(
    buffer: Buffer,
    *,
    offset: int,
    position: int,
    leader_epoch: int,
    config: TopicConfig,
    now_ms: int,
    admission: Admission,
    check_scheduled: Callable[[], None],
) -> Placement:
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        buffer = _stamped(buffer, now_ms)  # the only case in which the leader changes records
    view, start = memoryview(buffer), position
    kind = _FORMAT_BITS[config.record_format] | _TIMESTAMP_BITS[config.message_timestamp_type]
    buffers: list[Buffer] = []
    batches: list[FoundBatch] = []
    duplicates: list[Duplicate] = []
    accounts: dict[int, Account] = {}
    events: list[ScheduleEvent] = []
    for at, header in iter_batches(view):
        size, placed = header.size, header.placed(offset, leader_epoch)
        # Control batches fall through to `_check_produced`, which refuses them.
        if header.producer_id != NO_PRODUCER_ID and not header.is_control:
            account = account_of(view, at, header) if is_named(header.producer_id) else None
            original = admission.original_offset(placed, account)
            if original is not None:  # a duplicate: it was checked when it was appended
                end_offset = original + header.record_count
                number = len(batches) + len(duplicates)
                duplicates.append(Duplicate(number, original, end_offset))
                continue
            if account is not None:  # of a named producer
                accounts[offset] = account
        elif header.attributes & TRANSACTIONAL_BIT:
            raise _outside(header)
        _check_produced(header, config, kind, now_ms)
        check_structure(view, at, header)
        if header.attributes & SCHEDULED_BIT:
            check_scheduled()
            events.append(_scheduled(view, at, placed, position, config, now_ms))
        elif header.attributes & COLUMNS_BIT and view[at + DIRECTORY_START] >= MARKED_COUNT_MIN:
            _refuse_marked(view, at)
        buffers.append(pack_prefix(header, base_offset=offset, leader_epoch=leader_epoch))
        buffers.append(view[at + PREFIX_SIZE : at + size])
        batches.append(FoundBatch(position, placed))
        offset, position = placed.end_offset, position + size
    length = position - start
    return _checked(Placement(buffers, batches, length, duplicates, accounts, NO_MARKERS, events))


def _scheduled(
    view: memoryview,
    at: int,
    placed: BatchHeader,
    position: int,
    config: TopicConfig,
    now_ms: int,
) -> Scheduled:
    """What a producer's scheduled batch says, which will stand at `position`.

    Raises:
        InvalidTimestamp: due too late.
        InvalidRecord: a copy, which only brokers make.
    """
    event = event_of(view, at, placed, position)
    if not isinstance(event, Scheduled):
        raise _brokers_own()
    allowed = now_ms + config.delay_max_ms + DELAY_TICK_MS  # producers round up
    if event.batch.due_ms > allowed:
        late = InvalidTimestamp(
            f"due in {_span(event.batch.due_ms - now_ms)} by the broker's clock, over delay.max.ms,"
            f" {_span(config.delay_max_ms)} ({config.delay_max_ms}): send it with a shorter delay,"
            " or raise that key"
        )
        late.allowed = allowed
        raise late
    return event


def _span(milliseconds: int) -> str:
    days, rest = divmod(milliseconds, DAY_MS)
    return f"{days} days {rest / 1000:g} s" if days else f"{rest / 1000:g} s"


def _refuse_marked(buffer: Buffer, position: int) -> None:
    if is_marked(buffer, position):
        raise _brokers_own()


def _brokers_own() -> InvalidRecord:
    return InvalidRecord("deliveries, and copies of scheduled records, are written by brokers only")


def _outside(header: BatchHeader) -> InvalidRecord:
    """The error for the bit of transactions without a producer, or in a control batch."""
    if header.is_control:
        return InvalidRecord("control batches are written by brokers only")
    return InvalidRecord("a batch of a transaction needs a producer id")


def _stamped(buffer: Buffer, now_ms: int) -> bytearray:
    """A copy in which the broker's clock is every record's timestamp (LogAppendTime)."""
    stamped = bytearray(buffer)
    for at, header in iter_batches(buffer):
        batch = stamped[at : at + header.size]
        stamp_log_append_time(batch, now_ms)
        stamped[at : at + header.size] = batch
    return stamped


def _check_produced(header: BatchHeader, config: TopicConfig, kind: int, now_ms: int) -> None:
    """One condition for all valid batches, the fast path; `_refusal` finds which one failed."""
    if not (
        header.batch_length + LENGTH_END <= config.max_message_bytes
        and header.last_offset_delta == header.record_count - 1
        and header.attributes & _KIND_BITS == kind
        and header.max_timestamp <= now_ms + config.message_timestamp_after_max_ms
    ):
        raise _refusal(header, config, now_ms)


def _refusal(header: BatchHeader, config: TopicConfig, now_ms: int) -> RaftmqError:
    if header.size > config.max_message_bytes:
        too_large = MessageTooLarge(
            f"batch of {header.size} bytes; max.message.bytes is {config.max_message_bytes}: "
            "send smaller batches or raise it for the topic"
        )
        too_large.allowed = config.max_message_bytes
        return too_large
    # Only compaction leaves gaps, which runs in no producer.
    if header.last_offset_delta != header.record_count - 1:
        return InvalidRecord("a producer's batch must have offsets without gaps")
    if header.is_control:
        return InvalidRecord("control batches are written by brokers only")
    sent = RecordFormat.COLUMNS if header.is_columns else RecordFormat.KAFKA
    # A topic has one format, so that all its readers can decode it.
    if sent is not config.record_format:
        return InvalidRecord(
            f"records encoded as {sent}, the topic's record.format is {config.record_format}: write"
            f" to a topic with record.format={sent}, which is the encoding of this producer"
        )
    if header.timestamp_type is not config.message_timestamp_type:
        return InvalidRecord("only a broker stamps records with its own time")
    ahead = InvalidTimestamp(
        f"timestamp {header.max_timestamp} is over message.timestamp.after.max.ms "
        f"({config.message_timestamp_after_max_ms}) ahead of the broker's clock ({now_ms})"
    )
    ahead.allowed = now_ms + config.message_timestamp_after_max_ms
    return ahead


def place_replicated(
    buffer: Buffer, *, offset: int, position: int, epoch: int, leader_epoch: int
) -> Placement:
    """Check that the leader's bytes continue a log that ends at `offset` in epoch `epoch`.

    Args:
        leader_epoch: the epoch in which they were fetched; no batch may be from a later one.

    Raises:
        CorruptRecord: nothing was appended; fetch again. Its offset is that of the first batch
            that is not right.
    """
    start, first = position, offset
    batches: list[FoundBatch] = []
    accounts: dict[int, Account] = {}
    markers: dict[int, ControlType] = {}
    events: list[ScheduleEvent] = []
    view = memoryview(buffer)
    try:
        for at, header in iter_batches(buffer):
            _check_place(header, at, offset, epoch, leader_epoch)
            batches.append(FoundBatch(position, header))
            account = account_of(buffer, at, header) if is_named(header.producer_id) else None
            if account is not None:  # of a named producer
                accounts[offset] = account
            # One comparison for batches of records.
            if header.attributes & CONTROL_BIT:
                _note_control(view, at, header, markers, events)
            elif header.attributes & COLUMNS_BIT and header.size > DIRECTORY_START:
                is_possible = view[at + DIRECTORY_START] >= MARKED_COUNT_MIN
                event = event_of(view, at, header, position) if is_possible else None
                if event is not None:
                    events.append(event)
            offset, epoch = header.end_offset, header.leader_epoch
            position += header.size
    except CorruptRecord as error:  # again, with offset and origin for the leader's rot check
        where = f"what the leader sent from offset {first} on, in the batch of offset {offset}"
        raise CorruptRecord(
            error.what, position=error.position, where=where, offset=offset
        ) from None
    length = position - start
    return _checked(Placement([buffer], batches, length, (), accounts, markers, events))


def _note_control(
    view: memoryview,
    at: int,
    header: BatchHeader,
    markers: dict[int, ControlType],
    events: list[ScheduleEvent],
) -> None:
    if header.is_marker:
        kind = marker_of(view, at, header)
        if kind is not None:
            markers[header.base_offset] = kind
            event = decision(header, kind)
            if event is not None:
                events.append(event)
    elif header.producer_id == NO_PRODUCER_ID:  # else a fence
        cancel = event_of(view, at, header, 0)
        if cancel is not None:
            events.append(cancel)


def _check_place(
    header: BatchHeader, position: int, offset: int, epoch: int, leader_epoch: int
) -> None:
    if header.base_offset != offset:  # a gap or an overlap: a late or wrong answer
        what = f"base offset {header.base_offset}, expected {offset}"
        raise CorruptRecord(what, position=position)
    # Epochs never fall, and a leader cannot have batches of an epoch after its own.
    if not epoch <= header.leader_epoch <= leader_epoch:
        what = f"leader epoch {header.leader_epoch}, expected {epoch} to {leader_epoch}"
        raise CorruptRecord(what, position=position)


def check_named_format(config: TopicConfig) -> None:
    """
    Raises:
        InvalidRecord: named producers cannot write to such a topic.
    """
    # Kafka's encoding has no place for generation and digest.
    if config.record_format is not RecordFormat.COLUMNS:
        raise InvalidRecord(
            f"the topic's record.format is {config.record_format}: named producers need columns; "
            "write to another topic, or without a name"
        )


def place_fence(
    following: ProducerState, *, producer_id: int, place: BatchStart, leader_epoch: int, now_ms: int
) -> Placement:
    """A fence with the state `following`, which holds behind it; it will stand at `place`."""
    offset, position = place
    account = Account(following.generation, following.digest, following.partition_count)
    batch = encode_fence(
        account,
        producer_id=producer_id,
        producer_epoch=following.epoch,
        next_sequence=following.next_sequence,
        timestamp=now_ms,
        base_offset=offset,
        leader_epoch=leader_epoch,
    )
    found = FoundBatch(position, read_header(batch))
    return Placement([batch], [found], len(batch), (), {offset: account})


def place_markers(
    wanted: Sequence[MarkerWanted],
    *,
    place: BatchStart,
    leader_epoch: int,
    now_ms: int,
    config: TopicConfig,
) -> Placement:
    """These markers, one behind the other; the first will stand at `place`. `wanted` is not empty.

    Each carries the epoch after its transaction's (Kafka: KIP-890), so that the batch header alone
    tells where the next transaction begins.
    """
    offset, position = place
    buffers: list[Buffer] = []
    batches: list[FoundBatch] = []
    markers: dict[int, ControlType] = {}
    events: list[ScheduleEvent] = []
    for producer_id, producer_epoch, kind in wanted:
        batch = encode_control_batch(
            kind=kind,
            coordinator_epoch=0,  # no coordinator writes markers: the metadata decide
            producer_id=producer_id,
            producer_epoch=producer_epoch + 1,
            timestamp=now_ms,
            base_offset=offset,
            leader_epoch=leader_epoch,
        )
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            stamp_log_append_time(batch, now_ms)
        header = read_header(batch)
        buffers.append(batch)
        batches.append(FoundBatch(position, header))
        markers[offset] = kind
        event = decision(header, kind)
        if event is not None:
            events.append(event)
        offset, position = header.end_offset, position + header.size
    length = position - place.position
    return Placement(buffers, batches, length, markers=markers, events=events)


def place_settling(
    made: Sequence[bytearray],
    *,
    place: BatchStart,
    leader_epoch: int,
    now_ms: int,
    config: TopicConfig,
) -> Placement:
    """Deliveries, copies carried forward and cancels, made by the leader, whole and without an
    offset yet; the first will stand at `place`. `made` is not empty.
    """
    offset, position = place
    buffers: list[Buffer] = []
    batches: list[FoundBatch] = []
    events: list[ScheduleEvent] = []
    for batch in made:
        # A delivery has the broker's time in any topic, a copy what its original has.
        header = read_header(batch)
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME and header.is_control:
            stamp_log_append_time(batch, now_ms)
            header = read_header(batch)
        header = header.placed(offset, leader_epoch)
        batch[:PREFIX_SIZE] = pack_prefix(header, base_offset=offset, leader_epoch=leader_epoch)
        event = event_of(batch, 0, header, position)
        assert event is not None, "it settles something"
        buffers.append(batch)
        batches.append(FoundBatch(position, header))
        events.append(event)
        offset, position = header.end_offset, position + header.size
    return Placement(buffers, batches, position - place.position, events=events)


def _checked(placement: Placement) -> Placement:
    count = len(placement.batches) + len(placement.duplicates)
    if not count:
        raise CorruptRecord(f"no batch: an append needs at least {LENGTH_END} bytes", position=0)
    # With duplicates the answer names the offset of each batch, and has room for so many.
    if count > BATCHES_MAX and placement.duplicates:
        raise InvalidRecord(f"{count} batches, {BATCHES_MAX} are allowed: send fewer in a request")
    return placement
