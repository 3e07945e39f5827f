"""What tests say to a cluster of real voters, and settings that make snapshots frequent.

Owns shorthand only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.commands import BrokerRegistered, CommandId
from raftmq.metadata.raft.engine.timing import QuorumLimits
from tests.unit.metadata.quorum_harness import BROKER, allocation, registration

if TYPE_CHECKING:
    from tests.simulation.raft_cluster import RaftCluster

EAGER = QuorumLimits(snapshot_entries=10, trailing_entries=0)


async def registered(cluster: RaftCluster) -> int:
    """The epoch of a broker."""
    result = await (await cluster.leader()).propose(registration())
    assert isinstance(result, BrokerRegistered)
    return result.broker_epoch


async def allocate(cluster: RaftCluster, epoch: int, count: int) -> None:
    """Ten producer ids at a time; the command ids of a broker's epoch begin with 0."""
    leader = await cluster.leader()
    for sequence in range(count):
        await leader.propose(allocation(epoch), command_id=CommandId(BROKER, epoch, sequence))


async def fill(cluster: RaftCluster, count: int) -> int:
    """A new epoch, in which this many commands went through."""
    epoch = await registered(cluster)
    await allocate(cluster, epoch, count)
    return epoch
