"""R7, A11.4: nobody gets what is undecided behind a header that has rotted, and it heals."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.fetch_sessions import FetchPurgatory
from raftmq.errors import ErrorCode
from raftmq.partition.transactions import ALL_READ, UnreadPart
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import begin, opened, settle, state_of
from tests.unit.broker.readers import Reader
from tests.unit.broker.rotting import BAD, COUNT, KEY, SIZE, batches_of, in_sync, until_whole
from tests.unit.broker.test_record_deletion import delete
from tests.unit.broker.transacting import Producer
from tests.unit.storage.batches import batch
from tests.unit.storage.numbered import append, known, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node

PRODUCER, OPENED = Producer(7, 0), BAD + 1
LENGTH = 11  # position of the lowest byte of the length in a header


@asynccontextmanager
async def opened_with_rot(*offsets: int) -> AsyncIterator[tuple[Node, Replica]]:
    """A leader that is alone in sync has written a transaction, which is open, and is killed. The
    headers of these batches rot; then it leads again.
    """
    files, cluster = SimulatedFiles(Random(0)), FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, index_interval_bytes="1", min_insync_replicas="1")
        await in_sync(node, 1)
        for number in range(COUNT):
            data = PRODUCER.batch() if number == OPENED else batch(b"%d" % number)
            replica.append(data, acks=-1)
        await node.directory.flusher.wait_durable(replica.log, COUNT)
        assert replica.last_stable_offset == OPENED
        await node.directory.checkpoint()
        await node.replicas.checkpoint()
        batches = batches_of(replica)
        left = files.photograph(Random(1), power_lost=False)
    for offset in offsets:
        left.flip_bit(replica.log.segments[0].path, offset * SIZE + LENGTH, 3)
    async with opened(left, cluster) as node:
        node.donor.batches = batches
        await node.register()
        await settle()
        yield node, node.replicas.get(*KEY)


async def test_readers_wait_before_it_until_another_replica_has_put_it_right(
    autojump_clock: MockClock,
) -> None:
    """The transaction is not known here, and its records can be found by the index."""
    async with opened_with_rot(BAD) as (node, replica), trio.open_nursery() as nursery:
        await trio.sleep(30)
        assert (state_of(node).leader, replica.high_watermark) == (1, COUNT)
        assert [each.offset for each in replica.log.rotten] == [BAD]
        assert replica.open_transactions() == []
        assert replica.last_stable_offset == BAD
        waiting = FetchPurgatory()
        await nursery.start(waiting.run)
        reader = Reader(node, waiting)
        for offset in (BAD, OPENED, COUNT):
            told = await reader.told(offset)
            assert (told.error, told.length, told.last_stable_offset) == (ErrorCode.NONE, 0, BAD)
        log = replica.log
        await in_sync(node, 1, 2)
        await until_whole(node)
        await settle()
        assert (state_of(node).leader, replica.log) == (2, log)
        assert replica.log.transactions.unread == ALL_READ
        assert [each.first_offset for each in replica.open_transactions()] == [OPENED]
        assert batches_of(replica) == node.donor.batches
        fetch = replica.next_fetch()
        assert fetch is not None
        assert fetch.fetch_offset == COUNT
        nursery.cancel_scope.cancel()


async def test_what_the_first_rot_hid_is_put_right_as_well(autojump_clock: MockClock) -> None:
    """The walk after the first repair meets the second one; each reads the log once."""
    async with opened_with_rot(1, 4) as (node, replica):
        await trio.sleep(30)
        assert [each.offset for each in replica.log.rotten] == [1]
        changes = replica.log.changes
        await in_sync(node, 1, 2)
        await trio.sleep(60)
        assert replica.log.is_whole
        assert replica.log.transactions.unread == ALL_READ
        assert replica.log.changes == changes + 2
        assert [each.first_offset for each in replica.open_transactions()] == [OPENED]


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_follower_reads_back_what_an_earlier_repair_left(
    autojump_clock: MockClock, leader: int
) -> None:
    """The rot was put right, and then the leader was lost. A leader appends, and is left alone."""
    async with opened(SimulatedFiles(Random(0)), FakeCluster(2)) as node:
        replica = await begin(node, leader, 3 - leader)
        if leader == 1:
            replica.append(numbered(0), acks=1)
        else:
            append(replica.log, numbered(0))
        replica.log.producers.now.on_unread(0, 1)
        node.repairs.watch(KEY)
        await trio.sleep(60)
        assert not node.repairs.is_watched(KEY)
        changes = replica.log.changes
        assert (changes, replica.log.transactions.unread == ALL_READ) == (leader - 1, leader == 2)
        assert bool(known(replica.log)) == (leader == 2)


@pytest.mark.parametrize(
    ("start", "unread"), [(OPENED + 1, UnreadPart(BAD, COUNT)), (COUNT, ALL_READ)]
)
async def test_what_cannot_be_read_may_be_deleted(
    autojump_clock: MockClock, start: int, unread: UnreadPart
) -> None:
    """The way out where no replica has it; a part that is left holds readers at the log start."""
    async with opened_with_rot(BAD) as (node, replica):
        await trio.sleep(1)
        deleted = await delete(node, start)
        assert (deleted.error, deleted.log_start_offset) == (ErrorCode.NONE, start)
        assert replica.log.transactions.unread == unread
        assert replica.last_stable_offset == start
        replica.append(batch(b"new"), acks=-1)
        await settle()
        assert replica.last_stable_offset == (COUNT + 1 if start == COUNT else start)
