"""`Consumer.reject` and `retry`: a group's topics for what is moved, and a consumer's producer.

Owns what is made on first use: each topic, once for the group, and the producer, once for the
consumer, which ends with it. Invariant: a record is never reported as moved before it is stored by
all in-sync replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio

from raftmq.client.administration.questions import find_topic
from raftmq.client.administration.topics import make_topic
from raftmq.client.consumer.record import as_sent
from raftmq.client.dead_letters.moves import check_record
from raftmq.errors import (
    InvalidRequest,
    InvalidTransaction,
    MessageTooLarge,
    UnknownTopicOrPartition,
)
from raftmq.topic_config import MIB, TOPIC_KEYS
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from raftmq.client.consumer.group_consumption import GroupConsumption
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.dead_letters.moves import Move
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.topics import TopicDescription

# Any record of its topic of origin has room, with its headers; but for the largest of topics that
# take as much as any topic can.
HEADROOM_BYTES = 64 << 10
MAX_BYTES_KEY = "max.message.bytes"
MAX_BYTES = next(key.maximum for key in TOPIC_KEYS if key.name == MAX_BYTES_KEY)
PRODUCER_OPTIONS: dict[str, Any] = {
    "acks": "all",
    "idempotence": True,
    "linger_ms": 0,  # the program waits for each
    "max_request_size": MAX_BYTES,  # the topic decides
    "buffer_memory": 2 * MAX_BYTES,
}
TOPIC_SECONDS_MAX = 30.0  # to look for the topic, or to make it: covers a new controller
CLOSE_SECONDS_MAX = 5.0  # for a record whose wait was cancelled


class LetterProducer(Protocol):
    """The part of a Producer that is used here; its module imports this package."""

    async def open(self) -> Self: ...
    async def aclose(self) -> None: ...
    async def enqueue(
        self,
        topic: str,
        value: Any,  # noqa: ANN401
        *,
        key: Any = None,  # noqa: ANN401
        headers: Any = None,  # noqa: ANN401
        tags: Any = None,  # noqa: ANN401
        delay: Any = None,  # noqa: ANN401
        on_delivery: Any = None,  # noqa: ANN401
    ) -> Awaitable[RecordMetadata]: ...


# -- The topic ------------------------------------------------------------------------------------


async def ensure_topic(cluster: Cluster, move: Move, source: str) -> None:
    """Make the topic of a move, if it is not there.

    Args:
        source: a topic that the group reads, for the number of replicas and the size of records.
    """
    name, deadline = move.topic, cluster.now() + TOPIC_SECONDS_MAX
    # Known to be there: no request. A topic that is gone since is found missing when it is used.
    if cluster.routes.use(name) and (known := cluster.routes.topic(name)) and known.topic_id:
        return
    try:
        await find_topic(cluster, name, deadline=deadline)
    except UnknownTopicOrPartition:
        await _make(cluster, move, source, deadline)


async def _make(cluster: Cluster, move: Move, source: str, deadline: float) -> None:
    try:
        found: TopicDescription | None = await find_topic(cluster, source, deadline=deadline)
    except UnknownTopicOrPartition:  # deleted since the record was read
        found = None
    replicas = [len(one.replicas) for one in found.partitions] if found else []
    size = int((found.configs.get(MAX_BYTES_KEY) if found else None) or MIB) + HEADROOM_BYTES
    await make_topic(
        cluster,
        move.topic,
        partition_count=1,
        replication_factor=max(replicas, default=ABSENT),
        configs={
            "retention.ms": str(move.retention_ms),
            MAX_BYTES_KEY: str(min(size, MAX_BYTES)),
        },
        is_existing_fine=True,  # another member may make it now
        deadline=deadline,
    )


# -- The records ----------------------------------------------------------------------------------


def no_room(record: AnyRecord, topic: str, error: MessageTooLarge) -> MessageTooLarge:
    """Says what to do with a record that the topic to which it is moved does not take."""
    return MessageTooLarge(
        f"{record.topic}-{record.partition}, offset {record.offset}: not moved, with its "
        f"headers it is too large for {topic}: raise {MAX_BYTES_KEY} there; {error}"
    )


class MovedRecords:
    """Sends the records that one consumer moves.

    Args:
        make_producer: of the consumer's client, with such options.
    """

    def __init__(
        self, cluster: Cluster, make_producer: Callable[[dict[str, Any]], LetterProducer] | None
    ) -> None:
        self._cluster, self._make_producer = cluster, make_producer
        self._lock: anyio.Lock | None = None  # only a running loop has one
        self._producer: LetterProducer | None = None

    async def send(self, member: GroupConsumption, record: AnyRecord, move: Move) -> RecordMetadata:
        """Raises IllegalGeneration: the partition is not the member's any more; nothing is sent."""
        member.commits.positions_of(record)
        await ensure_topic(self._cluster, move, record.topic)
        producer = await self._opened()
        member.commits.positions_of(record)  # both may have taken long
        sent = as_sent(record)
        try:
            delivery = await producer.enqueue(
                move.topic,
                sent.value,
                key=sent.key,
                headers=move.headers,
                tags=sent.tags,
                delay=move.delay,
                on_delivery=_pass,  # told here, or to a wait that was cancelled
            )
            return await delivery
        except MessageTooLarge as problem:
            raise no_room(record, move.topic, problem) from problem
        except UnknownTopicOrPartition:  # deleted: the next call makes it anew
            self._cluster.routes.doubt(move.topic)
            raise

    async def close(self) -> None:
        """What was handed in is waited for, a few seconds."""
        if self._producer is not None:
            with anyio.move_on_after(CLOSE_SECONDS_MAX):
                await self._producer.aclose()

    async def _opened(self) -> LetterProducer:
        self._lock = self._lock or anyio.Lock()
        async with self._lock:  # two tasks may reject their first records at the same time
            if self._producer is None:
                assert self._make_producer is not None, "a consumer that no client has made"
                # Cancelled, it is closed again.
                self._producer = await self._make_producer(PRODUCER_OPTIONS).open()
        return self._producer


def _pass(_error: object, _metadata: object) -> None:
    pass


# -- The calls ------------------------------------------------------------------------------------


class Moving:
    """The part of a consumer that sets records aside, and has them tried again; and that says how
    many processes they have ended.
    """

    _moved: MovedRecords
    _membership: GroupConsumption | None
    _subscription: Subscription

    async def reject(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
    ) -> RecordMetadata:
        """Set a record aside: send it to the dead letters of the group, as it was sent.

        Returns once the dead letter is stored, with acks="all". The record is done then as any
        other that was handed out, and is committed as the commit mode says: at least once, so a
        process that dies in between leaves a second dead letter. In a transaction it is
        `Transaction.reject`.

        The topic is `__dead.` and the name of the group, and made on first use. Headers say where
        the record stood (`raftmq.origin`), `raftmq.attempts`, `raftmq.error` and `raftmq.group`.

        Args:
            record: as it was handed out, not a copy; or the `record` of an UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before it was
                moved to the topic of retries is added.

        Returns:
            Topic, partition and offset of the dead letter.

        Raises:
            InvalidRequest: the consumer is not a member of a group, or `record` is a copy, or one
                of the group's own dead letters. Definite.
            InvalidTransaction: with `commit="transaction"`, where the transaction sets records
                aside. Definite.
            IllegalGeneration: the partition is not this member's any more, so another one reads the
                record again; nothing was sent. Definite.
            MessageTooLarge: with its headers it is too large for the topic of dead letters.
                Definite.
            OutcomeUnknown: the dead letter may be stored, or not; reject it again. Indefinite.
            RaftmqError: the topic cannot be made, or the record not be stored: it is not set
                aside. `error.definite` says whether that is certain.
        """
        member = self._member_for(record, "reject")
        move = member.moves.rejected(record, error, attempts=attempts)
        return await self._moved.send(member, record, move)

    async def retry(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
    ) -> RecordMetadata:
        """Have a record tried again, later: send it to the topic of retries of the group, as it was
        sent, with a delay that the policy of the consumer decides (`retry=`). After its last
        attempt it goes to the dead letters.

        Returns once it is stored, with acks="all". The record is done then as any other that was
        handed out, and is committed as the commit mode says: at least once, so a process that dies
        in between leaves it in both topics. In a transaction it is `Transaction.retry`.

        The topic is `__retry.` and the name of the group, made on first use, and read by all
        members that have a policy. Headers say where the record stood first (`raftmq.origin`, also
        `record.origin`), `raftmq.attempts`, `raftmq.error` and `raftmq.group`. The order of its key
        is given up.

        Args:
            record: as it was handed out, not a copy; or the `record` of an UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before, as its
                header says when it comes back, is added.

        Returns:
            Topic, partition and offset where it stands now.

        Raises:
            InvalidRequest: the consumer is not a member of a group, or has no policy, or `record`
                is a copy. Definite.
            InvalidTransaction: with `commit="transaction"`, where the transaction moves records.
                Definite.
            IllegalGeneration: the partition is not this member's any more, so another one reads the
                record again; nothing was sent. Definite.
            MessageTooLarge: with its headers it is too large for the topic. Definite.
            OutcomeUnknown: it may be stored, or not; call it again. Indefinite.
            RaftmqError: the topic cannot be made, or the record not be stored: it is not moved.
                `error.definite` says whether that is certain.
            BaseException: `error` itself, after the last attempt, where the policy has no dead
                letters; InvalidRequest, where it is no exception. Nothing was sent.
        """
        member = self._member_for(record, "retry")
        move = member.moves.retried(record, error, attempts=attempts)
        return await self._moved.send(member, record, move)

    def crashes(self, topic: str, partition: int) -> int:
        """How many members of the group have crashed with the first record of a partition that is
        not committed: their sessions have ended while they had it, and they had not left. 0 again
        once the committed offset moves.

        It is as this member was told when it got the partition. Up to 2, any record that they had
        in hand may have been the cause. More is counted only of a record that was the only one in
        hand: of `process`, and of consumers with `retry` or with `commit="record"`, which hand out
        one at a time then. `retry` with dead letters sets aside what has reached its attempts.

        Raises:
            InvalidConfig: the partition is not read by this consumer, or it is not in a group.
                Definite.
        """
        member = self._group("crashes").member
        self._subscription.find(topic, partition)
        return member.offsets.crashes((topic, partition))

    def _member_for(self, record: object, call: str) -> GroupConsumption:
        member = self._membership
        if member is None or not member.is_dealt:
            what = "dead letters" if call == "reject" else "retries"
            raise InvalidRequest(
                f"{call}: only a member of a group has {what}: give the consumer "
                'group="billing", and topics or a pattern'
            )
        member.check_loop()
        self._check_open_or_leaving()
        check_record(record, call)
        if member.commits_by_transaction:
            raise InvalidTransaction(
                f'{call}: with commit="transaction" a record is moved in the transaction that '
                f"commits its offset: await tx.{call}(record, error)"
            )
        return member

    def _check_open_or_leaving(self) -> None:
        """Raises Closed."""
        raise NotImplementedError

    def _group(self, call: str) -> GroupConsumption:
        """Raises InvalidConfig: the consumer is not in a group."""
        raise NotImplementedError
