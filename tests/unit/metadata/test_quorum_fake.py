"""The quorum in memory keeps the promises of the real one, and its mishaps are what they say."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotController, ProposalDiscarded, ProposalUncertain, QuorumBusy
from raftmq.metadata.commands import BrokerRegistered, RegisterBroker
from tests.simulation.quorum_fake import CUT_OFF_SECONDS, FakeCluster, FakeQuorum
from tests.unit.metadata.quorum_conformance import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.metadata.quorum import MetadataQuorum
    from tests.unit.metadata.quorum_harness import Harness, Scenario


class FakeHarness:
    """`Harness` for a FakeCluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.nodes: dict[int, MetadataQuorum] = {**cluster.nodes}

    async def leader(self) -> MetadataQuorum:
        return self._cluster.leader

    async def move_leadership(self) -> None:
        await trio.sleep(0.1)
        self._cluster.elect()

    async def isolate_leader(self) -> MetadataQuorum:
        leader = self._cluster.leader
        self._cluster.isolate(leader.node_id)
        return leader

    async def heal(self) -> None:
        self._cluster.heal()

    def unanswered(self, node: MetadataQuorum) -> int:
        assert isinstance(node, FakeQuorum)
        return node.unanswered


@asynccontextmanager
async def fake_harness(*, delay: float = 0.0, follow: float = 0.0) -> AsyncIterator[Harness]:
    cluster = FakeCluster()
    cluster.delay_seconds, cluster.follow_seconds = delay, follow
    yield FakeHarness(cluster)


@pytest.mark.parametrize(("delay", "follow"), [(0.0, 0.0), (0.01, 0.0), (0.01, 0.2)])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_it_keeps_the_promises(
    scenario: Scenario, delay: float, follow: float, autojump_clock: MockClock
) -> None:
    """Every scenario of the conformance suite, at once, with slow commits, with slow followers."""
    async with fake_harness(delay=delay, follow=follow) as cluster:
        await scenario(cluster)


def registration(broker_id: int) -> RegisterBroker:
    return RegisterBroker(broker_id, b"i" * 16, b"d" * 16)


async def test_answers_can_be_lost(autojump_clock: MockClock) -> None:
    """One is applied, one is not, and neither proposer can tell; the third is as usual."""
    cluster = FakeCluster()
    cluster.lose_answers(1)
    with pytest.raises(ProposalUncertain):
        await cluster.leader.propose(registration(1))
    cluster.lose_answers(1, applied=False)
    with pytest.raises(ProposalUncertain):
        await cluster.leader.propose(registration(2))
    assert isinstance(await cluster.leader.propose(registration(3)), BrokerRegistered)
    assert set(cluster.leader.image.brokers) == {1, 3}


@pytest.mark.parametrize(
    ("keep_pending", "error"), [(True, ProposalUncertain), (False, ProposalDiscarded)]
)
async def test_what_is_on_its_way_when_leadership_moves(
    keep_pending: bool, error: type[Exception], autojump_clock: MockClock
) -> None:
    """Kept: it is applied, by the next leader. Overwritten: it never will be."""
    cluster = FakeCluster()
    cluster.delay_seconds = 1.0
    async with trio.open_nursery() as nursery:

        async def propose() -> None:
            with pytest.raises(error):
                await cluster.leader.propose(registration(1))

        nursery.start_soon(propose)
        await trio.sleep(0.5)
        cluster.elect(3, keep_pending=keep_pending)
    assert not cluster.leader.image.brokers
    await trio.sleep(0.5)
    assert (1 in cluster.leader.image.brokers) == keep_pending
    assert cluster.leader is cluster.nodes[3]


@pytest.mark.parametrize(
    ("healed_after", "error"), [(0.1, ProposalDiscarded), (2.0, ProposalUncertain)]
)
async def test_what_is_on_its_way_when_the_leader_is_isolated(
    healed_after: float, error: type[Exception], autojump_clock: MockClock
) -> None:
    """It is never applied; whether its proposer knows depends on how soon the links are back."""
    cluster = FakeCluster()
    cluster.delay_seconds = 0.5
    async with trio.open_nursery() as nursery:

        async def propose() -> None:
            with pytest.raises(error):
                await cluster.nodes[1].propose(registration(1))

        nursery.start_soon(propose)
        await trio.sleep(0.1)
        cluster.isolate(1)
        await trio.sleep(healed_after)
        cluster.heal()
    await trio.sleep(5)
    assert not any(node.image.brokers for node in cluster.nodes.values())


async def test_without_a_leader_nothing_moves(autojump_clock: MockClock) -> None:
    """Nobody leads for a while: everybody says so, and the waiting command is applied after."""
    cluster = FakeCluster()
    cluster.delay_seconds = 1.0
    with pytest.raises(ProposalUncertain):
        await cluster.nodes[1].propose(registration(1), timeout=0.5)
    cluster.depose()
    await trio.sleep(5)
    for node in cluster.nodes.values():
        assert node.leadership.leader_id is None
        with pytest.raises(NotController):
            await node.propose(registration(1))
    assert not cluster.nodes[1].image.brokers
    cluster.elect()
    assert set((await cluster.nodes[3].wait_changed(0)).brokers) == {1}
    assert cluster.leader is cluster.nodes[2]


async def test_the_queue_has_an_end(autojump_clock: MockClock) -> None:
    """Two commands wait: the third is refused at once, and may come again later."""
    cluster = FakeCluster()
    cluster.delay_seconds, cluster.proposals_max = 1.0, 2
    async with trio.open_nursery() as nursery:
        for broker_id in (1, 2):
            nursery.start_soon(cluster.leader.propose, registration(broker_id))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(QuorumBusy, match="2 proposals wait"):
            await cluster.leader.propose(registration(3))
    await cluster.leader.propose(registration(3))
    assert set(cluster.leader.image.brokers) == {1, 2, 3}


async def test_followers_lag_as_long_as_they_are_told_to(autojump_clock: MockClock) -> None:
    """Two seconds behind; cut off, for ever; elected, not at all."""
    cluster = FakeCluster()
    cluster.follow_seconds = 2.0
    cluster.isolate(3)
    await cluster.leader.propose(registration(1))
    started = trio.current_time()
    await cluster.nodes[2].wait_changed(0)
    assert trio.current_time() - started == pytest.approx(2.0)
    assert not cluster.nodes[3].image.brokers
    cluster.heal()
    assert cluster.nodes[3].image.brokers
    await cluster.leader.propose(registration(2))
    assert len(cluster.nodes[2].image.brokers) == 1
    assert len(cluster.elect(2).image.brokers) == 2


async def test_a_cut_off_node_loses_sight_of_the_leader(autojump_clock: MockClock) -> None:
    """For a second it believes what it knew, then nothing."""
    cluster = FakeCluster()
    before = cluster.nodes[2].leadership
    cluster.isolate(2)
    started = trio.current_time()
    assert cluster.nodes[2].leadership == before
    after = await cluster.nodes[2].wait_leadership_changed(before)
    assert trio.current_time() - started == pytest.approx(CUT_OFF_SECONDS)
    assert after == before._replace(leader_id=None)
