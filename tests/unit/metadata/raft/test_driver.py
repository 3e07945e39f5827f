"""The order within a voter's turn: nothing leaves before it is durable, nobody waits too long."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.commands import BrokerRegistered, ProducerIdBlock
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    ObserverFetch,
    Role,
    Standing,
)
from tests.simulation.deterministic import run_inline
from tests.simulation.raft_cluster import RaftCluster, open_cluster
from tests.unit.metadata.quorum_harness import allocation, registration
from tests.unit.metadata.raft.gate import JOURNAL_WRITE, Gate
from tests.unit.metadata.raft.talk import EAGER, allocate, registered
from tests.unit.metadata.raft.voters import Stranger

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.raft.quorum import RaftQuorum


# Nothing leaves before the sync


async def test_entries_leave_after_the_leaders_own_sync(autojump_clock: MockClock) -> None:
    """The leader's sync hangs: no follower sees the entry, nobody is answered, until it is done."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        gates = await start_with_gates(cluster)
        epoch = await registered(cluster)
        leader_id = await cluster.leader_id()
        await trio.sleep(0.2)
        before = last_indexes(cluster)
        gates[leader_id].close(JOURNAL_WRITE)
        results: list[object] = []
        nursery.start_soon(propose_into, results, cluster.nodes[leader_id], epoch)
        await trio.sleep(0.5)
        after = last_indexes(cluster)
        assert after.pop(leader_id) == before.pop(leader_id) + 1
        assert after == before
        assert results == []
        gates[leader_id].open(JOURNAL_WRITE)
        await cluster.until(lambda: len(results) == 1)
        assert results == [ProducerIdBlock(0, 10)]


async def test_a_follower_answers_after_its_sync(autojump_clock: MockClock) -> None:
    """One follower is off, the other one's sync hangs: it has the entry, and does not say so."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        gates = await start_with_gates(cluster)
        epoch = await registered(cluster)
        leader_id = await cluster.leader_id()
        first, second = sorted({1, 2, 3} - {leader_id})
        cluster.crash(first)
        await trio.sleep(0.2)
        before = last_indexes(cluster)[second]
        gates[second].close(JOURNAL_WRITE)
        results: list[object] = []
        nursery.start_soon(propose_into, results, cluster.nodes[leader_id], epoch)
        await trio.sleep(0.5)
        assert last_indexes(cluster)[second] == before + 1
        assert results == []
        gates[second].open(JOURNAL_WRITE)
        await cluster.until(lambda: len(results) == 1)


async def test_nothing_is_applied_before_its_sync(autojump_clock: MockClock) -> None:
    """A follower is sent what is committed already, and cannot write it down: it shows none."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await registered(cluster)
        follower_id = await cluster.follower_id()
        cluster.crash(follower_id)
        await allocate(cluster, epoch, 20)
        gate = cluster.run_sync = Gate()
        gate.close(JOURNAL_WRITE)
        await cluster.start(follower_id)
        await cluster.until(lambda: gate.begun[JOURNAL_WRITE] == 1)
        follower = cluster.nodes[follower_id]
        await trio.sleep(0.5)
        assert follower._node.journal.last_index > epoch + 10
        assert follower.image.version <= epoch
        gate.open(JOURNAL_WRITE)
        await cluster.level()


async def test_a_vote_is_given_after_its_sync(autojump_clock: MockClock) -> None:
    """The leader dies, and whoever is asked for a vote cannot write it down: nobody is elected."""
    async with open_cluster() as cluster:
        gates = await start_with_gates(cluster)
        await registered(cluster)
        await trio.sleep(0.2)
        cluster.crash(await cluster.leader_id())
        for node_id in cluster.nodes:
            gates[node_id].close(JOURNAL_WRITE)
        await trio.sleep(5)
        assert not any(node.leadership.is_leader for node in cluster.nodes.values())
        for node_id in cluster.nodes:
            gates[node_id].open(JOURNAL_WRITE)
        await cluster.leader()


async def test_what_piles_up_is_written_together(autojump_clock: MockClock) -> None:
    """Fifty proposals come while a sync is under way: they share the next one."""
    async with open_cluster() as cluster:
        gates = await start_with_gates(cluster)
        epoch = await registered(cluster)
        leader_id = await cluster.leader_id()
        await trio.sleep(0.2)
        results: list[object] = []
        begun = gates[leader_id].begun[JOURNAL_WRITE]
        async with trio.open_nursery() as nursery:
            gates[leader_id].close(JOURNAL_WRITE)
            for _ in range(50):
                nursery.start_soon(propose_into, results, cluster.nodes[leader_id], epoch)
                await trio.lowlevel.checkpoint()
            gates[leader_id].open(JOURNAL_WRITE)
        assert len(results) == 50
        assert gates[leader_id].begun[JOURNAL_WRITE] - begun <= 4


# Nobody waits too long


@pytest.mark.parametrize(
    "limits",
    [QuorumLimits(applied_per_tick=5), QuorumLimits(applied_bytes_per_tick=50)],
    ids=["entries", "bytes"],
)
async def test_applying_is_done_in_pieces(limits: QuorumLimits, autojump_clock: MockClock) -> None:
    """A follower has 200 entries to apply: a few in each turn, and the next turn comes at once."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await registered(cluster)
        follower_id = await cluster.follower_id()
        cluster.crash(follower_id)
        leader = await cluster.leader()
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(leader.propose, allocation(epoch))
        cluster.limits = limits
        await cluster.start(follower_id)
        follower, started = cluster.nodes[follower_id], trio.current_time()
        applied = watch_applied(follower)
        await follower.wait_changed(leader.image.version - 1)
        steps = [after - before for before, after in pairwise(applied)]
        assert max(steps) <= 5
        assert len(applied) > 40
        assert trio.current_time() - started < 2, "40 turns of a tick each would take longer"


async def test_a_large_entry_is_applied_alone(autojump_clock: MockClock) -> None:
    """It is larger than the budget of a turn, and applied all the same."""
    async with open_cluster(1, 2, 3, limits=QuorumLimits(applied_bytes_per_tick=100)) as cluster:
        leader = await cluster.leader()
        result = await leader.propose(registration(boot_id="x" * 200))
        assert isinstance(result, BrokerRegistered)


# What goes wrong


async def test_a_voter_that_breaks_the_protocol_is_disconnected(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that no voter sends: its connection ends; it may come again."""
    async with open_cluster(2) as cluster:
        for nonce in (b"1", b"2"):
            stream = await cluster.network.node("node-1").dial(cluster.voters[2])
            impostor = await Stranger(stream).be_welcomed(hello(nonce))
            await impostor.say(ObserverFetch(2))
            while await impostor.hear() is not None:
                pass
        assert caplog.text.count("event=protocol_error error=a ObserverFetch from voter 1") == 2
        assert (await cluster.status(2)).state == "follower"


async def test_segments_that_cannot_be_removed_stay(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An old segment cannot be deleted: that is logged, and the voter goes on."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch = await registered(cluster)
        leader = await cluster.leader()
        cluster.disk(await cluster.leader_id()).fail("remove", "*.journal")
        await allocate(cluster, epoch, 100)
        assert "event=segments_left" in caplog.text
        assert await cluster.leader() is leader


# What the tests do


async def start_with_gates(cluster: RaftCluster) -> dict[int, Gate]:
    """All three; each has threads of its own."""
    gates = {node_id: Gate() for node_id in (1, 2, 3)}
    for node_id, gate in gates.items():
        cluster.run_sync = gate
        await cluster.start(node_id)
    cluster.run_sync = run_inline
    await cluster.leader()
    return gates


async def propose_into(results: list[object], node: RaftQuorum, epoch: int) -> None:
    results.append(await node.propose(allocation(epoch), timeout=30))


def last_indexes(cluster: RaftCluster) -> dict[int, int]:
    """Of the logs, synced or not."""
    nodes = cluster.nodes.items()
    return {node_id: quorum._node.journal.last_index for node_id, quorum in nodes}


def watch_applied(quorum: RaftQuorum) -> list[int]:
    """Grows by the applied index after each turn."""
    applied = [quorum._node.last_applied]
    wait = quorum._turns.wait

    async def wait_noted(seconds_max: float) -> None:
        applied.append(quorum._node.last_applied)
        await wait(seconds_max)

    quorum._turns.wait = wait_noted
    return applied


def hello(nonce: bytes) -> NodeHello:
    return NodeHello(
        PROTOCOL_VERSION,
        "c",
        Role.VOTER,
        1,
        disk_id=b"d" * 16,
        start_count=int(nonce),
        nonce=nonce,
        standing=Standing.ESTABLISHED,
    )
