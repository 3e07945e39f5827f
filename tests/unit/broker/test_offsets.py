"""Offsets of times and ends of epochs, from the leader, and never beyond what is committed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.broker.requests.offsets import ListOffsetsRequests
from raftmq.errors import ErrorCode
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.offsets import (
    EARLIEST,
    LATEST,
    FoundEpoch,
    FoundOffset,
    ListOffsets,
    OffsetForLeaderEpoch,
    WantedEpoch,
    WantedOffset,
)
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.asking import CONTEXT, UNKNOWN, ask
from tests.unit.broker.hosting import TOPIC_ID, create_topic, opened, register, settle
from tests.unit.storage.batches import NOW_MS, batch
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node


@asynccontextmanager
async def leading(
    *replicas: int, disk: Disk | None = None, durability: str = "fsync"
) -> AsyncIterator[tuple[Node, Replica]]:
    """Broker 1 leads a partition with these replicas; the others are known and do nothing."""
    run_sync = disk or Disk()
    cluster = FakeCluster()
    for broker_id in replicas[1:]:
        await register(cluster, broker_id)
    async with opened(SimulatedFiles(Random(0)), cluster, run_sync=run_sync) as node:
        await node.register()
        await create_topic(cluster, replicas, durability=durability)
        await settle()
        yield node, node.replicas.get(TOPIC_ID, 0)


async def next_epoch(replica: Replica) -> None:
    assert replica.assignment is not None
    epoch, change = replica.assignment.leader_epoch, replica.assignment.partition_epoch
    await replica.take_up(
        replica.assignment._replace(leader_epoch=epoch + 1, partition_epoch=change + 1)
    )


async def find(
    node: Node, timestamp: int, *, leader_epoch: int = -1, partition: int = 0
) -> FoundOffset:
    wanted = WantedOffset(TOPIC_ID, partition, leader_epoch, timestamp)
    reply = await ask(
        ListOffsetsRequests(node.replicas, node.directory).list_offsets, ListOffsets((wanted,))
    )
    found: FoundOffset = reply.partitions[0]
    return found


async def end_of(node: Node, leader_epoch: int, *, current: int = -1) -> FoundEpoch:
    wanted = WantedEpoch(TOPIC_ID, 0, current, leader_epoch)
    handler = ListOffsetsRequests(node.replicas, node.directory).find_epochs
    found: FoundEpoch = (await ask(handler, OffsetForLeaderEpoch((wanted,)))).partitions[0]
    return found


async def test_both_ends_and_a_time(autojump_clock: MockClock) -> None:
    """Three records of three seconds: their ends, the first at or after a time, none so young."""
    async with leading(1) as (node, replica):
        for second in range(3):
            replica.append(batch(b"x", timestamp=NOW_MS + 1000 * second), acks=-1)
        await settle()
        await node.directory.delete_records(replica.log, 1)
        assert await find(node, EARLIEST) == FoundOffset(TOPIC_ID, 0, offset=1, leader_epoch=0)
        assert await find(node, LATEST) == FoundOffset(TOPIC_ID, 0, offset=3, leader_epoch=0)
        assert await find(node, NOW_MS + 1500) == FoundOffset(
            TOPIC_ID, 0, timestamp=NOW_MS + 2000, offset=2, leader_epoch=0
        )
        assert await find(node, NOW_MS + 2001) == FoundOffset(TOPIC_ID, 0)


async def test_only_a_search_by_time_waits(autojump_clock: MockClock) -> None:
    """The ends are answered in the order of arrival, on the spot."""
    async with leading(1) as (node, _):
        handler = ListOffsetsRequests(node.replicas, node.directory).list_offsets
        wanted = WantedOffset(TOPIC_ID, 0, -1, LATEST)
        assert isinstance(handler(CONTEXT, ListOffsets((wanted,)), b""), Reply)
        wanted = WantedOffset(TOPIC_ID, 0, -1, 0)
        reply = await ask(handler, ListOffsets((wanted, WantedOffset(TOPIC_ID, 0, -1, EARLIEST))))
        assert [found.offset for found in reply.partitions] == [-1, 0]


async def test_what_is_not_committed_is_not_given_away(autojump_clock: MockClock) -> None:
    """A follower has not come for the records: neither the end nor a time reaches into them."""
    async with leading(1, 2) as (node, replica):
        replica.append(batch(b"a", b"b"), acks=1)
        await settle()
        assert (replica.log.durable_end_offset, replica.high_watermark) == (2, 0)
        assert (await find(node, LATEST)).offset == 0
        assert await find(node, 0) == FoundOffset(TOPIC_ID, 0)


async def test_a_new_leader_does_not_know_the_end(autojump_clock: MockClock) -> None:
    """Elected with records that may be committed: OFFSET_NOT_AVAILABLE, but the start is known."""
    async with leading(1, 2) as (node, replica):
        replica.append(batch(b"a", b"b"), acks=1)
        await next_epoch(replica)
        for timestamp in (LATEST, 0):
            found = await find(node, timestamp)
            assert (found.error, found.offset) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert (await find(node, EARLIEST)).offset == 0


async def test_leadership_that_ends_during_a_search(autojump_clock: MockClock) -> None:
    """What the log said then may have been cut: the answer is an error."""
    disk = Disk()
    async with leading(1, disk=disk) as (node, replica):
        replica.append(batch(b"a"), acks=-1)
        await settle()
        codes: list[int] = []

        async def search() -> None:
            codes.append((await find(node, 0)).error)

        disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(search)
            await trio.sleep(0.5)
            await next_epoch(replica)
        assert codes == [ErrorCode.FENCED_LEADER_EPOCH]


async def test_epochs_of_the_asker(autojump_clock: MockClock) -> None:
    """An epoch that is over, one that is not known here yet, and partitions of others."""
    async with leading(1) as (node, replica):
        await next_epoch(replica)
        for epoch, code in [
            (0, ErrorCode.FENCED_LEADER_EPOCH),
            (1, ErrorCode.NONE),
            (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ]:
            for timestamp in (LATEST, EARLIEST, 0):
                assert (await find(node, timestamp, leader_epoch=epoch)).error == code
            assert (await end_of(node, 0, current=epoch)).error == code
        assert (await find(node, LATEST, partition=5)).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted = WantedOffset(UNKNOWN, 0, -1, LATEST)
        handler = ListOffsetsRequests(node.replicas, node.directory).list_offsets
        reply = await ask(handler, ListOffsets((wanted,)))
        assert reply.partitions[0].error == ErrorCode.UNKNOWN_TOPIC_ID


async def test_where_epochs_end(autojump_clock: MockClock) -> None:
    """Epoch 0 wrote two records and epoch 3 one: 1 and 2 end with 0, later ones are not known."""
    async with leading(1) as (node, replica):
        replica.append(batch(b"a", b"b"), acks=-1)
        for _ in range(3):
            await next_epoch(replica)
        replica.append(batch(b"c"), acks=-1)
        assert await end_of(node, 0) == FoundEpoch(TOPIC_ID, 0, leader_epoch=0, end_offset=2)
        assert await end_of(node, 2) == FoundEpoch(TOPIC_ID, 0, leader_epoch=0, end_offset=2)
        assert await end_of(node, 3) == FoundEpoch(TOPIC_ID, 0, leader_epoch=3, end_offset=3)
        assert await end_of(node, 4) == FoundEpoch(TOPIC_ID, 0)


async def test_a_follower_tells_nothing(autojump_clock: MockClock) -> None:
    """Only the leader knows: who asks the wrong broker is told to ask for the leader."""
    async with leading(1, 2) as (node, replica):
        assert replica.assignment is not None
        await replica.take_up(
            replica.assignment._replace(leader=2, leader_epoch=1, partition_epoch=9)
        )
        for timestamp in (LATEST, EARLIEST, 0):
            assert (await find(node, timestamp)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await end_of(node, 0)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
