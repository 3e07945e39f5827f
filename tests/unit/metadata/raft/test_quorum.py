"""Three real voters keep the promises of `MetadataQuorum`, and what is theirs alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotController, ProposalDiscarded, ProposalUncertain, QuorumBusy
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.quorum import RaftQuorum
from tests.simulation.raft_cluster import RaftCluster, open_cluster
from tests.unit.metadata.quorum_conformance import SCENARIOS
from tests.unit.metadata.quorum_harness import (
    allocation,
    registration,
)
from tests.unit.metadata.raft.talk import EAGER, registered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.metadata.quorum import MetadataQuorum
    from tests.unit.metadata.quorum_harness import Scenario


class RaftHarness:
    """`Harness` for a RaftCluster."""

    def __init__(self, cluster: RaftCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[int, MetadataQuorum] = {**cluster.nodes}

    async def leader(self) -> MetadataQuorum:
        return await self.cluster.leader()

    async def move_leadership(self) -> None:
        before = await self.cluster.leader_id()
        self.cluster.isolate(before)
        after = await self.cluster.leader_id()
        self.cluster.heal()
        nodes = self.cluster.nodes.values()
        await self.cluster.until(lambda: all(n.leadership.leader_id == after for n in nodes))

    async def isolate_leader(self) -> MetadataQuorum:
        leader_id = await self.cluster.leader_id()
        self.cluster.isolate(leader_id)
        return self.cluster.nodes[leader_id]

    async def heal(self) -> None:
        self.cluster.heal()

    def unanswered(self, node: MetadataQuorum) -> int:
        assert isinstance(node, RaftQuorum)
        return node.unanswered


@asynccontextmanager
async def open_harness(seed: int) -> AsyncIterator[RaftHarness]:
    async with open_cluster(1, 2, 3, seed=seed) as cluster:
        await cluster.leader_id()
        yield RaftHarness(cluster)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_it_keeps_the_promises(scenario: Scenario, autojump_clock: MockClock) -> None:
    """Every scenario of the conformance suite, on three voters."""
    async with open_harness(seed=1) as harness:
        await scenario(harness)


# What waits, and what becomes of it


async def test_the_queue_has_an_end(autojump_clock: MockClock) -> None:
    """Two proposals wait on an isolated leader: the third is refused at once."""
    async with open_cluster(1, 2, 3, limits=QuorumLimits(proposals_waiting=2)) as cluster:
        leader = await isolated_leader(cluster)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(propose_in_vain, leader)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(QuorumBusy, match="2 proposals wait"):
                await leader.propose(registration())


async def test_who_gave_up_takes_no_place_in_the_queue(autojump_clock: MockClock) -> None:
    """Proposals time out or are cancelled, two at a time: there is always room for the next."""
    async with open_cluster(1, 2, 3, limits=QuorumLimits(proposals_waiting=2)) as cluster:
        leader = await isolated_leader(cluster)
        for _ in range(4):
            with trio.move_on_after(0.05):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leader.propose, registration())
                    with pytest.raises(ProposalUncertain, match=r"no answer within 0\.01 s"):
                        await leader.propose(registration(), timeout=0.01)
            assert leader.unanswered == 0


async def test_a_leader_that_loses_office_answers_reads(autojump_clock: MockClock) -> None:
    """Reads wait for a majority that is gone: NotController as soon as the leader steps down."""
    async with open_cluster(1, 2, 3) as cluster:
        leader = await isolated_leader(cluster)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read_in_vain, leader)
            await trio.testing.wait_all_tasks_blocked()
            assert leader.unanswered == 3
        assert trio.current_time() - started < 2 * cluster.timing.fallback_seconds
        assert leader.unanswered == 0
        assert leader.leadership.leader_id is None


async def test_a_follower_that_is_cut_off_knows_no_leader(autojump_clock: MockClock) -> None:
    """It believes in the leader for a second of silence; afterwards it names nobody."""
    async with open_cluster(1, 2, 3) as cluster:
        leader_id = await cluster.leader_id()
        follower_id = await cluster.follower_id()
        follower = cluster.nodes[follower_id]
        await cluster.until(lambda: follower.leadership.leader_id == leader_id)
        before = follower.leadership
        cluster.isolate(follower_id)
        with trio.fail_after(2):
            after = await follower.wait_leadership_changed(before)
        assert after == before._replace(leader_id=None)
        with pytest.raises(NotController, match="no node is known to"):
            await follower.propose(registration())
        cluster.heal()
        with trio.fail_after(30):
            assert (await follower.wait_leadership_changed(after)).leader_id == leader_id


async def test_closing_answers_whoever_waits(autojump_clock: MockClock) -> None:
    """The leader is closed: waiting proposals are uncertain, reads and new ones are refused."""
    async with open_cluster(1, 2, 3) as cluster, trio.open_nursery() as nursery:
        leader_id = await cluster.leader_id()
        leader = cluster.nodes[leader_id]
        for node_id in {1, 2, 3} - {leader_id}:
            cluster.crash(node_id)
        nursery.start_soon(propose_in_vain, leader, "this node stops")
        nursery.start_soon(read_in_vain, leader)
        await trio.testing.wait_all_tasks_blocked()
        assert leader.unanswered == 2
        cluster.crash(leader_id)
        await trio.testing.wait_all_tasks_blocked()
        assert leader.unanswered == 0
        with pytest.raises(NotController, match="stops"):
            await leader.propose(registration())
        with pytest.raises(NotController, match="stops"):
            await leader.read_barrier()
        assert not leader.leadership.is_leader


async def test_a_proposal_that_a_snapshot_went_past(autojump_clock: MockClock) -> None:
    """A deposed leader waits for its entry; the others go on, and send a snapshot: uncertain."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster, trio.open_nursery() as nursery:
        epoch = await registered(cluster)
        old_id = await cluster.leader_id()
        old = cluster.nodes[old_id]
        cluster.isolate(old_id)
        nursery.start_soon(propose_in_vain, old, "a snapshot went past it")
        new = await cluster.leader()
        await trio.sleep(6)  # until the connection is given up, and what waits on it
        for _ in range(30):
            await new.propose(allocation(epoch))
        cluster.heal()
        await old.wait_changed(new.image.version - 1)


# What the tests do


async def isolated_leader(cluster: RaftCluster) -> RaftQuorum:
    leader_id = await cluster.leader_id()
    cluster.isolate(leader_id)
    return cluster.nodes[leader_id]


async def propose_in_vain(node: RaftQuorum, why: str | None = None) -> None:
    with pytest.raises((ProposalUncertain, ProposalDiscarded), match=why):
        await node.propose(registration(), timeout=20.0)


async def read_in_vain(node: RaftQuorum) -> None:
    with pytest.raises(NotController):
        await node.read_barrier()
