"""Records are deleted from the front, only what is committed, and once the quorum knows (A3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.metadata_changes import MetadataChanges
from raftmq.broker.requests.offsets import RecordDeletion
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    SUPPORTED_LEVEL,
    Done,
    FeatureLevel,
    FenceBroker,
    RaiseLogStart,
)
from raftmq.wire.messages.topics import DeleteRecords, RecordsDeleted, RecordsToDelete
from tests.unit.broker.asking import UNKNOWN, ask
from tests.unit.broker.hosting import TOPIC_ID, DirectLink, settle, state_of
from tests.unit.broker.test_offsets import leading, next_epoch
from tests.unit.storage.batches import batch
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.image import MetadataImage
    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node


def deletion(
    node: Node, changes: MetadataChanges | None = None, voters: tuple[int, ...] = ()
) -> RecordDeletion:
    return RecordDeletion(
        node.broker_id,
        node.replicas,
        node.directory,
        changes or MetadataChanges(node.cluster.nodes[node.broker_id], DirectLink(node.cluster)),
        broker_epoch=node.epoch.get,
        voters=voters,
    )


async def delete(node: Node, before_offset: int, *, topic_id: bytes = TOPIC_ID) -> RecordsDeleted:
    request = DeleteRecords((RecordsToDelete(topic_id, 0, before_offset),))
    deleted: RecordsDeleted = (await ask(deletion(node).delete, request)).partitions[0]
    return deleted


async def test_the_beginning_is_forgotten(autojump_clock: MockClock) -> None:
    """Up to an offset; less than that changes nothing; -1 is all that is committed."""
    async with leading(1) as (node, replica):
        replica.append(batch(b"a", b"b", b"c"), acks=-1)
        await settle()
        for before, start in [(2, 2), (1, 2), (-1, 3), (-1, 3)]:
            deleted = await delete(node, before)
            assert (deleted.error, deleted.log_start_offset) == (ErrorCode.NONE, start)
            assert replica.log.log_start_offset == state_of(node).log_start_offset == start


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
        request = DeleteRecords((RecordsToDelete(TOPIC_ID, 0, 1),), timeout_ms=2_000)
        started = trio.current_time()
        assert (await ask(deletion(node).delete, request)).partitions[
            0
        ].error == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - started == pytest.approx(2.0)
        assert replica.log.log_start_offset == 0


async def test_what_was_deleted_before_it_was_asked_for_stands_as_well(
    autojump_clock: MockClock,
) -> None:
    """Retention has gone further than what is asked for: what is answered, the quorum keeps."""
    async with leading(1) as (node, replica):
        replica.append(batch(b"a", b"b", b"c"), acks=-1)
        await settle()
        await node.directory.delete_records(replica.log, 2)
        assert state_of(node).log_start_offset == 0
        assert (await delete(node, 1)).log_start_offset == state_of(node).log_start_offset == 2


async def committed_by(node: Node, replica: Replica) -> None:
    replica.append(batch(b"a", b"b", b"c"), acks=-1)
    await settle()
    assert replica.high_watermark == 3


async def test_a_deposed_leader_deletes_nothing(autojump_clock: MockClock) -> None:
    """It has not heard of it: the quorum refuses, for certain, and the records stay."""
    async with leading(1) as (node, replica):
        await committed_by(node, replica)
        node.cluster.isolate(1)
        await node.cluster.leader.propose(FenceBroker(1, node.epoch.value))
        assert replica.leader is not None
        assert (await delete(node, 2)).error == ErrorCode.FENCED_LEADER_EPOCH
        assert replica.log.log_start_offset == 0


async def test_without_the_quorum_nothing_is_deleted(autojump_clock: MockClock) -> None:
    """Nobody leads it: that is certain. An answer is lost with the command: nobody knows."""
    async with leading(1) as (node, replica):
        await committed_by(node, replica)
        node.cluster.depose()
        assert (await delete(node, 2)).error == ErrorCode.NOT_CONTROLLER
        node.cluster.elect(1)
        node.cluster.lose_answers(1, applied=False)
        assert (await delete(node, 2)).error == ErrorCode.REQUEST_TIMED_OUT
        assert replica.log.log_start_offset == state_of(node).log_start_offset == 0


async def test_an_answer_of_the_quorum_is_lost(autojump_clock: MockClock) -> None:
    """The start shows in the metadata all the same: the records are deleted."""
    async with leading(1) as (node, replica):
        await committed_by(node, replica)
        node.cluster.lose_answers(1, applied=True)
        assert (await delete(node, 2)).log_start_offset == replica.log.log_start_offset == 2


@pytest.mark.parametrize(
    ("level_max", "voters", "code", "words"),
    [
        (FeatureLevel.FIRST, (1,), ErrorCode.UNSUPPORTED_VERSION, "upgrade brokers [1];"),
        (SUPPORTED_LEVEL, (1, 2, 3), ErrorCode.UNSUPPORTED_VERSION, "voters [2, 3] have not"),
        (SUPPORTED_LEVEL, (1,), ErrorCode.NOT_CONTROLLER, "nodes know it: ask again,"),
    ],
)
async def test_deleting_waits_for_its_feature_level(
    level_max: int,
    voters: tuple[int, ...],
    code: ErrorCode,
    words: str,
    autojump_clock: MockClock,
) -> None:
    """Nothing is asked of the quorum while a node is of an older version, or may be; where none is,
    the level rises in a moment, or has, and it is worth another try.
    """
    async with leading(1) as (node, replica):
        await committed_by(node, replica)
        older = OlderMetadata(node.cluster.nodes[1], DirectLink(node.cluster))
        older.level_max = level_max
        request = DeleteRecords((RecordsToDelete(TOPIC_ID, 0, 2),))
        told = (await ask(deletion(node, older, voters).delete, request)).partitions[0]
        assert told.error == code
        assert words in told.message
        assert replica.log.log_start_offset == state_of(node).log_start_offset == 0


class OlderMetadata(MetadataChanges):
    """`level_max`: what the broker says that it knows."""

    level_max: int

    @property
    def image(self) -> MetadataImage:
        image = super().image
        broker = replace(image.brokers[1], feature_level_max=self.level_max)
        brokers = image.brokers.set(1, broker)
        return image._replace(feature_level=FeatureLevel.FIRST, brokers=brokers)


async def test_a_start_that_came_late_is_kept(autojump_clock: MockClock) -> None:
    """Whoever asked had no answer; then the command is applied: the leader deletes all the same."""
    async with leading(1) as (node, replica):
        await committed_by(node, replica)
        known = replica.assignment
        assert known is not None
        command = RaiseLogStart(1, node.epoch.value, TOPIC_ID, 0, known.leader_epoch, 2)
        assert await node.cluster.leader.propose(command) == Done()
        await settle()
        await replica.keep_start()
        assert replica.log.log_start_offset == 2
