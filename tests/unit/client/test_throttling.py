"""A broker that asks to be left alone is left alone, and nobody else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from msgspec.structs import replace

from raftmq.client.routing.experience import THROTTLE_SECONDS_MAX
from raftmq.errors import Unreachable
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import Produce
from tests.fetching import fetch
from tests.producing import produce
from tests.unit.client.world import World, batch, open_world

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Reply
    from tests.unit.client.world import Step, Turn

DATA = batch("a")


def throttled(seconds: float) -> Step:
    """It is done, and whoever asked is told to wait."""

    def step(turn: Turn) -> Reply:
        return replace(turn.carry_out(), throttle_ms=int(seconds * 1000))

    return step


async def take_seconds(client: Cluster, partition: int = 0, **limits: float) -> float:
    begin = trio.current_time()
    await produce(client, "t", partition, DATA, **limits)  # type: ignore[arg-type]
    return trio.current_time() - begin


async def test_who_is_told_to_wait_waits(autojump_clock: MockClock) -> None:
    """Two seconds before the next request, whatever it is; then as before."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [throttled(2)]
        assert await take_seconds(client) < 0.1
        begin = trio.current_time()
        await fetch(client, "t", 0, 0)
        assert 1.9 < trio.current_time() - begin < 2.1
        assert await take_seconds(client) < 0.1


async def test_other_brokers_are_asked_meanwhile(autojump_clock: MockClock) -> None:
    """Also for metadata, which any of them has."""
    async with open_world() as (world, _), world.client() as client:
        world.topics.clear()
        world.add_topic("t", 1, 2)
        world.brokers[1].produces = [throttled(20)]
        await take_seconds(client)
        asked = world.brokers[1].count(Metadata)
        assert await take_seconds(client, 1) < 0.1
        for _ in range(3):
            world.lead("t", 0, 1)
            begin = trio.current_time()
            await client.refresh("t", deadline=begin + 5)
            assert trio.current_time() - begin < 0.1
        assert world.brokers[1].count(Metadata) == asked


async def test_a_wait_that_is_longer_than_the_time(autojump_clock: MockClock) -> None:
    """Nothing is sent, and the error comes when the time is over; it is definite."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [throttled(20)]
        await take_seconds(client)
        begin = trio.current_time()
        with pytest.raises(Unreachable, match="Produce was not sent"):
            await produce(client, "t", 0, DATA, timeout_seconds=5)
        assert trio.current_time() - begin == pytest.approx(5, abs=0.1)
        assert world.brokers[1].count(Produce) == 1


async def test_nobody_waits_for_a_month(autojump_clock: MockClock) -> None:
    """A broker that asks for it gets half a minute."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [throttled(1e6)]
        await take_seconds(client)
        seconds = await take_seconds(client, timeout_seconds=60)
        assert seconds == pytest.approx(THROTTLE_SECONDS_MAX, abs=0.1)


async def test_who_waits_for_no_answer_waits_before(autojump_clock: MockClock) -> None:
    """Produced with acks=0, after an answer that asked for a pause."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].produces = [throttled(2)]
        await take_seconds(client)
        assert 1.9 < await take_seconds(client, acks=0) < 2.1


async def test_all_brokers_ask_to_be_left_alone(autojump_clock: MockClock) -> None:
    """Metadata is asked for when the first of them may be asked again."""
    async with open_world() as (world, _), world.client() as client:
        world.topics.clear()
        world.add_topic("t", 1, 2)
        for partition, broker in enumerate(world.brokers.values()):
            broker.produces = [throttled(3 * (partition + 1))]
            await take_seconds(client, partition)
        begin = trio.current_time()
        await client.refresh("t", deadline=begin + 60)
        assert 2.5 < trio.current_time() - begin < 3.1


async def test_an_answer_is_not_held_back_by_who_wants_to_be_left_alone(
    autojump_clock: MockClock,
) -> None:
    """Broker 1 has, though it is behind; 3 knew more, and is gone; 2 is not worth the wait."""
    async with open_world(World(3)) as (world, _), world.client() as client:
        world.topics.clear()
        world.add_topic("t", 1, 2, 3)
        world.brokers[2].produces = [throttled(20)]
        await take_seconds(client, 1)
        world.brokers[1].behind = world.brokers[2].behind = world.metadata(["t"])
        world.version += 1
        await take_seconds(client, 2)
        assert client.newest_version > client.routes.version
        world.brokers[3].stop()
        asked = world.brokers[2].count(Metadata)
        begin = trio.current_time()
        await client.refresh("t", deadline=begin + 60)
        assert trio.current_time() - begin < 5
        assert world.brokers[2].count(Metadata) == asked
