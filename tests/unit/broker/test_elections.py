"""Leaders are elected on demand: the preferred ones, or anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.topics import ElectionRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    AlterPartition,
    PartitionAltered,
    PartitionId,
    ProposedIsrMember,
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
    cluster: FakeCluster, *wanted: WantedElection, is_unclean: bool = False
) -> list[int]:
    reply = await ask(ElectionRequests(changes(cluster)).elect, ElectLeaders(wanted, is_unclean))
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
