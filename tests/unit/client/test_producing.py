"""Producing: where batches go, when they are sent again, and what is known in the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    CorruptRecord,
    Disconnected,
    ErrorCode,
    InvalidRecord,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutcomeUnknown,
    RequestTimedOut,
    ServerError,
    StorageError,
    UnknownTopicOrPartition,
    Unreachable,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import Nothing
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import Produce, ProduceReply
from tests.producing import produce
from tests.unit.client.world import (
    batch,
    done_and_lost,
    done_but,
    lost,
    open_world,
    refused,
    silent,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Step, World

DATA = batch("a", "b")


def copies(world: World) -> int:
    """How often the batch stands in the log."""
    return len(world.topics["t"].partitions[0].batches)


async def test_offsets_come_back(autojump_clock: MockClock) -> None:
    """Two batches one after the other; the metadata is asked for once."""
    async with open_world() as (world, _), world.client() as client:
        assert await produce(client, "t", 0, DATA) == 0
        assert await produce(client, "t", 0, DATA) == 2
        assert world.metadata_requests == 1
        wanted = [body for body in world.brokers[1].asked if isinstance(body, Produce)]
        assert [body.acks for body in wanted] == [-1, -1]
        assert all(29_000 < body.timeout_ms <= 30_000 for body in wanted)


@pytest.mark.parametrize("gives_hints", [False, True])
async def test_a_leader_that_was_replaced(autojump_clock: MockClock, gives_hints: bool) -> None:
    """The old one refuses the old epoch, so nothing was done: the new one gets it, and at once.

    Where the old leader says who leads now, nobody else is asked.
    """
    async with open_world() as (world, _), world.client() as client:
        world.gives_hints = gives_hints
        await produce(client, "t", 0, DATA)
        world.lead("t", 0, 2)
        begin = trio.current_time()
        assert await produce(client, "t", 0, DATA) == 2
        assert trio.current_time() - begin < 0.1
        assert world.brokers[2].count(Produce) == 1
        assert world.metadata_requests == (1 if gives_hints else 2)


async def test_news_is_worth_no_pause(autojump_clock: MockClock) -> None:
    """The refusal says who leads: over connections that are open, two round trips are all."""
    async with open_world() as (world, _), world.client() as client:
        world.gives_hints = True
        for leader in (2, 1):
            await produce(client, "t", 0, DATA)
            world.lead("t", 0, leader)
        await produce(client, "t", 0, DATA)
        world.lead("t", 0, 2)
        begin = trio.current_time()
        await produce(client, "t", 0, DATA)
        assert trio.current_time() - begin < 0.015


async def test_nobody_leads_for_a_while(autojump_clock: MockClock) -> None:
    """The client asks again, ever more rarely, and goes on once somebody leads."""
    async with open_world() as (world, nursery), world.client() as client:
        world.lead("t", 0, -1)

        async def elect() -> None:
            await trio.sleep(5)
            world.lead("t", 0, 2)

        nursery.start_soon(elect)
        begin = trio.current_time()
        assert await produce(client, "t", 0, DATA) == 0
        assert 5 <= trio.current_time() - begin < 6.5
        assert world.metadata_requests < 25


@pytest.mark.parametrize(
    ("step", "error", "appended"),
    [
        (lost, Disconnected, 0),
        (done_and_lost, Disconnected, 1),
        (silent, RequestTimedOut, 0),
        (done_but(ErrorCode.NOT_LEADER_OR_FOLLOWER), NotLeaderOrFollower, 1),
        (done_but(ErrorCode.KAFKA_STORAGE_ERROR), StorageError, 1),
        (done_but(ErrorCode.UNKNOWN_SERVER_ERROR), ServerError, 1),
        (lambda _turn: Reply(ProduceReply()), ServerError, 0),
    ],
)
async def test_nobody_knows_what_became_of_it(
    autojump_clock: MockClock, step: Step, error: type[Exception], appended: int
) -> None:
    """Whether it was appended or not: it is not sent again, and the caller is told so."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [step]
        with pytest.raises(OutcomeUnknown) as found:
            await produce(client, "t", 0, DATA, timeout_seconds=5)
        assert type(found.value.__cause__) is error
        assert world.brokers[1].count(Produce) == 1
        assert copies(world) == appended


async def test_a_broker_that_does_not_lead_has_appended_nothing(
    autojump_clock: MockClock,
) -> None:
    """It says so by giving no offset: the batches are sent again, and stand there once."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        assert await produce(client, "t", 0, DATA) == 0
        assert copies(world) == 1


async def test_after_a_failure_the_metadata_is_asked_for_first(autojump_clock: MockClock) -> None:
    """An attempt with an unknown outcome was the last one; the next call does not repeat it."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [done_but(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        with pytest.raises(OutcomeUnknown):
            await produce(client, "t", 0, DATA)
        world.lead("t", 0, 2)
        assert await produce(client, "t", 0, DATA) == 2
        assert world.brokers[1].count(Produce) == 1
        assert world.metadata_requests == 2


@pytest.mark.parametrize(("step", "found"), [(lost, 1), (done_and_lost, 2)])
async def test_twice_rather_than_never(autojump_clock: MockClock, step: Step, found: int) -> None:
    """At least once: what was lost is sent again, and may stand there twice."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [step]
        offset = await produce(client, "t", 0, DATA, retries_unknown=True)
        assert (offset, copies(world)) == (2 * (found - 1), found)


async def test_a_refusal_at_last_does_not_undo_what_may_have_happened(
    autojump_clock: MockClock,
) -> None:
    """At least once: the first attempt is lost, then there are too few replicas till the end."""
    async with open_world() as (world, _), world.client() as client:
        refusal = refused(ErrorCode.NOT_ENOUGH_REPLICAS)
        world.brokers[1].produces = [done_and_lost, *[refusal] * 100]
        with pytest.raises(OutcomeUnknown) as found:
            await produce(client, "t", 0, DATA, retries_unknown=True, timeout_seconds=3)
        assert type(found.value.__cause__) is NotEnoughReplicas
        assert copies(world) == 1


async def test_what_certainly_did_not_happen(autojump_clock: MockClock) -> None:
    """Too few replicas until the time is over: the last refusal is what the caller gets."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100
        begin = trio.current_time()
        with pytest.raises(NotEnoughReplicas):
            await produce(client, "t", 0, DATA, timeout_seconds=3)
        assert 2 < trio.current_time() - begin <= 3
        assert 5 < world.brokers[1].count(Produce) < 20
        assert copies(world) == 0
        world.brokers[1].produces = [refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 2
        assert await produce(client, "t", 0, DATA) == 0


async def test_what_no_repetition_would_help(autojump_clock: MockClock) -> None:
    """A refusal that says so is the end, at once."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [refused(ErrorCode.INVALID_REQUIRED_ACKS)]
        with pytest.raises(Exception, match="INVALID_REQUIRED_ACKS"):
            await produce(client, "t", 0, DATA, acks=3)
        assert world.brokers[1].count(Produce) == 1


async def test_a_leader_that_is_gone(autojump_clock: MockClock) -> None:
    """Nobody listens there: nothing was sent. Once another leads, that one gets it."""
    async with open_world() as (world, nursery), world.client() as client:
        await produce(client, "t", 0, DATA)
        world.brokers[1].stop()
        await trio.sleep(1)

        async def elect() -> None:
            await trio.sleep(2)
            world.lead("t", 0, 2)

        nursery.start_soon(elect)
        assert await produce(client, "t", 0, DATA) == 2


async def test_a_whole_cluster_that_is_gone(autojump_clock: MockClock) -> None:
    """The client gives up in time, and says whom it tried."""
    async with open_world() as (world, _), world.client() as client:
        for broker in world.brokers.values():
            broker.stop()
        begin = trio.current_time()
        with pytest.raises(Unreachable, match=r"b[12]:9000.*refused"):
            await produce(client, "t", 0, DATA, timeout_seconds=4)
        assert 2 < trio.current_time() - begin <= 4


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """It may come into being: asked for until the time is over. A partition likewise."""
    async with open_world() as (world, nursery), world.client() as client:
        with pytest.raises(UnknownTopicOrPartition, match="'u'"):
            await produce(client, "u", 0, DATA, timeout_seconds=2)
        with pytest.raises(UnknownTopicOrPartition, match="t has 1 partition, there is no 1"):
            await produce(client, "t", 1, DATA, timeout_seconds=2)

        async def create() -> None:
            await trio.sleep(1)
            world.add_topic("u", 2)

        nursery.start_soon(create)
        assert await produce(client, "u", 0, DATA) == 0


async def test_a_topic_of_the_same_name(autojump_clock: MockClock) -> None:
    """Deleted and made again: the new one has another id and lower epochs, and gets what comes."""
    async with open_world() as (world, _), world.client() as client:
        world.lead("t", 0, 2)
        await produce(client, "t", 0, DATA)
        world.add_topic("t", 1)
        assert await produce(client, "t", 0, DATA) == 0


async def test_without_an_answer(autojump_clock: MockClock) -> None:
    """acks=0: nothing comes back, and nothing is known."""
    async with open_world() as (world, _), world.client() as client:
        assert await produce(client, "t", 0, DATA, acks=0) == -1
        assert await produce(client, "t", 0, DATA, acks=0) == -1
        await trio.sleep(1)
        assert copies(world) == 2
        world.brokers[1].stop()
        await trio.sleep(1)
        with pytest.raises(Unreachable):
            await produce(client, "t", 0, DATA, acks=0, timeout_seconds=1)


async def test_what_is_no_batch_is_not_sent(autojump_clock: MockClock) -> None:
    """Whoever flipped a bit on the way to the client is told here."""
    broken = bytearray(DATA)
    broken[-1] ^= 1
    async with open_world() as (world, _), world.client() as client:
        with pytest.raises(CorruptRecord, match="batches for t-0"):
            await produce(client, "t", 0, broken)
        with pytest.raises(InvalidRecord, match="there are none"):
            await produce(client, "t", 0, b"")
        assert world.metadata_requests == 0


@pytest.mark.parametrize(
    ("topic", "partition", "acks"), [("x" * 256, 0, -1), ("\ud800", 0, -1), ("t", 0, 101)]
)
async def test_what_no_broker_would_take_is_not_sent(
    autojump_clock: MockClock, topic: str, partition: int, acks: int
) -> None:
    """A connection that others use must not end over it."""
    async with open_world() as (world, _), world.client() as client:
        with pytest.raises(InvalidRequest):
            await produce(client, topic, partition, DATA, acks=acks)
        assert world.brokers[1].count(Produce) == 0


async def test_no_time_at_all(autojump_clock: MockClock) -> None:
    """Nothing is sent, and that is what the caller is told."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, DATA)
        with pytest.raises(Unreachable, match="its time is over"):
            await produce(client, "t", 0, DATA, timeout_seconds=0)
        assert copies(world) == 1


async def test_an_answer_with_an_error_for_all(autojump_clock: MockClock) -> None:
    """The broker fails before it looks at partitions: its error counts as that of ours."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [
            lambda _turn: Reply(Nothing(), error=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        ]
        assert await produce(client, "t", 0, DATA) == 0
        assert world.brokers[1].count(Produce) == 2


async def test_one_refresh_for_a_hundred(autojump_clock: MockClock) -> None:
    """A hundred tasks lose their leader at once: one question, and everybody goes on."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, DATA)
        world.lead("t", 0, 2)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(partial(produce, client, "t", 0, DATA))
        assert copies(world) == 101
        assert world.metadata_requests == 2
        asked = [broker.count(Metadata) for broker in world.brokers.values()]
        assert sum(asked) == 2
