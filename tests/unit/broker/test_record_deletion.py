"""Records are deleted from the front, durably, and only what is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.record_deletion import RecordDeletion
from raftmq.errors import ErrorCode
from raftmq.wire.messages.topics import DeleteRecords, RecordsDeleted, RecordsToDelete
from tests.unit.broker.asking import UNKNOWN, ask
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.test_offsets import leading, next_epoch
from tests.unit.storage.batches import batch
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node


async def delete(node: Node, before_offset: int, *, topic_id: bytes = TOPIC_ID) -> RecordsDeleted:
    handler = RecordDeletion(node.replicas, node.directory).delete
    request = DeleteRecords((RecordsToDelete(topic_id, 0, before_offset),))
    deleted: RecordsDeleted = (await ask(handler, request)).partitions[0]
    return deleted


async def test_the_beginning_is_forgotten(autojump_clock: MockClock) -> None:
    """Up to an offset; less than that changes nothing; -1 is all that is committed."""
    async with leading(1) as (node, replica):
        replica.append(batch(b"a", b"b", b"c"), acks=-1)
        await settle()
        for before, start in [(2, 2), (1, 2), (-1, 3), (-1, 3)]:
            deleted = await delete(node, before)
            assert (deleted.error, deleted.log_start_offset) == (ErrorCode.NONE, start)
            assert replica.log.log_start_offset == start


async def test_what_is_not_committed_stays(autojump_clock: MockClock) -> None:
    """Beyond the high watermark nothing is deleted: -1 stops there, an offset is refused."""
    async with leading(1, 2) as (node, replica):
        replica.append(batch(b"a", b"b"), acks=1)
        await settle()
        assert (await delete(node, -1)).log_start_offset == 0
        deleted = await delete(node, 1)
        assert (deleted.error, deleted.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert "committed up to 0, not up to 1" in deleted.message
        assert (await delete(node, 3)).error == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_new_leader_does_not_know_what_is_committed(autojump_clock: MockClock) -> None:
    """It says so, where the answer depends on it."""
    async with leading(1, 2) as (node, replica):
        replica.append(batch(b"a", b"b"), acks=1)
        await next_epoch(replica)
        for before, code in [
            (-1, ErrorCode.OFFSET_NOT_AVAILABLE),
            (1, ErrorCode.OFFSET_NOT_AVAILABLE),
            (3, ErrorCode.OFFSET_OUT_OF_RANGE),
            (0, ErrorCode.NONE),
        ]:
            assert (await delete(node, before)).error == code


async def test_only_the_leader_deletes(autojump_clock: MockClock) -> None:
    """A follower refuses; so does who has never heard of the topic."""
    async with leading(1, 2) as (node, replica):
        assert replica.assignment is not None
        await replica.take_up(
            replica.assignment._replace(leader=2, leader_epoch=1, partition_epoch=9)
        )
        assert (await delete(node, -1)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await delete(node, 0, topic_id=UNKNOWN)).error == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_disk_that_takes_too_long(autojump_clock: MockClock) -> None:
    """What is committed and not durable cannot be deleted: the answer comes in its time."""
    disk = Disk()
    async with leading(1, disk=disk, durability="page_cache") as (node, replica):
        disk.seconds = 10.0
        replica.append(batch(b"a"), acks=-1)
        assert replica.high_watermark == 1
        handler = RecordDeletion(node.replicas, node.directory).delete
        request = DeleteRecords((RecordsToDelete(TOPIC_ID, 0, 1),), timeout_ms=2_000)
        started = trio.current_time()
        assert (await ask(handler, request)).partitions[0].error == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - started == pytest.approx(2.0)
        assert replica.log.log_start_offset == 0
