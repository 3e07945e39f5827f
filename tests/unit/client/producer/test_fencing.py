"""How a producer's name is made known: to all partitions of a topic, before anything leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.errors import (
    Closed,
    DeliveryTimedOut,
    ErrorCode,
    InvalidRecord,
    InvalidRequest,
    ServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import check_limits
from raftmq.wire.messages.producers import (
    FENCES_MAX,
    FenceProducer,
    FenceProducerReply,
    InitProducerId,
    PartitionToFence,
)
from tests.unit.client.producer.shell import in_log, open_producer, open_stage, requests
from tests.unit.client.world import World, done_and_lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Turn

NAME: dict[str, Any] = {"name": "etl/3", "generation": 17}
BUSY = refused(ErrorCode.NOT_ENOUGH_REPLICAS)


def fences(world: World) -> list[FenceProducer]:
    return [
        body
        for broker in world.brokers.values()
        for body in broker.asked
        if isinstance(body, FenceProducer)
    ]


async def test_one_request_for_each_leader(autojump_clock: MockClock) -> None:
    """With the first record of a topic, for all its partitions; nobody asks for an id."""
    world = World(3)
    world.add_topic("many", 1, 2, 1, 2, 1)
    async with open_stage(world) as (_, _, client), client.producer(**NAME) as producer:
        assert fences(world) == []
        await producer.send("many", b"a", partition=3)
        asked = fences(world)
        found = [sorted(each.partition for each in body.partitions) for body in asked]
        assert sorted(found) == [[0, 2, 4], [1, 3]]
        assert {(body.name, body.generation) for body in asked} == {("etl/3", 17)}
        await producer.send("many", b"b", partition=0)
        assert len(fences(world)) == 2
        await producer.send("t", b"c")
        assert len(fences(world)) == 3
        assert sum(broker.count(InitProducerId) for broker in world.brokers.values()) == 0


async def test_many_partitions_of_one_leader(autojump_clock: MockClock) -> None:
    """A broker gets no more of them with one request than it does at once."""
    world = World(2)
    world.add_topic("many", *[1] * (2 * FENCES_MAX + 1))
    async with open_stage(world) as (_, _, client), client.producer(**NAME) as producer:
        await producer.send("many", b"a", partition=3)
        sizes = sorted(len(body.partitions) for body in fences(world))
        assert sizes == [1, FENCES_MAX, FENCES_MAX]
    too_many = (PartitionToFence(bytes(16), 0),) * (FENCES_MAX + 1)
    with pytest.raises(InvalidRequest):
        check_limits(FenceProducer("etl/3", 17, too_many))


async def test_pauses_grow(autojump_clock: MockClock) -> None:
    """Partitions that refuse for long are not asked ten times a second."""
    options = {"delivery_timeout_ms": 30_000, "retry_backoff_ms": 100}
    async with open_producer(**NAME, **options) as (world, producer):
        world.brokers[1].fences += [BUSY] * 1000
        with pytest.raises(DeliveryTimedOut):
            await producer.send("t", b"a")
        assert 20 < len(fences(world)) < 50


@pytest.mark.parametrize("is_refused", [False, True])
async def test_fences_without_records(autojump_clock: MockClock, is_refused: bool) -> None:
    """A call without rows fails as one with some does, and ends the producer."""
    error = ErrorCode.INVALID_RECORD if is_refused else ErrorCode.NOT_ENOUGH_REPLICAS
    async with open_producer(**NAME, delivery_timeout_ms=30_000) as (world, producer):
        world.brokers[1].fences += [refused(error)] * 1000
        with pytest.raises(Closed if is_refused else DeliveryTimedOut, match=error.name):
            await producer.send_many("t", [])
        with pytest.raises(Closed, match="nothing follows what was given up"):
            await producer.send("t", b"a")


async def test_nothing_leaves_before(autojump_clock: MockClock) -> None:
    """One partition is without a leader for a while; once it has one, records leave in order."""
    world = World(2)
    world.add_topic("many", 1, -1)
    async with open_stage(world) as (_, _, client), client.producer(**NAME) as producer:
        deliveries = [producer.send_nowait("many", b"%d" % n, partition=0) for n in range(3)]
        await trio.sleep(2)
        assert requests(world) == []
        world.lead("many", 1, 2)
        for delivery in deliveries:
            await delivery
        assert in_log(world, 0, "many") == ["0", "1", "2"]
        assert len(fences(world)) == 2  # nobody who has answered is asked again


@pytest.mark.parametrize(
    "steps",
    [
        [BUSY] * 3,
        [done_and_lost],
        [refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)],
        [refused(ErrorCode.REQUEST_TIMED_OUT)] * 2,
    ],
)
async def test_asked_again(autojump_clock: MockClock, steps: list[Any]) -> None:
    """Whatever may pass, and whatever was done without word of it."""
    async with open_producer(**NAME) as (world, producer):
        world.brokers[1].fences += steps
        await producer.send("t", b"a")
        assert len(fences(world)) == len(steps) + 1
        assert in_log(world) == ["a"]


@pytest.mark.parametrize("hints", [False, True])
async def test_a_leader_that_has_moved(autojump_clock: MockClock, hints: bool) -> None:
    """The new one is asked, whether the old one says who that is or not."""
    async with open_producer(**NAME) as (world, producer):
        world.gives_hints = hints
        await trio.sleep(0.1)
        world.lead("t", 0, 2)
        await producer.send("t", b"a")
        assert in_log(world) == ["a"]


async def test_not_in_time(autojump_clock: MockClock) -> None:
    """Certainly not appended; what was missing is said, and nothing follows."""
    async with open_producer(**NAME, delivery_timeout_ms=3000) as (world, producer):
        world.brokers[1].fences += [BUSY] * 99
        with pytest.raises(DeliveryTimedOut, match=r"not all partitions .*NOT_ENOUGH") as caught:
            await producer.send("t", b"a")
        assert caught.value.definite
        assert requests(world) == []


async def test_a_leader_that_is_silent(autojump_clock: MockClock) -> None:
    """The others' word is kept; it is asked again once an answer has taken too long."""
    world = World(2)
    world.add_topic("many", 1, 2)
    options = {**NAME, "request_timeout_ms": 1000}
    async with open_stage(world) as (_, _, client), client.producer(**options) as producer:
        world.brokers[2].fences += [silent]
        await producer.send("many", b"a", partition=0)
        assert [broker.count(FenceProducer) for broker in world.brokers.values()] == [1, 2]


async def test_refused_for_good(autojump_clock: MockClock) -> None:
    """Told at once: waiting would not help."""
    async with open_producer(**NAME) as (world, producer):
        world.brokers[1].fences += [refused(ErrorCode.INVALID_RECORD)]
        begin = trio.current_time()
        with pytest.raises(InvalidRecord, match="INVALID_RECORD"):
            await producer.send("t", b"a")
        assert trio.current_time() - begin < 1


async def test_brokers_that_know_no_names(autojump_clock: MockClock) -> None:
    """Told with what would help."""
    async with open_stage() as (world, tasks, client):
        for broker in world.brokers.values():
            broker.stop()
            del broker.handlers[FenceProducer]
        await trio.sleep(0.1)
        for broker in world.brokers.values():
            await tasks.start(broker.run)
        async with client.producer(**NAME) as producer:
            with pytest.raises(UnsupportedVersion, match="leave name and generation out"):
                await producer.send("t", b"a")


def other_partitions(turn: Turn) -> Reply:
    turn.carry_out()
    return Reply(FenceProducerReply(1 << 62))


def without_an_id(turn: Turn) -> Reply:
    done = turn.carry_out().body
    assert isinstance(done, FenceProducerReply)
    return Reply(FenceProducerReply(-1, done.partitions))


@pytest.mark.parametrize("step", [other_partitions, without_an_id])
async def test_an_answer_that_is_none(autojump_clock: MockClock, step: Any) -> None:
    """No broker of ours says that: whoever does is not believed."""
    async with open_producer(**NAME) as (world, producer):
        world.brokers[1].fences += [step]
        with pytest.raises(ServerError):
            await producer.send("t", b"a")


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """It is given up as ever, and ends the producer."""
    async with open_stage() as (world, _, client):
        with pytest.raises(UnknownTopicOrPartition):
            async with client.producer(**NAME) as producer:
                producer.send_nowait("nope", b"a")
        assert fences(world) == []
