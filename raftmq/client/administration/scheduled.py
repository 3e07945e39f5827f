"""`ScheduledCalls`: the public admin calls on scheduled records: what is pending, and cancels.

Asked of partition leaders, side by side. A cancel may be sent twice: what a first attempt of a call
has cancelled, a later one finds cancelled, and that is no refusal then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration import checks
from raftmq.client.administration.groups.checks import find_names
from raftmq.client.administration.offsets import partitions_of
from raftmq.client.administration.questions import find_topic, id_of, settle
from raftmq.client.moments import EPOCH
from raftmq.client.producer.batch import RecordMetadata
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import (
    CannotCancel,
    CorruptRecord,
    ErrorCode,
    InvalidRequest,
    RaftmqError,
    ServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_for,
)
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.produce import split_payload
from raftmq.wire.messages.scheduled import (
    ENTRIES_MAX,
    HANDLES_MAX,
    CancelScheduled,
    CancelScheduledReply,
    ListScheduled,
    ListScheduledReply,
)
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.wire.batch.columns import Key
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.record_headers import Headers
    from raftmq.wire.batch.records import Record
    from raftmq.wire.messages.scheduled import RecordCancelled, ScheduledRow


# -- Results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduledRecord:
    """A record that is to be delivered.

    Attributes:
        handle: names it for a cancel.
        due: when, in milliseconds since 1970-01-01 UTC; see `due_time`.
        timestamp: when it was made. None, as what follows, where its batch cannot be read now, as
            where it rots: then the leader has it repaired.
        value_size: bytes of the value; None also where it has none.
        is_undecided: its transaction is open: it is delivered if that is committed.
    """

    handle: ScheduleHandle
    due: int
    timestamp: int | None = None
    key: Key = None
    headers: Headers = ()
    tags: Tags = ()
    value_size: int | None = None
    is_undecided: bool = False

    @property
    def due_time(self) -> datetime:
        """`due` as a datetime in UTC. Raises OverflowError after the year 9999."""
        return EPOCH + timedelta(milliseconds=self.due)


@dataclass(frozen=True, slots=True)
class PartitionSchedule:
    """What is pending in one partition; what open transactions have scheduled does not count.

    Attributes:
        batch_count, batch_bytes: of the batches that hold the records, as they were sent.
        next_due: of the record that is delivered next, in milliseconds; None: nothing is pending.
    """

    partition: int
    batch_count: int
    batch_bytes: int
    next_due: int | None


@dataclass(frozen=True, slots=True)
class TopicSchedule:
    """What is pending in a topic, or in one of its partitions.

    Attributes:
        records: by due time, as many as were asked for; of each partition those that stand first
            in its log.
        is_complete: there are no others.
    """

    name: str
    partitions: tuple[PartitionSchedule, ...]
    records: tuple[ScheduledRecord, ...]
    is_complete: bool

    @property
    def batch_count(self) -> int:
        return sum(one.batch_count for one in self.partitions)

    @property
    def batch_bytes(self) -> int:
        return sum(one.batch_bytes for one in self.partitions)

    @property
    def next_due(self) -> int | None:
        due = (one.next_due for one in self.partitions if one.next_due is not None)
        return min(due, default=None)


# -- Calls ----------------------------------------------------------------------------------------


class ScheduledCalls:
    """The calls of `mq.admin` on scheduled records; see `Admin` for what holds for all calls."""

    def __init__(self, cluster: Cluster, *, timeout_seconds: float) -> None:
        self._cluster, self._timeout_seconds = cluster, timeout_seconds

    async def cancel_scheduled(
        self, handles: ScheduleHandle | Iterable[ScheduleHandle]
    ) -> dict[ScheduleHandle, RaftmqError]:
        """Cancel records that are scheduled: consumers never get them. Answered once that holds for
        every later leader.

        Args:
            handles: one, or several of any topics. Each record is cancelled by itself.

        Returns:
            Of several handles those whose records are not, or not certainly, cancelled, and why;
            nothing for a single one.

        Raises:
            CannotCancel: of a single handle: the record was delivered, or cancelled before, its
                transaction was aborted, or there is no such scheduled record. Definite.
            UnknownTopicId: likewise: its topic was deleted. Definite.
            InvalidRequest: a handle was made by hand, of something else. Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: it may be cancelled, or soon be. Indefinite.
        """
        deadline = anyio.current_time() + self._timeout_seconds
        if isinstance(handles, ScheduleHandle):
            failed = await cancel(self._cluster, check_handles((handles,)), deadline=deadline)
            if handles in failed:
                raise failed[handles]
            return {}
        return await cancel(self._cluster, check_handles(handles), deadline=deadline)

    async def scheduled(
        self, topic: str, partition: int | None = None, *, limit: int = 100
    ) -> TopicSchedule:
        """What is scheduled in a topic and not delivered yet.

        Args:
            partition: only this one; None: all of them.
            limit: so many records are listed at the most; 0: none, only the counts.

        Returns:
            Counts, the next due time, and records with their handles.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            LeaderNotAvailable: some partition has no leader. Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
        """
        checks.check_topic(topic)
        wanted = None if partition is None else checks.check_partitions((partition,))
        if checks.check_whole("limit", limit) < 0:
            raise InvalidRequest(f"limit = {limit}: expected 0 or more")
        deadline = anyio.current_time() + self._timeout_seconds
        numbers = await partitions_of(self._cluster, topic, wanted, deadline=deadline)
        asks = [
            partial(_listed, self._cluster, topic, one, limit, deadline=deadline) for one in numbers
        ]
        found: list[_Listed] = []
        for outcome in await settle(asks):
            if isinstance(outcome, RaftmqError):
                raise outcome
            found.append(outcome)
        records = [record for one in found for record in one.records]
        records.sort(key=lambda record: (record.due, record.handle))
        return TopicSchedule(
            topic,
            tuple(one.schedule for one in found),
            tuple(records[:limit]),
            all(one.is_complete for one in found) and len(records) <= limit,
        )


def check_handles(handles: object) -> tuple[ScheduleHandle, ...]:
    """Each once. Raises TypeError, InvalidRequest."""
    # What is no list may be iterable, too.
    if isinstance(handles, (str, bytes, RecordMetadata)) or not isinstance(handles, Iterable):
        handles = (handles,)
    found = tuple(dict.fromkeys(handles))
    wrong = [one for one in found if not isinstance(one, ScheduleHandle)]
    if wrong:
        raise TypeError(
            f"{wrong[0]!r} is {kind_of(wrong[0])}: expected a ScheduleHandle, as"
            " `metadata.schedule_handle` is, or ScheduleHandle.parse(text)"
        )
    if not found:
        raise InvalidRequest("no handle is given: nothing to cancel")
    for handle in found:
        handle.check()
    return found


# -- Cancels --------------------------------------------------------------------------------------


async def cancel(
    cluster: Cluster, handles: Sequence[ScheduleHandle], *, deadline: float
) -> dict[ScheduleHandle, RaftmqError]:
    """The handles whose records are not cancelled, and why."""
    together: dict[tuple[bytes, int], list[ScheduleHandle]] = {}
    for handle in handles:
        together.setdefault(handle[:2], []).append(handle)
    portions = [
        group[start : start + HANDLES_MAX]
        for group in together.values()
        for start in range(0, len(group), HANDLES_MAX)
    ]
    asks = [partial(_cancel_portion, cluster, one, deadline=deadline) for one in portions]
    failed: dict[ScheduleHandle, RaftmqError] = {}
    for portion, outcome in zip(portions, await settle(asks), strict=True):
        if isinstance(outcome, RaftmqError):
            failed |= {handle: outcome.copied() for handle in portion}
        else:
            failed |= outcome
    return failed


async def _cancel_portion(
    cluster: Cluster, handles: Sequence[ScheduleHandle], *, deadline: float
) -> dict[ScheduleHandle, RaftmqError]:
    """`handles`: of one partition."""
    topic_id, number, _ = handles[0]
    name = await _name_of(cluster, topic_id, number, deadline=deadline)
    offsets = tuple(handle.offset for handle in handles)
    may_have_happened = False

    async def attempt(place: LeaderPlace) -> tuple[RecordCancelled, ...] | RaftmqError:
        nonlocal may_have_happened
        if place.topic_id != topic_id:  # deleted meanwhile, and another one has its name
            return _deleted(topic_id)
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        body = CancelScheduled(topic_id, number, offsets, place.leader_epoch, timeout_ms)
        try:
            return await _ask_cancel(cluster, place, body, deadline=deadline)
        except RaftmqError as error:
            may_have_happened = may_have_happened or not error.definite
            raise

    told = await cluster.at_leader(
        name, number, attempt, deadline=deadline, repeats=RepeatEffect.ACCEPTED
    )
    if isinstance(told, RaftmqError):
        raise told
    failed: dict[ScheduleHandle, RaftmqError] = {}
    for handle, one in zip(handles, told, strict=True):
        # By an earlier attempt, as far as anybody can tell: it is what was asked for.
        is_own = may_have_happened and one.reason == "cancelled"
        if one.error and not is_own:
            failed[handle] = _refusal(one, name, handle)
    return failed


async def _ask_cancel(
    cluster: Cluster, place: LeaderPlace, body: CancelScheduled, *, deadline: float
) -> tuple[RecordCancelled, ...]:
    """Raises RaftmqError: nothing is decided, or it is not known."""
    answer = await cluster.ask(place.leader, body, deadline=deadline)
    reply: CancelScheduledReply = answer.body
    _check_reply(cluster, place, reply)
    if len(reply.records) != len(body.offsets):
        raise ServerError(
            f"broker {place.leader} was asked to cancel {len(body.offsets)} records and told of"
            f" {len(reply.records)}"
        )
    # Of none of them is anything decided, where part of the log cannot be read.
    for one in reply.records:
        if one.error not in (ErrorCode.NONE, ErrorCode.CANNOT_CANCEL):
            raise error_for(one.error, one.message)
    return reply.records


def _refusal(told: RecordCancelled, topic: str, handle: ScheduleHandle) -> CannotCancel:
    error = CannotCancel(f"{topic}-{handle.partition} offset {handle.offset}: {told.message}")
    error.topic, error.partition, error.reason = topic, handle.partition, told.reason
    return error


async def _name_of(cluster: Cluster, topic_id: bytes, partition: int, *, deadline: float) -> str:
    """The name of the topic, once that is certain to have the partition.

    Raises:
        UnknownTopicId: it was deleted.
        UnknownTopicOrPartition: it has no such partition.
    """
    name = cluster.routes.name_of(topic_id)
    if name is None:
        name = (await find_names(cluster, deadline=deadline)).name_of(topic_id)
    if name == topic_id.hex():  # nobody knows it
        raise _deleted(topic_id)
    try:
        found = await find_topic(cluster, name, deadline=deadline)
    except UnknownTopicOrPartition:
        raise _deleted(topic_id) from None
    if id_of(found) != topic_id:
        raise _deleted(topic_id)
    if partition >= found.partition_count:
        raise UnknownTopicOrPartition(f"topic {name} has no partition {partition}")
    return name


def _deleted(topic_id: bytes) -> UnknownTopicId:
    return UnknownTopicId(f"there is no topic with the id {topic_id.hex()}: it was deleted")


def _check_reply(
    cluster: Cluster, place: LeaderPlace, reply: CancelScheduledReply | ListScheduledReply
) -> None:
    """Raises its error, and takes in who leads."""
    if reply.error:
        cluster.routes.on_leader(
            place.topic_id, place.partition, leader=reply.leader, leader_epoch=reply.leader_epoch
        )
        raise error_for(reply.error, reply.message)


# -- Lists ----------------------------------------------------------------------------------------


@dataclass
class _Listed:
    """Of one partition."""

    schedule: PartitionSchedule
    records: list[ScheduledRecord]
    is_complete: bool = False


async def _listed(
    cluster: Cluster, topic: str, partition: int, limit: int, *, deadline: float
) -> _Listed:
    found: _Listed | None = None
    start = 0
    while True:
        left = limit - len(found.records) if found is not None else limit
        page_limit = min(left, ENTRIES_MAX)  # each batch has a record at least
        attempt = partial(_ask_page, cluster, start, page_limit, deadline=deadline)
        reply, records = await cluster.at_leader(
            topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS
        )
        if found is None:
            next_due = None if reply.next_due_ms == ABSENT else reply.next_due_ms
            schedule = PartitionSchedule(
                partition, reply.pending_count, reply.pending_bytes, next_due
            )
            found = _Listed(schedule, [])
        found.records += records
        if reply.next_offset == ABSENT:
            found.is_complete = limit > 0 or not reply.pending_count
            return found
        if len(found.records) >= limit:
            return found
        if reply.next_offset <= start:  # a faulty broker must not make this loop for ever
            raise ServerError(f"pages of what is scheduled in {topic}-{partition} lead nowhere")
        start = reply.next_offset


async def _ask_page(
    cluster: Cluster, start: int, limit: int, place: LeaderPlace, *, deadline: float
) -> tuple[ListScheduledReply, list[ScheduledRecord]]:
    body = ListScheduled(place.topic_id, place.partition, start, limit, place.leader_epoch)
    answer = await cluster.ask(place.leader, body, deadline=deadline)
    reply: ListScheduledReply = answer.body
    _check_reply(cluster, place, reply)
    batches = split_payload([entry.length for entry in reply.entries], answer.payload)
    records = []
    for entry, data in zip(reply.entries, batches, strict=True):
        records += _records_of(place, entry, data)
    return reply, records


def _records_of(place: LeaderPlace, entry: ScheduledRow, data: memoryview) -> list[ScheduledRecord]:
    """Those that are not cancelled."""
    left_out = frozenset(entry.left_out)
    contents = _contents(entry, data)
    records = []
    for delta in range(entry.record_count):
        if delta in left_out:
            continue
        handle = ScheduleHandle(place.topic_id, place.partition, entry.first_offset + delta)
        one = contents.get(entry.base_offset + delta)
        if one is None:
            records.append(ScheduledRecord(handle, entry.due_ms, is_undecided=entry.is_undecided))
        else:
            size = None if one.value is None else len(one.value)
            records.append(
                ScheduledRecord(
                    handle,
                    entry.due_ms,
                    one.timestamp,
                    one.key,
                    one.headers,
                    one.tags,
                    size,
                    entry.is_undecided,
                )
            )
    return records


def _contents(entry: ScheduledRow, data: memoryview) -> dict[int, Record]:
    """Records by their offset; none where the batch is not what it claims to be."""
    try:
        batch = RecordBatch.decode(bytes(data)) if data else None
        if batch is None or batch.header.base_offset != entry.base_offset:
            return {}
        return {record.offset: record for record in batch.records()}
    except CorruptRecord:
        return {}
