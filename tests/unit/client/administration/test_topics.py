"""Topics through any broker: made, deleted, described, waited for."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.administration.questions import find_topic
from raftmq.client.administration.topics import (
    create_topic,
    delete_topic,
    make_topic,
    wait_leaders,
)
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    InvalidRequest,
    LeaderNotAvailable,
    OutcomeUnknown,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    Unreachable,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import TopicOutcome
from raftmq.wire.messages.offsets import FoundOffset, ListOffsets, ListOffsetsReply
from raftmq.wire.messages.topics import (
    CreateTopics,
    CreateTopicsReply,
    Cursor,
    DeleteTopics,
    DeleteTopicsReply,
    DescribeTopics,
    DescribeTopicsReply,
    PartitionDescription,
    TopicCreated,
    TopicDescription,
)
from tests.producing import produce
from tests.unit.client.administration.bureau import open_bureau
from tests.unit.client.world import World, batch, never, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.routing.cluster import Cluster
    from tests.unit.client.administration.bureau import Bureau
    from tests.unit.client.world import Broker

PAGE = 2  # partitions
LOST = object()


def within(seconds: float) -> float:
    """The deadline of a call that begins now."""
    return trio.current_time() + seconds


class Office:
    """What brokers do about topics, apart from their logs.

    Attributes:
        errors: one for each of the next changes; LOST: done, and the connection ends.
        leaders: of new topics, one for each partition.
        page: what every description consists of, in place of the truth.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.errors: list[Any] = []
        self.leaders = [1, 2, 1]
        self.page: Reply | None = None
        for broker in world.brokers.values():
            broker.handlers |= {
                CreateTopics: lambda _c, body, _p, b=broker: self._create(b, body),
                DeleteTopics: lambda _c, body, _p, b=broker: self._delete(b, body),
                DescribeTopics: lambda _c, body, _p, b=broker: self._describe(b, body),
            }

    def count(self, kind: type[Any]) -> int:
        return sum(broker.count(kind) for broker in self.world.brokers.values())

    def _create(self, broker: Broker, body: CreateTopics) -> Any:
        (wanted,) = body.topics
        error = self._next_error()
        if wanted.name in self.world.topics:
            error = ErrorCode.TOPIC_ALREADY_EXISTS
        if error in (ErrorCode.NONE, LOST):
            topic = self.world.add_topic(wanted.name, *self.leaders)
            created = TopicCreated(wanted.name, 0, "", topic.topic_id, len(self.leaders), 1)
        else:
            created = TopicCreated(wanted.name, error, error.name)
        return self._answer(broker, error, Reply(CreateTopicsReply((created,))))

    def _delete(self, broker: Broker, body: DeleteTopics) -> Any:
        (topic_id,) = body.topics
        error = self._next_error()
        if error in (ErrorCode.NONE, LOST):
            found = [n for n, topic in self.world.topics.items() if topic.topic_id == topic_id]
            del self.world.topics[found[0]]
            self.world.version += 1
        outcome = TopicOutcome(topic_id, 0 if error is LOST else error, "")
        return self._answer(broker, error, Reply(DeleteTopicsReply((outcome,))))

    def _describe(self, broker: Broker, body: DescribeTopics) -> Reply:
        if self.page is not None:
            return self.page
        (name,) = body.topics
        topic = self.world.topics.get(name)
        if topic is None or broker.behind is not None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return Reply(DescribeTopicsReply((TopicDescription(name, code, f"no {name!r}"),)))
        first = body.first.partition if body.first else 0
        count = len(topic.partitions)
        page = tuple(
            PartitionDescription(number, topic.partitions[number].leader)
            for number in range(first, min(first + PAGE, count))
        )
        found = TopicDescription(name, 0, "", topic.topic_id, count, page, {"retention.ms": "1"})
        following = Cursor(name, first + PAGE) if first + PAGE < count else None
        return Reply(DescribeTopicsReply((found,), following))

    def _next_error(self) -> Any:
        return self.errors.pop(0) if self.errors else ErrorCode.NONE

    def _answer(self, broker: Broker, error: Any, reply: Reply) -> Any:
        if error is not LOST:
            return reply
        broker.hang_up()
        return never()


@asynccontextmanager
async def open_office(
    world: World | None = None,
) -> AsyncIterator[tuple[World, Office, Cluster]]:
    world = world or World(2)
    office = Office(world)
    async with open_world(world), world.client() as client:
        yield world, office, client


async def test_a_topic_is_made_and_used(autojump_clock: MockClock) -> None:
    """The settings arrive as they were given; afterwards there is somebody to produce to."""
    async with open_office() as (_, office, client):
        created = await create_topic(
            client,
            "u",
            partition_count=3,
            replication_factor=1,
            configs={"retention.ms": "5"},
            deadline=within(30),
        )
        assert (created.partition_count, created.replication_factor) == (3, 1)
        await wait_leaders(client, "u", deadline=within(30))
        assert await produce(client, "u", 1, batch("a")) == 0
        asked = [one for broker in office.world.brokers.values() for one in broker.asked]
        (body,) = [one for one in asked if isinstance(one, CreateTopics)]
        (wanted,) = body.topics
        assert (wanted.partition_count, wanted.replication_factor) == (3, 1)
        assert wanted.configs == {"retention.ms": "5"}
        assert 29_000 < body.timeout_ms <= 30_000


async def test_a_topic_that_our_producers_cannot_write(autojump_clock: MockClock) -> None:
    """Kafka's encoding: the result of the creation warns of it."""
    async with open_office() as (_, _, client):
        created = await make_topic(
            client,
            "u",
            partition_count=3,
            replication_factor=1,
            configs={"record.format": "kafka"},
            deadline=within(30),
        )
        assert "one replica" in created.warning
        assert "producers of raftmq write columns, and are refused" in created.warning


async def test_nobody_is_in_office_for_a_while(autojump_clock: MockClock) -> None:
    """Definite refusals are repeated."""
    async with open_office() as (world, office, client):
        office.errors = [ErrorCode.NOT_CONTROLLER] * 3
        await create_topic(client, "u", deadline=within(30))
        assert "u" in world.topics
        office.errors = [ErrorCode.NOT_CONTROLLER] * 3
        await delete_topic(client, "u", deadline=within(30))
        assert "u" not in world.topics


async def test_a_deleted_topic_is_let_go_everywhere(autojump_clock: MockClock) -> None:
    """A leader hears of the deletion a second later: the call returns then, not before. One that is
    silent is waited for, for 5 s in all; one that is gone is not.
    """
    world = World(2)
    applied = math.inf
    at_once = world.brokers[2].handlers[ListOffsets]

    def lag(context: Any, body: Any, payload: Any) -> Any:
        if trio.current_time() >= applied:
            return at_once(context, body, payload)
        found = (FoundOffset(one.topic_id, one.partition) for one in body.partitions)
        return Reply(ListOffsetsReply(tuple(found)))

    world.brokers[2].handlers[ListOffsets] = lag
    async with open_office(world) as (_, _, client):
        applied = trio.current_time() + 1
        await delete_topic(client, "t", deadline=within(30))
        assert applied <= trio.current_time() < applied + 1.5
        world.add_topic("u", 1, 2)
        applied = math.inf
        begin = trio.current_time()
        await delete_topic(client, "u", deadline=within(30))
        assert 5 <= trio.current_time() - begin < 5.5
        world.add_topic("v", 1, 2)
        world.brokers[2].stop()
        begin = trio.current_time()
        await delete_topic(client, "v", deadline=within(30))
        assert trio.current_time() - begin < 5


async def test_a_replica_on_a_broker_that_came_after_the_connection(
    autojump_clock: MockClock,
) -> None:
    """It hears of the deletion later than the others, and is waited for as the others are."""
    applied = trio.current_time() + 2

    def prepare(bureau: Bureau) -> None:
        bureau.down.add(2)
        handlers = bureau.world.brokers[2].handlers
        at_once = handlers[ListOffsets]

        def lag(context: Any, body: Any, payload: Any) -> Any:
            if trio.current_time() >= applied:
                return at_once(context, body, payload)
            found = (FoundOffset(one.topic_id, one.partition) for one in body.partitions)
            return Reply(ListOffsetsReply(tuple(found)))

        handlers[ListOffsets] = lag

    async with open_bureau(prepare) as (bureau, admin):
        await admin.list_topics()  # learns the addresses
        bureau.down.clear()
        bureau.world.version += 1
        bureau.replicas["t", 0] = ((1, 2), (1, 2))
        await admin.delete_topic("t")
        assert applied <= trio.current_time() < applied + 1.5


async def test_what_may_have_been_changed_is_not_asked_for_again(
    autojump_clock: MockClock,
) -> None:
    """The connection ends without an answer: "it exists already" would tell nothing afterwards."""
    async with open_office() as (world, office, client):
        office.errors = [LOST, LOST]
        with pytest.raises(OutcomeUnknown) as found:
            await create_topic(client, "u", deadline=within(30))
        assert type(found.value.__cause__) is Disconnected
        assert "u" in world.topics
        with pytest.raises(OutcomeUnknown):
            await delete_topic(client, "u", deadline=within(30))
        assert "u" not in world.topics
        assert (office.count(CreateTopics), office.count(DeleteTopics)) == (1, 1)


async def test_a_topic_that_exists(autojump_clock: MockClock) -> None:
    """The caller is told at once."""
    async with open_office() as (_, office, client):
        with pytest.raises(TopicAlreadyExists):
            await create_topic(client, "t", deadline=within(30))
        assert office.count(CreateTopics) == 1


async def test_what_no_broker_would_take(autojump_clock: MockClock) -> None:
    """Nothing is sent that would end a connection."""
    async with open_office() as (_, office, client):
        with pytest.raises(InvalidRequest):
            await create_topic(client, "x" * 300, deadline=within(30))
        with pytest.raises(InvalidRequest):
            await create_topic(
                client,
                "x",
                configs={"a": 5},  # type: ignore[dict-item]
                deadline=within(30),
            )
        assert office.count(CreateTopics) == 0


async def test_a_description_in_pages(autojump_clock: MockClock) -> None:
    """Three partitions, two of them at once: the caller sees one topic."""
    async with open_office() as (_, office, client):
        await create_topic(client, "u", deadline=within(30))
        found = await find_topic(client, "u", deadline=within(30))
        assert [(one.partition, one.leader) for one in found.partitions] == [(0, 1), (1, 2), (2, 1)]
        assert found.configs == {"retention.ms": "1"}
        assert office.count(DescribeTopics) == 2


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """Said by a broker that is not behind, it is so, and nobody waits for it."""
    async with open_office() as (_, office, client):
        begin = trio.current_time()
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'u'"):
            await find_topic(client, "u", deadline=within(30))
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'u'"):
            await delete_topic(client, "u", deadline=within(30))
        assert trio.current_time() - begin < 1
        assert office.count(DeleteTopics) == 0


async def test_a_broker_that_has_not_heard_of_it_yet(autojump_clock: MockClock) -> None:
    """The client has, so it does not believe that broker, and asks on."""
    async with open_office() as (world, office, client):
        await client.refresh(None, deadline=trio.current_time() + 5)
        world.brokers[2].behind = world.metadata([])
        office.errors = [ErrorCode.NOT_CONTROLLER] * 3
        await create_topic(client, "u", deadline=within(30))
        client.newest_version = world.version
        for _ in range(10):
            assert (await find_topic(client, "u", deadline=within(30))).partition_count == 3
        assert world.brokers[2].count(DescribeTopics) > 0


async def test_pages_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A broker that begins again and again does not hold the client for ever."""
    async with open_office() as (_, office, client):
        page = TopicDescription("t", topic_id=b"\1" * 16)
        office.page = Reply(DescribeTopicsReply((page,), Cursor("t", 1)))
        with pytest.raises(ServerError, match="lead nowhere"):
            await find_topic(client, "t", deadline=within(30))


async def test_leaders_that_are_waited_for(autojump_clock: MockClock) -> None:
    """One partition has none for two seconds; then the wait is over, or the time is."""
    async with open_world() as (world, nursery), world.client() as client:
        world.add_topic("u", 1, -1)

        async def elect() -> None:
            await trio.sleep(2)
            world.lead("u", 1, 2)

        with pytest.raises(LeaderNotAvailable, match="u: not every partition"):
            await wait_leaders(client, "u", deadline=within(1))
        nursery.start_soon(elect)
        begin = trio.current_time()
        await wait_leaders(client, "u", deadline=within(10))
        assert 1.9 < trio.current_time() - begin < 3.5


async def test_a_topic_that_is_waited_for(autojump_clock: MockClock) -> None:
    """It is not there yet; and if it never comes, that is what the caller is told."""
    async with open_world() as (world, nursery), world.client() as client:

        async def create() -> None:
            await trio.sleep(1)
            world.add_topic("u", 1)

        with pytest.raises(UnknownTopicOrPartition):
            await wait_leaders(client, "u", deadline=within(0.5))
        nursery.start_soon(create)
        await wait_leaders(client, "u", deadline=within(10))


async def test_no_broker_is_there(autojump_clock: MockClock) -> None:
    """Nothing was done, and the reason is told."""
    async with open_world() as (world, _), world.client() as client:
        for broker in world.brokers.values():
            broker.stop()
        with pytest.raises(Unreachable, match="refused"):
            await create_topic(client, "u", deadline=within(3))


async def test_a_topic_that_others_delete_meanwhile(autojump_clock: MockClock) -> None:
    """It was described, and is missing by its id then: the caller is told so at once, by its
    name."""
    async with open_office() as (_, office, client):
        office.errors = [ErrorCode.UNKNOWN_TOPIC_ID]
        with pytest.raises(UnknownTopicOrPartition, match="there is no topic 't'"):
            await delete_topic(client, "t", deadline=within(30))
        assert office.count(DeleteTopics) == 1
