"""Registration, heartbeats and the controller together, over a simulated quorum and network."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio

from raftmq.errors import NotController, RaftmqError
from raftmq.metadata.commands import (
    SUPPORTED_LEVEL,
    BrokerRegistered,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
    UnregisterBroker,
    decode_command,
)
from raftmq.metadata.liveness import SESSION_SECONDS, BrokerContact
from raftmq.version import __version__
from tests.simulation.deterministic import run_inline
from tests.unit.broker.nodes import DIRECTORY, Node, World, eventually, open_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.metadata.image import BrokerState

T = TypeVar("T")
TOPIC = b"t" * 16


def state(node: Node) -> BrokerState:
    found = node.registered
    assert found is not None
    return found


def registrations(world: World) -> dict[int, RegisterBroker]:
    """By where they stand in the log."""
    log = {entry.raft_index: decode_command(entry.data).command for entry in world.cluster.log}
    return {index: found for index, found in log.items() if isinstance(found, RegisterBroker)}


async def topic_on(world: World, *replicas: int) -> None:
    await world.cluster.leader.propose(CreateTopic(TOPIC, "orders", (replicas,)))


async def test_a_broker_registers_and_comes_into_service(autojump_clock: MockClock) -> None:
    """One node, its own controller: registered fenced, unfenced after it has spoken."""
    async with open_world() as world:
        await world.start()
        node = world.nodes[1]
        await eventually(lambda: node.is_active, within=0.5)
        epoch = state(node).broker_epoch
        assert node.lifetime.broker_epoch == node.file.meta.broker_epoch == epoch
        assert node.epochs == [epoch]
        assert state(node).software_version == __version__
        assert state(node).logs_max == 1000
        await eventually(lambda: not state(node).fenced, within=1.5)


async def test_brokers_register_with_a_leader_elsewhere(autojump_clock: MockClock) -> None:
    """Three nodes; two of them reach the controller over the network."""
    async with open_world(3) as world:
        await world.start()
        with trio.fail_after(3):
            await world.all_in_service()
        endpoints = [state(node).endpoints[0].host for node in world.nodes.values()]
        assert endpoints == ["n1", "n2", "n3"]


async def test_metadata_that_is_late_costs_no_heartbeat(autojump_clock: MockClock) -> None:
    """The first heartbeat waits until this node knows its own registration, and counts at once."""
    async with open_world(2) as world:
        world.cluster.follow_seconds = 0.3
        await world.start()
        await eventually(lambda: world.nodes[2].is_active, within=0.6)


async def test_heartbeats_keep_a_broker_in_service(autojump_clock: MockClock) -> None:
    """A minute in which nothing happens: nobody is fenced, nothing is proposed."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await trio.sleep(2)
        version = world.image.version
        await trio.sleep(60)
        assert world.image.version == version


async def test_only_who_was_heard_before_is_missed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster begins before its controller is in office: no warning. Whoever is cut off warns."""
    caplog.set_level(logging.INFO, "raftmq.broker")
    async with open_world(3) as world:
        await world.nodes[3].start(with_office=False)
        await world.nodes[1].start(with_office=False)
        await trio.sleep(10)
        world.nodes[1].kill()
        await world.start(1)
        await eventually(lambda: world.nodes[3].is_active)
        world.network.isolate("n3")
        await trio.sleep(SESSION_SECONDS)
    levels = [
        record.levelname
        for record in caplog.records
        if "heartbeat not heard: broker=3" in record.getMessage()
    ]
    assert levels == ["INFO", "WARNING"]


async def test_a_silent_broker_is_fenced(autojump_clock: MockClock) -> None:
    """It is cut off: after a session it is out of service, and in again once it is heard (A6.3)."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        epoch = state(world.nodes[3]).broker_epoch
        world.network.isolate("n3")
        cut_at = trio.current_time()
        await eventually(lambda: not world.nodes[3].is_active, within=SESSION_SECONDS + 1)
        assert trio.current_time() - cut_at > SESSION_SECONDS - 1.5
        world.network.heal()
        await eventually(lambda: world.nodes[3].is_active, within=10)
        assert state(world.nodes[3]).broker_epoch == epoch


async def test_a_killed_broker_is_fenced_at_once(autojump_clock: MockClock) -> None:
    """Its connections break and its port refuses: that takes two probes, and no session.

    A6.3, A10.1.
    """
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        await trio.sleep(20)  # probes of the controller that took office are history
        world.nodes[3].kill()
        world.nodes[1].office.on_connection_reset(3)
        await eventually(lambda: not world.nodes[3].is_active, within=0.5)


async def test_a_broker_that_comes_back_has_another_epoch(autojump_clock: MockClock) -> None:
    """Killed and started again: the disk remembers, so nothing that it holds is doubted."""
    async with open_world(2) as world:
        await world.start()
        await world.all_in_service()
        await topic_on(world, 2, 1)
        node = world.nodes[2]
        before, incarnation = state(node).broker_epoch, state(node).incarnation
        node.kill()
        await node.start()
        assert node.file.meta.broker_epoch == before
        await eventually(lambda: state(node).broker_epoch > before)
        await eventually(lambda: node.is_active)
        assert state(node).incarnation != incarnation
        partition = next(iter(world.image.partitions.values()))
        assert 2 in (*partition.isr, *partition.eligible)


async def test_a_lost_registration_is_made_anew(autojump_clock: MockClock) -> None:
    """An operator forgets a broker that lives: it registers again, and what it lost stays lost."""
    async with open_world(2) as world:
        node = world.nodes[2]
        node.damaged = [(TOPIC, 0)]
        await world.start()
        await world.all_in_service()
        first = state(node)
        await world.cluster.leader.propose(UnregisterBroker(2, first.broker_epoch))
        await topic_on(world, 2, 1)
        await eventually(lambda: node.registered is not None and node.is_active)
        second = state(node)
        assert node.epochs == [first.broker_epoch, -1, second.broker_epoch]
        assert second.incarnation != first.incarnation
        assert node.file.meta.broker_epoch == second.broker_epoch
        told = [it.damaged for it in registrations(world).values() if it.broker_id == 2]
        assert told == [((TOPIC, 0),), ()]


async def test_a_stale_epoch_is_given_up(autojump_clock: MockClock) -> None:
    """Somebody registered in its place and died: the broker gives its epoch up, and returns."""
    async with open_world(2) as world:
        await world.start()
        await world.all_in_service()
        node, known = world.nodes[2], state(world.nodes[2])
        directory_id = node.file.meta.directory_id.bytes
        rival = RegisterBroker(
            2, b"r" * 16, directory_id, known.endpoints, feature_level_max=SUPPORTED_LEVEL
        )
        await world.cluster.leader.propose(rival)
        await eventually(lambda: len(node.epochs) == 3, within=3)
        assert node.epochs[:2] == [known.broker_epoch, -1]
        await eventually(lambda: node.is_active)


async def test_two_directories_are_not_in_service_at_once(autojump_clock: MockClock) -> None:
    """The first process is alive elsewhere: the second waits until it has been silent for long."""
    async with open_world(2) as world:
        known = await world.cluster.leader.propose(RegisterBroker(2, b"r" * 16, b"d" * 16))
        assert isinstance(known, BrokerRegistered)
        await world.start(1)
        await eventually(lambda: world.nodes[1].is_active)
        await world.cluster.leader.propose(UnfenceBroker(2, known.broker_epoch))
        await world.start(2)
        await trio.sleep(SESSION_SECONDS / 2)
        assert state(world.nodes[2]).broker_epoch == known.broker_epoch
        assert len(registrations(world)) < 10
        await eventually(lambda: world.nodes[2].epochs, within=2 * SESSION_SECONDS)
        await eventually(lambda: world.nodes[2].is_active)
        assert state(world.nodes[2]).broker_epoch > known.broker_epoch


async def test_an_unknown_outcome_of_a_registration_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    """The answer is lost, though it was applied: the same incarnation gets the same epoch."""
    async with open_world() as world:
        world.cluster.lose_answers(1)
        await world.start()
        node = world.nodes[1]
        await eventually(lambda: node.is_active)
        assert len(node.epochs) == 1
        assert len(registrations(world)) == 2
        assert state(node).broker_epoch == min(registrations(world))


async def test_a_registration_that_expects_too_little_is_made_again(
    autojump_clock: MockClock,
) -> None:
    """Its metadata is late and does not know the process before: refused, and repeated."""
    async with open_world(2) as world:
        world.cluster.follow_seconds = 3.0
        await world.cluster.leader.propose(RegisterBroker(2, b"r" * 16, b"d" * 16))
        await world.start()
        await eventually(lambda: world.nodes[2].epochs, within=6)
        await eventually(lambda: world.nodes[2].is_active, within=6)


async def test_what_the_cluster_refuses_for_good_ends_the_broker(
    autojump_clock: MockClock,
) -> None:
    """An id that no broker may have: the message of the refusal is the error."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        node = world.nodes[1]
        await node.open_lifetime(listener="x" * 300)
        with pytest.raises(RaftmqError, match="listener of 300 characters"):
            await node.lifetime.run()


async def test_an_epoch_is_written_before_it_is_used(autojump_clock: MockClock) -> None:
    """The disk takes its time: the registration is known to all, but nobody hears of the epoch."""
    async with open_world() as world:
        node, may_write = world.nodes[1], trio.Event()

        async def hold(function: Callable[[], T], /) -> T:
            if node.registered is not None:
                await may_write.wait()
                assert node.epochs == []
            return await run_inline(function)

        node.run_sync = hold
        await world.start()
        await eventually(lambda: node.registered)
        await trio.sleep(5)
        assert (node.lifetime.broker_epoch, node.epochs, node.is_active) == (-1, [], False)
        may_write.set()
        await eventually(lambda: node.epochs)
        [epoch] = node.epochs
        after = node.files.photograph(node.files.random, power_lost=True)
        data = after.open(DIRECTORY / "meta.json").read(0, 1000)
        assert f'"broker_epoch": {epoch}'.encode() in data
        await eventually(lambda: node.is_active)


async def test_a_frozen_disk_is_told(autojump_clock: MockClock) -> None:
    """A flush hangs: the broker is taken out of service while others can do its work."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        world.nodes[2].slow_flush_seconds = 4.0
        await eventually(lambda: not world.nodes[2].is_active, within=3)
        world.nodes[2].slow_flush_seconds = 0.0
        await eventually(lambda: world.nodes[2].is_active, within=10)


async def test_another_controller_takes_over(autojump_clock: MockClock) -> None:
    """Leadership moves to node 2: nobody is fenced, and it is node 2 that fences from then on."""
    async with open_world(3) as world:
        await world.start()
        await world.all_in_service()
        epochs = {number: state(node).broker_epoch for number, node in world.nodes.items()}
        world.cluster.elect(2)
        await eventually(lambda: world.nodes[2].office.is_held, within=1)
        assert not world.nodes[1].office.is_held
        await trio.sleep(15)
        assert {n: state(node).broker_epoch for n, node in world.nodes.items()} == epochs
        assert all(map(world.image.is_active, world.nodes))
        world.nodes[1].kill()
        await eventually(lambda: not world.nodes[1].is_active, within=SESSION_SECONDS + 1)


async def test_a_broker_is_unfenced_by_the_next_controller(autojump_clock: MockClock) -> None:
    """The controller fences somebody and is deposed: its successor hears him, and lets him in."""
    async with open_world(2) as world:
        await world.start()
        await world.all_in_service()
        await world.cluster.leader.propose(FenceBroker(1, state(world.nodes[1]).broker_epoch))
        world.cluster.elect(2)
        await eventually(lambda: world.nodes[1].is_active, within=3)


async def test_a_deposed_controller_does_not_mislead_brokers(autojump_clock: MockClock) -> None:
    """Node 1 is cut off and thinks that it leads: whoever registered with node 2 is news to it."""
    async with open_world(3) as world:
        await world.start(1, 2)
        await eventually(lambda: world.image.is_active(1) and world.image.is_active(2))
        world.cluster.isolate(1)
        await world.start(3)
        await eventually(lambda: world.nodes[3].epochs, within=0.5)
        assert world.nodes[1].office.is_held
        with pytest.raises(NotController, match="behind broker 3"):
            world.nodes[1].office.on_heartbeat(BrokerContact(3, world.nodes[3].epochs[0], 0))
