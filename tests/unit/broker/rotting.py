"""A broker whose log of a few batches rots, and what it says of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from raftmq.metadata.commands import (
    AlterPartition,
    PartitionAltered,
)
from raftmq.metadata.commands import ProposedIsrMember as Member
from raftmq.partition.replica_environment import PartitionKey
from raftmq.wire.messages.corruption import DescribeDamage, ReportCorruption
from tests.simulation.deterministic import run_inline
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.asking import CONTEXT, ask
from tests.unit.broker.hosting import TOPIC_ID, begin, opened, settle, state_of
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.disk.thread import RunSync
    from raftmq.partition.replica import Replica
    from tests.simulation.disk import SimulatedFiles
    from tests.unit.broker.hosting import Node

KEY = PartitionKey(TOPIC_ID, 0)
SIZE = len(batch(b"0"))
COUNT, BAD = 6, 2


async def fill(replica: Replica) -> None:
    for number in range(COUNT):
        replica.append(batch(b"%d" % number), acks=1)
    await replica._directory.flusher.wait_durable(replica.log, COUNT)
    await replica._directory.checkpoint()


@asynccontextmanager
async def filled(
    files: SimulatedFiles,
    *replicas: int,
    run_sync: RunSync = run_inline,
    **configs: str,
) -> AsyncIterator[tuple[Node, Replica]]:
    """A leader, beside others if there are more `replicas`, that has written all records. The
    others have them, too.
    """
    replicas = replicas or (1,)
    async with opened(files, FakeCluster(max(replicas)), run_sync=run_sync) as node:
        replica = await begin(node, *replicas, **configs)
        await fill(replica)
        node.donor.batches = batches_of(replica)
        yield node, replica


def batches_of(replica: Replica) -> dict[int, bytes]:
    """What other replicas hold, too."""
    file = replica.log.segments[0].file
    return {offset: file.read(offset * SIZE, SIZE) for offset in range(replica.log.log_end_offset)}


def rot(files: SimulatedFiles, replica: Replica, offset: int = BAD) -> None:
    files.flip_bit(replica.log.segments[0].path, (offset + 1) * SIZE - 1, 0)


async def report(
    node: Node, offset: int = BAD, *, leader_epoch: int = -1, connection_id: int = 1
) -> Any:
    request = ReportCorruption(*KEY, offset, leader_epoch)
    with trio.fail_after(60):
        context = CONTEXT._replace(connection_id=connection_id)
        return await ask(node.rot_watch.report, request, context)


async def damaged(node: Node) -> list[tuple[int, int]]:
    """Partition and offset of what this broker tells of."""
    reply = await ask(node.rot_watch.describe, DescribeDamage())
    assert reply.count == len(reply.replicas)
    return [(one.partition, one.offset) for one in reply.replicas]


async def until_whole(node: Node, *, seconds: float = 60) -> None:
    with trio.fail_after(seconds):
        while not node.replicas.get(*KEY).log.is_whole:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def in_sync(node: Node, *members: int) -> None:
    """The leader proposes it."""
    image, state = node.cluster.leader.image, state_of(node)
    epochs = tuple(Member(each, image.brokers[each].broker_epoch) for each in members)
    command = AlterPartition(
        1, node.epoch.value, *KEY, state.leader_epoch, state.partition_epoch, epochs
    )
    assert isinstance(await node.cluster.leader.propose(command), PartitionAltered)
    await settle()
