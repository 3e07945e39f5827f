"""Transactions on one broker: decided by the fake quorum, written by hand, in one line each."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.commands import (
    EndTransactions,
    JoinTransactions,
    OpenTransaction,
    SharedEnd,
    TransactionEnd,
    TransactionJoin,
    TransactionOpened,
    TransactionsEnded,
    TransactionsJoined,
)
from raftmq.metadata.image import slot_of
from raftmq.metadata.transactions import block_of
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ACKS_ALL
from tests.log_reading import read_batches
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, create_topic, opened, register, settle
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.disk.thread import RunSync
    from raftmq.partition.replica import Replica
    from raftmq.wire.batch.control import ControlType
    from tests.unit.broker.hosting import Node

OWNER = b"o" * 16
ID = "billing"
HERE = 2  # node 1 leads the quorum, so this one's metadata may lag


@asynccontextmanager
async def leading(
    *,
    partitions: int = 1,
    run_sync: RunSync = run_inline,
    now_ms: Callable[[], int] = lambda: NOW_MS,
    beside: tuple[int, ...] = (),
    **configs: str,
) -> AsyncIterator[tuple[FakeCluster, Node]]:
    """This broker leads, alone, or with these followers, which never fetch. `configs`: of the
    topic."""
    cluster = FakeCluster()
    await register(cluster, 1)
    async with opened(
        SimulatedFiles(Random(0)), cluster, HERE, run_sync=run_sync, now_ms=now_ms
    ) as node:
        await node.register()
        await create_topic(cluster, *[(HERE, *beside)] * partitions, **configs)
        await settle()
        yield cluster, node


def markers(replica: Replica) -> list[tuple[int, ControlType | int]]:
    """(producer id, kind) of each, in order."""
    found, offset = [], replica.log.log_start_offset
    while offset < replica.log.log_end_offset:
        for one in read_batches(replica.log, offset):
            offset = one.header.end_offset
            if one.header.is_control:
                found.append((one.header.producer_id, one.control.type))
    return found


class Producer(NamedTuple):
    """Of a transaction id, in one of its epochs."""

    producer_id: int
    epoch: int

    def batch(self, *values: bytes, sequence: int = 0) -> bytes:
        return bytes(
            encode_batch(
                values=list(values) or [b"x"],
                timestamp=NOW_MS,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

    def send(self, replica: Replica, *values: bytes, sequence: int = 0) -> int:
        """Returns the offset of the batch."""
        data = self.batch(*values, sequence=sequence)
        return replica.append(data, acks=ACKS_ALL).base_offset

    @property
    def next(self) -> Producer:
        return self._replace(epoch=self.epoch + 1)


async def open_id(
    cluster: FakeCluster, name: str = ID, *, owner: bytes = OWNER, timeout_ms: int = 60_000
) -> Producer:
    slot = cluster.leader.image.slots[slot_of(name)]
    opened = await cluster.leader.propose(OpenTransaction(slot.epoch, name, owner, 1, timeout_ms))
    assert isinstance(opened, TransactionOpened), f"{opened}"
    return Producer(opened.producer_id, opened.producer_epoch)


async def end(
    cluster: FakeCluster,
    producer: Producer,
    name: str = ID,
    *,
    is_commit: bool = True,
    partitions: tuple[int, ...] = (0,),
) -> None:
    number = slot_of(name)
    its = tuple((TOPIC_ID, partition) for partition in partitions) if is_commit else ()
    ended = TransactionEnd(name, *producer, is_commit, OWNER, partitions=its)
    command = EndTransactions(number, cluster.leader.image.slots[number].epoch, (ended,))
    result = await cluster.leader.propose(command)
    assert result == TransactionsEnded(()), f"{result}"


async def join(
    cluster: FakeCluster, version: int = 0, name: str = ID, *, timeout_ms: int = 60_000
) -> Producer:
    """A member of a shared transaction."""
    number = slot_of(name)
    joins = (TransactionJoin(name, "", version, timeout_ms),)
    command = JoinTransactions(number, cluster.leader.image.slots[number].epoch, joins)
    result = await cluster.leader.propose(command)
    assert isinstance(result, TransactionsJoined), f"{result}"
    (joined,) = result.outcomes
    return Producer(joined.block + joined.number, 0)


async def commit_members(
    cluster: FakeCluster,
    *members: Producer,
    version: int = 0,
    name: str = ID,
    partitions: tuple[int, ...] = (0,),
) -> None:
    number, block = slot_of(name), block_of(members[0].producer_id)
    bits = sum(1 << each.producer_id - block for each in members)
    shared = SharedEnd("", bits.to_bytes(16, "little").rstrip(bytes(1)))
    its = tuple((TOPIC_ID, partition) for partition in partitions)
    ended = TransactionEnd(
        name, block, 0, is_commit=True, version=version, partitions=its, shared=shared
    )
    command = EndTransactions(number, cluster.leader.image.slots[number].epoch, (ended,))
    result = await cluster.leader.propose(command)
    assert isinstance(result, TransactionsEnded), f"{result}"
    assert result.outcomes[0].is_committed, f"{result}"
