"""The office: when it is held, and what it does with what the controller asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotController
from raftmq.metadata.commands import (
    BrokerRegistered,
    Endpoint,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
    decode_command,
)
from raftmq.metadata.controller.probes import PROBE_PAUSE_SECONDS
from raftmq.metadata.liveness import SESSION_SECONDS, BrokerContact
from tests.unit.broker.nodes import PORT, World, eventually, open_world

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.commands import AnyCommand
    from raftmq.wire.messages.cluster import BrokerHeartbeatReply


async def register(
    world: World,
    broker_id: int,
    *,
    listener: str = "brokers",
    incarnation: bytes = b"i" * 16,
    unfenced: bool = True,
) -> int:
    """By hand; no process of it needs to run. Its broker epoch."""
    endpoint = Endpoint(listener, f"n{broker_id}", PORT)
    command = RegisterBroker(broker_id, incarnation, bytes([broker_id]) * 16, (endpoint,))
    result = await world.cluster.leader.propose(command)
    assert isinstance(result, BrokerRegistered)
    if unfenced:
        await world.cluster.leader.propose(UnfenceBroker(broker_id, result.broker_epoch))
    return result.broker_epoch


def beat(world: World, broker_id: int, epoch: int) -> BrokerHeartbeatReply:
    said = BrokerContact(broker_id, epoch, world.image.version)
    assert world.cluster.leader_id is not None
    return world.nodes[world.cluster.leader_id].office.on_heartbeat(said)


def commands(world: World) -> list[AnyCommand]:
    return [decode_command(entry.data).command for entry in world.cluster.log]


def fences(world: World) -> list[int]:
    return [it.broker_id for it in commands(world) if isinstance(it, FenceBroker)]


async def test_nothing_is_proposed_before_the_barrier(autojump_clock: MockClock) -> None:
    """A broker is silent for long before this node leads; until it knows all, it does nothing."""
    async with open_world() as world:
        await register(world, 5)
        await trio.sleep(100)
        world.cluster.delay_seconds = 3.0
        before = len(world.cluster.log)
        await world.start(with_lifetime=False)
        office = world.nodes[1].office
        await trio.sleep(2.9)
        assert not office.is_held
        with pytest.raises(NotController, match="takes office just now"):
            office.on_heartbeat(BrokerContact(5, 2, 2))
        assert (len(world.cluster.log), len(world.cluster.pending)) == (before, 0)
        await eventually(lambda: office.is_held, within=0.2)


async def test_a_barrier_that_nobody_confirms(autojump_clock: MockClock) -> None:
    """The leader is cut off before its barrier: no office there, until it leads again, healed."""
    async with open_world(3) as world:
        world.cluster.delay_seconds = 0.5
        await world.start(with_lifetime=False)
        world.cluster.isolate(1)
        await eventually(lambda: world.nodes[2].office.is_held, within=1)
        await trio.sleep(5)
        assert not world.nodes[1].office.is_held
        world.cluster.heal()
        world.cluster.elect(1)
        await eventually(lambda: world.nodes[1].office.is_held, within=1)
        assert not world.nodes[2].office.is_held


async def test_the_office_ends_with_the_leadership(autojump_clock: MockClock) -> None:
    """At the very moment, not when the tasks have learned of it; and what is under way is nobody's.

    The next term of the same node begins anew, with fresh sessions.

    A6.1.
    """
    async with open_world(2) as world:
        await world.start(with_lifetime=False)
        office = world.nodes[1].office
        await eventually(lambda: office.is_held)
        epoch = await register(world, 5, listener="clients")
        beat(world, 5, epoch)
        await trio.sleep(SESSION_SECONDS - 0.2)
        world.cluster.delay_seconds = 1.0
        await eventually(lambda: world.cluster.pending, within=1)  # the fence is on its way
        world.cluster.elect(2, keep_pending=False)
        assert not office.is_held
        with pytest.raises(NotController, match="node 2 is") as caught:
            office.on_heartbeat(BrokerContact(5, epoch, epoch))
        assert caught.value.leader_id == 2
        office.on_connection_reset(5)
        await trio.sleep(0.5)
        world.cluster.elect(1)
        await eventually(lambda: office.is_held, within=1.2)
        await trio.sleep(SESSION_SECONDS - 1)
        assert fences(world) == []
        await eventually(lambda: fences(world) == [5], within=3)


async def test_one_term_after_the_other_on_the_same_node(autojump_clock: MockClock) -> None:
    """Elected again before it notices that it had lost: another term is another controller."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        office = world.nodes[1].office
        await eventually(lambda: office.is_held)
        epoch = await register(world, 5, listener="clients")
        beat(world, 5, epoch)
        world.cluster.elect(1)
        assert not office.is_held
        await eventually(lambda: office.is_held, within=0.1)
        assert not beat(world, 5, epoch).is_fenced


async def test_a_lost_proposal_does_not_end_the_office(autojump_clock: MockClock) -> None:
    """The fence is lost twice, with and without effect, and refused once: it comes in the end."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        await eventually(lambda: world.nodes[1].office.is_held)
        await trio.sleep(1)
        await register(world, 5)
        await trio.sleep(SESSION_SECONDS - 0.5)
        world.cluster.lose_answers(3, applied=False)
        await trio.sleep(1)
        world.cluster.proposals_max = 0
        await trio.sleep(1)
        assert fences(world) == []
        world.cluster.proposals_max = 100
        await eventually(lambda: fences(world) == [5], within=2)
        assert world.nodes[1].office.is_held


# Probes


async def test_a_process_that_is_gone_is_fenced_at_once(autojump_clock: MockClock) -> None:
    """A reset, and then its port refuses twice."""
    async with open_world(2) as world:
        await world.start(1, with_lifetime=False)
        await eventually(lambda: world.nodes[1].office.is_held)
        world.network.node("n5")  # a machine, and nobody who listens
        await register(world, 5)
        reset_at = trio.current_time()
        world.nodes[1].office.on_connection_reset(5)
        await eventually(lambda: fences(world) == [5], within=0.3)
        assert trio.current_time() - reset_at > PROBE_PAUSE_SECONDS


async def test_a_controller_that_takes_office_asks_everybody(autojump_clock: MockClock) -> None:
    """The broker died with the former controller, which alone could have known."""
    async with open_world(2) as world:
        await world.start(1, with_lifetime=False)
        world.network.node("n5")
        await register(world, 1)
        await register(world, 5)
        world.cluster.elect(2)
        await world.start(2, with_lifetime=False)
        await eventually(lambda: fences(world) == [5], within=0.5)


@pytest.mark.parametrize(
    "trouble", ["it lives", "no power", "no answer", "no endpoint", "another process"]
)
async def test_what_a_probe_does_not_prove(autojump_clock: MockClock, trouble: str) -> None:
    """Whoever accepts lives; silence says nothing, and neither does what was never asked."""
    async with open_world(2) as world:
        await world.start(1, with_lifetime=False)
        await eventually(lambda: world.nodes[1].office.is_held)
        match trouble:
            case "it lives":
                await world.start(2, with_lifetime=False)
            case "no power" | "no answer":
                if trouble == "no answer":  # the network gives up before the probe does
                    world.network.connect_seconds_max = 0.1
                world.network.node("n2")
                world.network.crash("n2", power_lost=True)
        await register(world, 2, listener="clients" if trouble == "no endpoint" else "brokers")
        world.nodes[1].office.on_connection_reset(2)
        if trouble == "another process":
            await register(world, 2, incarnation=b"j" * 16)
        await trio.sleep(SESSION_SECONDS - 1)
        assert fences(world) == []
        await eventually(lambda: fences(world) == [2], within=2)  # nobody sends heartbeats


async def test_a_reset_by_somebody_unknown_is_nothing(autojump_clock: MockClock) -> None:
    """Before the office and in it: a broker that is not registered, or fenced already."""
    async with open_world(2) as world:
        await world.start(with_lifetime=False)
        world.nodes[2].office.on_connection_reset(9)
        await eventually(lambda: world.nodes[1].office.is_held)
        await register(world, 5, unfenced=False)
        for broker_id in (5, 9):
            world.nodes[1].office.on_connection_reset(broker_id)
        await trio.sleep(1)
        assert fences(world) == []
