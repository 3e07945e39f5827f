"""The promises of `MetadataQuorum` about images, leadership and reads; see `quorum_conformance`.

Whoever runs them takes `autojump_clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotController
from raftmq.metadata.commands import CommandId, Done, ProducerIdBlock, UnfenceBroker
from raftmq.metadata.image import ChangeKind, MetadataImage, TouchedKey
from tests.unit.metadata.quorum_harness import (
    BROKER,
    PATIENCE_SECONDS,
    Harness,
    Scenario,
    allocation,
    collect_into,
    node_id_of,
    others,
    propose_until_certain,
    register,
    registration,
    wait_version,
)

if TYPE_CHECKING:
    from raftmq.metadata.quorum import MetadataQuorum

VIEW_SCENARIOS: list[Scenario] = []
scenario = collect_into(VIEW_SCENARIOS)


# Images


@scenario
async def every_node_goes_through_the_same_images(cluster: Harness) -> None:
    """Versions rise on each node, and equal versions have equal content everywhere."""
    epoch = await register(cluster)
    seen: dict[int, MetadataImage] = {}

    async def watch(node: MetadataQuorum) -> None:
        version = 0
        while version < last:
            image = await node.wait_changed(version)
            assert version < image.version <= node.image.version
            version = image.version
            content = image._replace(changes=())
            assert seen.setdefault(version, content) == content

    async with trio.open_nursery() as nursery:
        last = epoch + 20
        for node in cluster.nodes.values():
            nursery.start_soon(watch, node)
        sequence = 0
        while (await cluster.leader()).image.version < last:
            command_id = CommandId(BROKER, epoch, sequence)
            await propose_until_certain(cluster, allocation(epoch), command_id)
            sequence += 1
    assert len(seen) > 1


@scenario
async def waiting_for_a_change_ends_with_one(cluster: Harness) -> None:
    """Who has seen less returns at once, who has seen all waits for the next command."""
    epoch, leader = await register(cluster), await cluster.leader()
    follower = (await others(cluster))[0]
    await wait_version(follower, epoch)
    found: list[MetadataImage] = []

    async def wait(node: MetadataQuorum) -> None:
        found.append(await node.wait_changed(node.image.version))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, leader)
        nursery.start_soon(wait, follower)
        await trio.sleep(0.5)  # virtual
        assert found == []
        await leader.propose(UnfenceBroker(BROKER, epoch))
    assert len(found) == 2
    assert all(not image.brokers[BROKER].fenced for image in found)


@scenario
async def a_delta_tells_what_changed(cluster: Harness) -> None:
    """From each version on, on every node; nothing has changed since the newest one."""
    epoch, leader = await register(cluster), await cluster.leader()
    assert await leader.propose(UnfenceBroker(BROKER, epoch)) == Done()
    unfenced = leader.image.version
    assert isinstance(await leader.propose(allocation(epoch)), ProducerIdBlock)
    version = leader.image.version
    broker, ids = TouchedKey(ChangeKind.BROKER, BROKER), TouchedKey(ChangeKind.PRODUCER_IDS, 0)
    for node in cluster.nodes.values():
        assert (await wait_version(node, version)).version == version
        for seen, changes in ((epoch, {broker, ids}), (unfenced, {ids}), (version, set())):
            delta = node.delta_since(seen)
            assert delta.is_complete
            assert (delta.since, delta.image.version) == (seen, version)
            assert delta.changes == changes


@scenario
async def a_delta_for_somebody_ahead_is_incomplete(cluster: Harness) -> None:
    """Seen on another node, not yet here: everything may be different."""
    leader = await cluster.leader()
    assert not leader.delta_since(leader.image.version + 1000).is_complete


# Leadership and reads


@scenario
async def leadership_is_news_to_everybody(cluster: Harness) -> None:
    """It moves: the old leader, the new one and the third hear of a higher term."""
    old = await cluster.leader()
    before = {node_id: node.leadership for node_id, node in cluster.nodes.items()}
    assert before[node_id_of(cluster, old)].is_leader
    assert sum(leadership.is_leader for leadership in before.values()) == 1
    await cluster.move_leadership()
    new_id = node_id_of(cluster, await cluster.leader())
    assert cluster.nodes[new_id] is not old
    for node_id, node in cluster.nodes.items():
        now = before[node_id]
        with trio.fail_after(PATIENCE_SECONDS):
            while now.leader_id != new_id:
                term = now.term
                now = await node.wait_leadership_changed(now)
                assert now.term >= term
        assert now.term > before[node_id].term
        assert now.is_leader == (node_id == new_id)


@scenario
async def an_isolated_leader_finds_out(cluster: Harness) -> None:
    """It hears nobody, and after a while stops believing that it leads."""
    old = await cluster.isolate_leader()
    leadership = old.leadership
    assert leadership.is_leader
    with trio.fail_after(PATIENCE_SECONDS):
        while leadership.is_leader:
            leadership = await old.wait_leadership_changed(leadership)
    with pytest.raises(NotController):
        await old.propose(registration())
    await cluster.heal()


@scenario
async def a_barrier_shows_all_that_was_acknowledged(cluster: Harness) -> None:
    """By this leader or the one before; only a leader can tell."""
    epoch = await register(cluster)
    assert (await (await cluster.leader()).read_barrier()).brokers[BROKER].broker_epoch == epoch
    command_id = CommandId(BROKER, epoch, 0)
    await propose_until_certain(cluster, allocation(epoch), command_id)
    await cluster.move_leadership()
    image = await (await cluster.leader()).read_barrier()
    assert image.next_producer_id == 10
    for node in await others(cluster):
        with pytest.raises(NotController):
            await node.read_barrier()


@scenario
async def a_barrier_on_an_isolated_leader_fails(cluster: Harness) -> None:
    """Somebody else may have been told something meanwhile: it must not answer from its memory."""
    epoch = await register(cluster)
    old = await cluster.isolate_leader()

    async def read_in_vain() -> None:
        with trio.fail_after(PATIENCE_SECONDS), pytest.raises(NotController):
            await old.read_barrier()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_in_vain)
        await propose_until_certain(cluster, allocation(epoch), CommandId(BROKER, epoch, 0))
    await cluster.heal()
