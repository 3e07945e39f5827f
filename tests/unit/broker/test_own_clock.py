"""Brokers tell the controller what time it is there, and hear whether that may be so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.clocks import CONFIRMED_SECONDS_MAX
from raftmq.wire.messages.cluster import BrokerHeartbeat, BrokerHeartbeatReply
from tests.bodies import decode_body, encode_body
from tests.unit.broker.nodes import eventually, open_world

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.nodes import World

DAY_MS = 86_400_000


def confirmed(world: World) -> list[int]:
    return [number for number, node in world.nodes.items() if node.clock.confirmed_ms() is not None]


def alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("the clock is wrong")]


async def test_one_clock_of_three_is_wrong(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It notices the jump by itself, at once; everybody hears of it with the next heartbeat; and
    each change is told once.
    """
    caplog.set_level(logging.INFO)
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await eventually(lambda: confirmed(world) == [1, 2, 3])
        world.nodes[3].clock_ahead_ms = 15 * DAY_MS
        assert confirmed(world) == [1, 2]
        await trio.sleep(5)
        assert confirmed(world) == [1, 2]
        for node in world.nodes.values():
            [(broker_id, ahead_ms)] = node.clock.wrong
            assert (broker_id, round(ahead_ms / DAY_MS)) == (3, 15)
        [line] = alarms(caplog)
        assert "nothing is deleted for its age: broker=3 ahead_ms=129" in line
        world.nodes[3].clock_ahead_ms = 0
        await trio.sleep(2.5)
        assert confirmed(world) == [1, 2, 3]
        assert [node.clock.wrong for node in world.nodes.values()] == [()] * 3
        assert alarms(caplog)[1:] == ["the clock is wrong no more: broker=3"]


async def test_what_is_stamped_is_the_time_of_the_others(autojump_clock: MockClock) -> None:
    """Of a clock that is wrong, once the others were heard of; also when none is heard any more."""
    async with open_world(3) as world:
        node, wrong = world.nodes[2], world.nodes[3]
        wrong.clock_ahead_ms = -700 * DAY_MS
        await world.start()
        await world.all_in_service()
        await eventually(lambda: abs(wrong.clock.stamp_ms() - node.now_ms()) < 1_000)
        await eventually(lambda: confirmed(world) == [1, 2])
        wrong.clock_ahead_ms = 15 * DAY_MS
        assert abs(wrong.clock.stamp_ms() - node.now_ms()) < 1_000
        world.cluster.depose()
        await trio.sleep(3_600)
        assert abs(wrong.clock.stamp_ms() - node.now_ms()) < 1_000
        wrong.clock_ahead_ms = 0
        assert wrong.clock.stamp_ms() == node.now_ms()


async def test_a_machine_that_slept_stamps_the_time_of_its_clock(
    autojump_clock: MockClock,
) -> None:
    """Its monotonic clock stood still: at once, or whoever writes would be refused."""
    async with open_world(1) as world:
        await world.start()
        await eventually(lambda: confirmed(world) == [1])
        world.nodes[1].clock_ahead_ms = DAY_MS
        assert world.nodes[1].clock.stamp_ms() == world.nodes[1].now_ms()


async def test_two_that_disagree(autojump_clock: MockClock) -> None:
    """Nobody can say which one is right, so neither of them deletes."""
    async with open_world(2) as world:
        world.nodes[2].clock_ahead_ms = -DAY_MS
        await world.start()
        await world.all_in_service()
        await trio.sleep(5)
        assert confirmed(world) == []
        assert [one.broker_id for one in world.nodes[1].clock.wrong] == [1, 2]
        for node in world.nodes.values():
            assert node.clock.stamp_ms() == node.now_ms()


@pytest.mark.parametrize(("difference_ms_max", "agree"), [(60_000, True), (20_000, False)])
async def test_how_far_apart_clocks_may_be(
    difference_ms_max: int, agree: bool, autojump_clock: MockClock
) -> None:
    """As the settings say: half a minute is nothing, or too much."""
    async with open_world(2) as world:
        world.clock_difference_ms_max = difference_ms_max
        world.nodes[2].clock_ahead_ms = 30_000
        await world.start()
        await world.all_in_service()
        await trio.sleep(5)
        assert confirmed(world) == ([1, 2] if agree else [])


async def test_one_alone_believes_itself(autojump_clock: MockClock) -> None:
    """There is nobody to ask; but it waits until it has heard that."""
    async with open_world(1) as world:
        world.nodes[1].clock_ahead_ms = 15 * DAY_MS
        await world.start()
        assert confirmed(world) == []
        await eventually(lambda: confirmed(world) == [1])


async def test_all_jump_together(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Machines that slept together agree again with the next heartbeats. The first one to be heard
    differs from what the others told before they slept: it raises no alarm, nor does it stamp the
    time of before, by which it would refuse whoever writes.
    """
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await eventually(lambda: confirmed(world) == [1, 2, 3])
        for node in world.nodes.values():
            node.clock_ahead_ms = DAY_MS
        assert confirmed(world) == []
        for _ in range(25):
            await trio.sleep(0.1)
            for node in world.nodes.values():
                assert node.clock.stamp_ms() == node.now_ms()
        assert confirmed(world) == [1, 2, 3]
        assert world.nodes[1].clock.wrong == ()
        assert alarms(caplog) == []


async def test_a_wrong_clock_under_one_controller_after_the_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has heard nobody yet when it answers first: that is no word that all is well again."""
    caplog.set_level(logging.INFO)
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        world.nodes[3].clock_ahead_ms = DAY_MS
        for leader in (2, 3, 1):
            await trio.sleep(5)
            world.cluster.depose()
            world.cluster.elect(leader)
        await trio.sleep(5)
        assert len(alarms(caplog)) == 1
        assert [one.broker_id for one in world.nodes[3].clock.wrong] == [3]


async def test_a_confirmation_is_worth_nothing_after_a_while(autojump_clock: MockClock) -> None:
    """Nobody leads the quorum any more: whoever was confirmed waits for the next controller."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await eventually(lambda: confirmed(world) == [1, 2, 3])
        world.cluster.depose()
        await trio.sleep(CONFIRMED_SECONDS_MAX + 1.5)
        assert confirmed(world) == []
        world.cluster.elect(2)
        await eventually(lambda: confirmed(world) == [1, 2, 3])


def test_older_brokers_tell_no_time_and_are_told_nothing() -> None:
    """The new fields stand at the end, and have defaults."""
    told = decode_body(BrokerHeartbeat, b"\x95\x01\x02\x03\xcb" + bytes(8) + b"\xc2")
    assert told.wall_clock_ms is None
    answer = decode_body(BrokerHeartbeatReply, b"\x92\xc2\xc2")
    assert (answer.is_clock_confirmed, answer.wrong_clocks) == (False, ())
    said = BrokerHeartbeat(1, 2, 3, wall_clock_ms=-5)
    assert decode_body(BrokerHeartbeat, encode_body(said)) == said
