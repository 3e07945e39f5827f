"""Replicas on simulated disks under a MockClock, told by hand what the cluster has decided."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.partition.leader import Assignment
from raftmq.partition.replica import Replica
from raftmq.partition.replica_environment import FetchedFromLeader, PartitionKey, ReplicaEnvironment
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.directories import Disk, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.errors import RaftmqError
    from raftmq.partition.leader import ProposeIsr
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.topic_config import TopicConfig
    from raftmq.wire.batch.header import Buffer

TOPIC_ID = bytes(range(16))
KEY = PartitionKey(TOPIC_ID, 0)


def broker_epoch(broker_id: int) -> int:
    return 100 + broker_id


def led_by(
    leader: int,
    epoch: int = 0,
    *,
    change: int | None = None,
    replicas: tuple[int, ...] = (1, 2),
    isr: tuple[int, ...] | None = None,
    min_isr: int = 1,
    start: int = 0,
) -> Assignment:
    """`change`: the partition epoch, by default the leader epoch."""
    partition_epoch = epoch if change is None else change
    return Assignment(
        leader,
        epoch,
        partition_epoch,
        replicas,
        isr or replicas,
        min_isr,
        log_start_offset=start,
    )


async def wait_acks(
    replica: Replica, end_offset: int, *, acks: int, leader_epoch: int, deadline: float
) -> None:
    """As a producer waits; raises what it would be told."""
    told = trio.Event()
    errors: list[RaftmqError | None] = []

    def on_end(error: RaftmqError | None) -> None:
        errors.append(error)
        told.set()

    waiter = replica.on_acks(
        end_offset, on_end, acks=acks, leader_epoch=leader_epoch, deadline=deadline
    )
    try:
        await told.wait()
    finally:
        if waiter is not None:
            waiter.abandon()
    if errors[0] is not None:
        raise errors[0]


class Machine:
    """One broker's directory and what its replicas have asked for.

    Attributes:
        wishes: proposals for in-sync sets.
        held: partitions of which a follower holds more.
    """

    def __init__(
        self, broker_id: int, directory: LogDirectory, files: SimulatedFiles, disk: Disk
    ) -> None:
        self.broker_id, self.directory, self.files, self.disk = broker_id, directory, files, disk
        self.wishes: list[ProposeIsr] = []
        self.held: list[PartitionKey] = []
        self.around = ReplicaEnvironment(
            broker_id,
            broker_epoch,
            lambda _key, proposal: self.wishes.append(proposal),
            self.held.append,
        )

    async def replica(self, key: PartitionKey = KEY, config: TopicConfig | None = None) -> Replica:
        log = await self.directory.open_log(key.topic_id.hex(), key.partition, config)
        return Replica(key, log, self.directory, self.around, high_watermark=0)


@asynccontextmanager
async def machine(broker_id: int = 1) -> AsyncIterator[Machine]:
    files, disk = SimulatedFiles(Random(broker_id)), Disk()
    async with opened(files, disk) as directory:
        yield Machine(broker_id, directory, files, disk)


async def settle(seconds: float = 0.05) -> None:
    """A moment on the `autojump_clock`, in which everybody does what there is to do."""
    await trio.sleep(seconds)


class News:
    """Counts what a watcher is told."""

    def __init__(self) -> None:
        self.keys: list[PartitionKey] = []

    def on_news(self, key: PartitionKey) -> None:
        self.keys.append(key)

    on_append = on_high_watermark = on_news


async def exchange(leader: Replica, follower: Replica, *, bytes_max: int = 1 << 20) -> Buffer:
    """One fetch and its answer, and what the follower then holds; returns the bytes."""
    epoch = leader.leading().leader_epoch
    fetch = follower.next_fetch()
    assert fetch is not None, "nothing to ask"
    diverged = leader.on_replica_fetch(
        2, broker_epoch(2), fetch, leader_epoch=epoch, now=trio.current_time()
    )
    if diverged:
        await follower.on_fetched(fetch.token, FetchedFromLeader(diverged=diverged))
        return b""
    log = leader.log
    data = read_slice(log, fetch.fetch_offset, bytes_max=bytes_max).bytes.read()
    await follower.on_fetched(
        fetch.token, FetchedFromLeader(data, leader.high_watermark, log.log_start_offset)
    )
    return data
