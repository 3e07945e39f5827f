"""What happens to a broker's replicas and logs while they are repaired, in a line each.

For tests that take `autojump_clock`: a slow disk sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.metadata.commands import Done
from raftmq.partition.leader import FetchFromLeader
from tests.unit.broker.hosting import create_topic, opened, register, settle
from tests.unit.broker.test_repairs import KEY, LOG_FILES, log_durable
from tests.unit.storage.batches import append, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import AnyCommand
    from raftmq.partition.replica import Replica
    from tests.simulation.disk import SimulatedFiles
    from tests.simulation.quorum_fake import FakeCluster

T = TypeVar("T")

STEP_SECONDS = 0.05


class SlowDisk:
    """Works as worker threads do: after a while, whether or not anybody waits still.

    Attributes:
        begun: set by the next step that begins.
    """

    def __init__(self) -> None:
        self.begun = trio.Event()

    async def run_sync(self, function: Callable[[], T], /) -> T:
        self.begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(STEP_SECONDS)
        return function()

    async def wait_begun(self) -> None:
        """Something that was not under way before this call."""
        self.begun = trio.Event()
        await self.begun.wait()


async def order(cluster: FakeCluster, command: AnyCommand) -> None:
    result = await cluster.leader.propose(command)
    assert isinstance(result, Done), f"{result}"


async def stopped_with_a_record(
    files: SimulatedFiles, cluster: FakeCluster, *replicas: int
) -> None:
    """Broker 1 has stopped in order; what it holds of the topic is b"a"."""
    async with opened(files, cluster) as node:
        await node.register()
        for broker_id in set(replicas) - {1}:
            await register(cluster, broker_id)
        await create_topic(cluster, replicas)
        await settle()
        replica = node.replicas.get(*KEY)
        if replica.leader is None:
            append(replica.log, b"a")
        else:
            replica.append(batch(b"a"), acks=1)
        await log_durable(replica)


def epoch_of(cluster: FakeCluster, broker_id: int) -> int:
    return cluster.nodes[1].image.brokers[broker_id].broker_epoch


def hold(cluster: FakeCluster, replica: Replica, end_offset: int) -> None:
    """Its follower, broker 2, has everything before `end_offset`."""
    epoch = epoch_of(cluster, 2)
    replica.on_replica_fetch(
        2, epoch, FetchFromLeader(1, end_offset, 0), leader_epoch=0, now=trio.current_time()
    )
    replica.on_replica_progress(2, epoch, end_offset, leader_epoch=0, now=trio.current_time())


async def fail_leading(files: SimulatedFiles, replica: Replica) -> None:
    """The sync of the next record does."""
    files.fail("sync", LOG_FILES)
    replica.append(batch(b"lost"), acks=1)
    with pytest.raises(StorageError):
        await log_durable(replica)
