"""Leaders are elected on demand: the preferred ones, or anybody."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.elections import ElectionRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    AlterPartition,
    Done,
    ElectionKind,
    ElectLeader,
    PartitionAltered,
    PartitionId,
    ProposedIsrMember,
    ReassignPartition,
    UnfenceBroker,
)
from raftmq.wire.messages.topics import ElectLeaders, WantedElection
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    UNKNOWN,
    ask,
    changes,
    cluster_of,
    codes,
    fence,
    make,
    said,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.image import PartitionState
    from tests.simulation.quorum_fake import FakeCluster

KEY = PartitionId(ORDERS, 0)


async def elect(
    cluster: FakeCluster,
    *wanted: WantedElection,
    is_unclean: bool = False,
    starts_empty: bool = False,
) -> list[int]:
    requests = ElectionRequests(changes(cluster), Random(1))
    reply = await ask(requests.elect, ElectLeaders(wanted, is_unclean, starts_empty=starts_empty))
    return codes(reply.partitions)


def state_of(cluster: FakeCluster) -> PartitionState:
    return cluster.nodes[NODE].image.partitions[KEY]


async def back_in_sync(cluster: FakeCluster, broker_id: int) -> None:
    """It was fenced, comes back, and has caught up with the leader."""
    brokers = cluster.leader.image.brokers
    await said(cluster, UnfenceBroker(broker_id, brokers[broker_id].broker_epoch))
    state = cluster.leader.image.partitions[KEY]
    members = sorted({*state.isr, broker_id})
    command = AlterPartition(
        state.leader,
        brokers[state.leader].broker_epoch,
        *KEY,
        state.leader_epoch,
        state.partition_epoch,
        tuple(ProposedIsrMember(member, brokers[member].broker_epoch) for member in members),
    )
    assert isinstance(await cluster.leader.propose(command), PartitionAltered)


async def test_the_preferred_leader_comes_back(autojump_clock: MockClock) -> None:
    """It was away and is in sync again; the answer waits until this node knows, which lags."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (3, 1))
    await fence(cluster, 3)
    assert state_of(cluster).leader == 1
    assert await elect(cluster, WantedElection(*KEY)) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    await back_in_sync(cluster, 3)
    cluster.follow_seconds = 0.5
    started = trio.current_time()
    assert await elect(cluster, WantedElection(*KEY)) == [0]
    assert state_of(cluster).leader == 3
    assert trio.current_time() - started == pytest.approx(0.5)


async def test_each_partition_stands_for_itself(autojump_clock: MockClock) -> None:
    """Led already; of an epoch that is over; no such partition; no such topic; one twice."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), (1,), (1,))
    assert await elect(
        cluster,
        WantedElection(ORDERS, 0),
        WantedElection(ORDERS, 1, leader_epoch=7),
        WantedElection(ORDERS, 9),
        WantedElection(UNKNOWN, 0),
        WantedElection(ORDERS, 2),
        WantedElection(ORDERS, 2),
    ) == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]


async def test_an_unclean_election(autojump_clock: MockClock) -> None:
    """All who were in sync are away: nobody leads until somebody who lacks records may."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (3, 2), min_insync_replicas="1")
    await fence(cluster, 2)
    epoch = cluster.leader.image.brokers[2].broker_epoch
    await fence(cluster, 3)
    await said(cluster, UnfenceBroker(2, epoch))
    assert state_of(cluster).leader == -1
    assert await elect(cluster, WantedElection(*KEY)) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert await elect(cluster, WantedElection(*KEY), is_unclean=True) == [0]
    assert state_of(cluster).leader == 2


async def lost_partition() -> FakeCluster:
    """Three brokers; the only one that has the partition is away."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (3,))
    await fence(cluster, 3)
    assert state_of(cluster).leader == -1
    return cluster


async def unfence(cluster: FakeCluster, broker_id: int) -> None:
    await said(
        cluster, UnfenceBroker(broker_id, cluster.leader.image.brokers[broker_id].broker_epoch)
    )


async def test_a_lost_partition_starts_empty(autojump_clock: MockClock) -> None:
    """Its only broker is gone for good: another one leads in a later epoch, and has the only
    replica once it has said so. The lost one has none any more, should it come back.
    """
    cluster = await lost_partition()
    epoch = state_of(cluster).leader_epoch
    assert await elect(cluster, WantedElection(*KEY), is_unclean=True) == [
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    ]
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [0]
    state = state_of(cluster)
    assert state.leader in (1, 2)
    assert (state.isr, state.leader_epoch > epoch) == ((state.leader,), True)
    await propose_isr(cluster)
    assert state_of(cluster).replicas == (state.leader,)
    await unfence(cluster, 3)
    assert state_of(cluster).leader == state.leader


async def propose_isr(cluster: FakeCluster) -> None:
    """The leader has started, and is in sync with itself."""
    state = cluster.leader.image.partitions[KEY]
    brokers = cluster.leader.image.brokers
    command = AlterPartition(
        state.leader,
        brokers[state.leader].broker_epoch,
        *KEY,
        state.leader_epoch,
        state.partition_epoch,
        (ProposedIsrMember(state.leader, brokers[state.leader].broker_epoch),),
    )
    assert isinstance(await cluster.leader.propose(command), PartitionAltered)


async def test_all_of_three_replicas_are_lost(autojump_clock: MockClock) -> None:
    """As many new replicas as there were, or as there are brokers."""
    cluster = await cluster_of(*[None] * 5)
    await make(cluster, (3, 4, 5))
    for broker_id in (3, 4, 5):
        await fence(cluster, broker_id)
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [0]
    assert set(state_of(cluster).adding) == {1, 2}


async def test_what_is_there_does_not_start_empty(autojump_clock: MockClock) -> None:
    """It has a leader: nothing is given up. No such partition; no broker is active at all."""
    cluster = await cluster_of(None, None)
    await make(cluster, (1,))
    before = state_of(cluster)
    assert await elect(
        cluster, WantedElection(*KEY), WantedElection(ORDERS, 9), starts_empty=True
    ) == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert state_of(cluster) == before
    for broker_id in (1, 2):
        await fence(cluster, broker_id)
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ]


async def test_asked_twice_it_has_not_failed(autojump_clock: MockClock) -> None:
    """A program asks again as the answer got lost: the partition has a leader, before the new
    replica is the only one and after it.
    """
    cluster = await lost_partition()
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [0]
    for _ in range(2):
        assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [
            ErrorCode.ELECTION_NOT_NEEDED
        ]
        await propose_isr(cluster)


async def test_lost_partitions_are_spread(autojump_clock: MockClock) -> None:
    """Forty partitions are lost, and one of four brokers has fewest: not all of them go there."""
    cluster = await cluster_of(*[None] * 5)
    await make(cluster, *[(3,)] * 40, *[(1,), (2,), (4,)] * 2)
    await fence(cluster, 3)
    wanted = [WantedElection(ORDERS, number) for number in range(40)]
    assert await elect(cluster, *wanted, starts_empty=True) == [0] * 40
    partitions = cluster.nodes[NODE].image.partitions.values()
    led = Counter(one.leader for one in partitions)
    assert sorted(led.values()) == [11, 11, 12, 12]


async def test_a_replica_with_records_comes_before_an_empty_one(autojump_clock: MockClock) -> None:
    """An empty start was interrupted, and a replica that was not in sync is back: it is no more
    refused than before, and an unclean election, which is what is advised, elects it.
    """
    cluster = await cluster_of(*[None] * 4)
    await make(cluster, (3, 2), min_insync_replicas="1")
    await fence(cluster, 2)
    await fence(cluster, 3)
    await said(cluster, ReassignPartition(*KEY, state_of(cluster).partition_epoch, (1, 4)))
    await unfence(cluster, 2)
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [
        ErrorCode.INVALID_REQUEST
    ]
    assert await elect(cluster, WantedElection(*KEY), is_unclean=True) == [0]
    state = state_of(cluster)
    assert (state.leader, state.replicas, state.adding) == (2, (3, 2), ())


async def test_a_start_that_was_interrupted(autojump_clock: MockClock) -> None:
    """The new replica was named, and no leader: asked again, it goes on."""
    cluster = await lost_partition()
    await said(cluster, ReassignPartition(*KEY, state_of(cluster).partition_epoch, (1,)))
    assert state_of(cluster).leader == -1
    assert await elect(cluster, WantedElection(*KEY), starts_empty=True) == [0]
    assert state_of(cluster).leader == 1


@pytest.mark.parametrize("seed", range(30))
async def test_nothing_is_given_up_that_is_back(autojump_clock: MockClock, seed: int) -> None:
    """The two commands of an empty start, whatever happens before, between and after them: the
    second one elects an empty replica only while the broker with the records is fenced.
    """
    random, cluster = Random(seed), await lost_partition()
    is_given_up = False
    for _ in range(12):
        state, brokers = state_of(cluster), cluster.leader.image.brokers
        is_back = not brokers[3].fenced
        match random.randrange(4):
            case 0:
                command = ReassignPartition(*KEY, state.partition_epoch, (random.choice((1, 2)),))
                await cluster.leader.propose(command)
            case 1:
                result = await cluster.leader.propose(ElectLeader(*KEY, ElectionKind.UNCLEAN))
                chosen = cluster.leader.image.partitions[KEY].leader
                if result == Done() and chosen != 3:
                    assert not is_back or is_given_up
                    is_given_up = True
            case 2 if not is_back:
                await unfence(cluster, 3)
            case 3 if is_back:
                await fence(cluster, 3)
        leader = cluster.leader.image.partitions[KEY].leader
        # Back before that, it leads again with all that it has, once it is reviewed.
        assert is_given_up or leader in (-1, 3)
