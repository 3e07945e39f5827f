"""How a broker stops, and what its start waits for: all that other nodes have a say in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.lifetime import UNHEARD_SECONDS_MAX, wait_known
from raftmq.metadata.commands import UnregisterBroker
from raftmq.metadata.controller.probes import PROBE_SERIES_SECONDS
from tests.unit.broker.nodes import eventually, open_world
from tests.unit.broker.test_lifetime import state, topic_on

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.nodes import Node


# Stopping


async def test_a_broker_stops_in_order(autojump_clock: MockClock) -> None:
    """It leads a partition; when it is let go another broker leads, and everybody knows."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await topic_on(world, 2, 3)
        [partition] = world.image.partitions.values()
        assert partition.leader == 2
        with trio.fail_after(5):
            assert await world.nodes[2].lifetime.stop()
        [partition] = world.image.partitions.values()
        assert (partition.leader, 2 in partition.isr) == (3, False)
        assert state(world.nodes[2]).in_controlled_shutdown
        await trio.sleep(2)
        assert world.nodes[2].epochs == [state(world.nodes[2]).broker_epoch]


async def test_nobody_waits_for_ever_for_a_controller(autojump_clock: MockClock) -> None:
    """Nobody leads: the broker stops after a while, and says that it was not let go."""
    async with open_world() as world:
        await world.start()
        await world.all_in_service()
        world.cluster.depose()
        before = trio.current_time()
        assert not await world.nodes[1].lifetime.stop(seconds_max=2.0)
        assert trio.current_time() - before == pytest.approx(2.0)
        assert not await world.nodes[1].lifetime.stop()
        assert trio.current_time() - before == pytest.approx(2.0 + UNHEARD_SECONDS_MAX)


async def test_the_last_of_all_does_not_wait_for_the_others(autojump_clock: MockClock) -> None:
    """All brokers stop at once: who is left has no controller, and is gone a little later."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await trio.sleep(0.3)  # between two heartbeats
        world.nodes[2].kill()
        await trio.sleep(0.1)
        world.nodes[1].kill()
        world.cluster.depose()
        before = trio.current_time()
        assert not await world.nodes[3].lifetime.stop()
        assert trio.current_time() - before == pytest.approx(UNHEARD_SECONDS_MAX)


async def test_a_controller_that_answers_has_all_the_time(autojump_clock: MockClock) -> None:
    """It says "not yet" again and again, as another broker does not learn of it: not given up."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await topic_on(world, 2, 3)
        world.cluster.delay_seconds = 6.0
        before = trio.current_time()
        assert not await world.nodes[2].lifetime.stop(seconds_max=5.0)
        assert trio.current_time() - before == pytest.approx(5.0)


async def test_a_controller_that_is_heard_again_is_waited_for(autojump_clock: MockClock) -> None:
    """Nobody leads when the broker is told to stop; an election later it is let go."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await topic_on(world, 2, 3)
        world.cluster.depose()
        async with trio.open_nursery() as nursery:
            stopped = await _stopping(nursery, world.nodes[2])
            await trio.sleep(2)
            world.cluster.elect(1)
        assert stopped == [True]


async def _stopping(nursery: trio.Nursery, node: Node) -> list[bool]:
    """Whether it was let go, once it knows."""
    outcome: list[bool] = []

    async def stop() -> None:
        outcome.append(await node.lifetime.stop())

    nursery.start_soon(stop)
    await trio.lowlevel.checkpoint()
    return outcome


async def test_who_is_not_registered_stops_at_once(autojump_clock: MockClock) -> None:
    """Nobody leads from the beginning: there is nothing to move away."""
    async with open_world() as world:
        world.cluster.depose()
        await world.start()
        await trio.sleep(1)
        with trio.fail_after(0.01):
            assert not await world.nodes[1].lifetime.stop()


async def test_who_stops_is_not_registered_again(autojump_clock: MockClock) -> None:
    """Forgotten while it stops: it goes."""
    async with open_world(2) as world:
        await world.start()
        await world.all_in_service()
        node = world.nodes[2]
        await world.cluster.leader.propose(UnregisterBroker(2, state(node).broker_epoch))
        with trio.fail_after(3):
            assert not await node.lifetime.stop()
        await trio.sleep(5)
        assert node.registered is None


async def test_a_broker_that_is_killed_twice_is_fenced_twice_at_once(
    autojump_clock: MockClock,
) -> None:
    """The second time within seconds of the first: neither death is left to the session."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await trio.sleep(20)  # probes of the controller that took office are history
        node = world.nodes[3]
        begin = trio.current_time()
        for _ in range(2):
            node.kill()
            world.nodes[1].office.on_connection_reset(3)
            await eventually(lambda: not node.is_active, within=0.5)
            await node.start()
            await eventually(lambda: node.is_active)
            await trio.sleep(0.3)
        assert trio.current_time() - begin < PROBE_SERIES_SECONDS


# Starting


async def test_a_start_that_waits_for_the_metadata_says_so_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Three seconds behind what this broker knew when it ran last: one line, and one at the end."""
    caplog.set_level(logging.INFO, "raftmq.broker")
    async with open_world(2) as world:
        world.cluster.follow_seconds = 3.0
        await topic_on(world, 1)
        quorum, version = world.nodes[2].quorum, world.image.version
        with trio.fail_after(3.1):
            await wait_known(quorum, version)
    told, done = caplog.messages
    assert f"needed={version} quorum_leader=1" in told
    assert "new enough" in done


async def test_a_start_that_waits_for_nothing_is_silent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A first start, and one whose metadata comes in time."""
    caplog.set_level(logging.INFO, "raftmq.broker")
    async with open_world(2) as world:
        await wait_known(world.nodes[2].quorum, -1)
        world.cluster.follow_seconds = 0.5
        await topic_on(world, 1)
        await wait_known(world.nodes[2].quorum, world.image.version)
    assert caplog.messages == []
