"""The leader's side of replication, called directly: what followers are told, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.disk.files import FileSlice
from raftmq.errors import ErrorCode, FetchSessionIdNotFound, StaleBrokerEpoch
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.fetch import NEW_SESSION, Fetch
from raftmq.wire.messages.replicate import PartitionProgress, ReplicaFetch, ReplicaProgress
from tests.log_reading import read_slice
from tests.unit.broker.copying import (
    CLIENT,
    alone,
    answered,
    body_of,
    payload_of,
    told_of,
    want,
)
from tests.unit.partition.replica_world import TOPIC_ID, broker_epoch, led_by, settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.rpc.reply import Reply
    from raftmq.wire.messages.fetch import FetchPartition
    from tests.unit.broker.copying import Copier


class Follower:
    """A broker that says whatever a test wants it to say."""

    def __init__(self, leader: Copier, broker_id: int = 2) -> None:
        self.leader, self.broker_id, self.epoch = leader, broker_id, broker_epoch(broker_id)
        self.session_id, self.session_epoch = 0, NEW_SESSION
        self.reply: Reply | None = None

    async def ask(self, *partitions: FetchPartition, wait_ms: int = 0, **fields: Any) -> Any:
        """What is told, by partition."""
        request = ReplicaFetch(
            self.broker_id,
            self.epoch,
            wait_ms,
            1,
            1 << 20,
            self.session_id,
            self.session_epoch,
            partitions,
            **fields,
        )
        self.session_epoch += 1
        self.reply = await answered(self.leader.replicating.replica_fetch(CLIENT, request, b""))
        self.session_id = body_of(self.reply).session_id
        return told_of(self.reply)

    def tell(self, held_offset: int, partition: int = 0, leader_epoch: int = 0) -> None:
        said = PartitionProgress(TOPIC_ID, partition, leader_epoch, held_offset)
        request = ReplicaProgress(self.broker_id, self.epoch, (said,))
        self.leader.replicating.replica_progress(CLIENT, request, b"")


def named(offset: int = 0, partition: int = 0, epoch: int = 0, last: int = -1) -> FetchPartition:
    return want(offset, partition, leader_epoch=epoch, last_fetched_epoch=last)


async def test_a_follower_reads_what_is_not_committed(autojump_clock: MockClock) -> None:
    """Up to the log's end, before the leader's own disk has it."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1)), Follower(leader)
        leader.disk.seconds = 9.0
        replica.append(batch(b"a"), acks=1)
        told = await follower.ask(named())
        assert told[0].high_watermark == 0
        assert payload_of(follower.reply) == read_slice(replica.log, 0, bytes_max=999).bytes.read()


async def test_a_follower_that_keeps_up_reads_no_file(autojump_clock: MockClock) -> None:
    """It gets what was appended as it was; one that lags, or asks for less, gets it of the file."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1)), Follower(leader)
        replica.append(batch(b"older"), acks=1)
        replica.log.tail = leader.directory.tails.begin_tail()  # as if the older one had left it
        for value in (b"a", b"b", b"c"):
            replica.append(batch(value), acks=1)
        for offset, is_file in ((0, True), (1, False), (3, False)):
            await follower.ask(named(offset, last=0))
            pieces = follower.reply.payload
            assert [isinstance(piece, FileSlice) for piece in pieces] == [is_file] * len(pieces)
            written = read_slice(replica.log, offset, bytes_max=1 << 20).bytes.read()
            assert payload_of(follower.reply) == written
        one = len(read_slice(replica.log, 3, bytes_max=1).bytes.read())
        wanted = want(1, leader_epoch=0, last_fetched_epoch=0, bytes_max=one - 1)
        await follower.ask(wanted)
        assert isinstance(follower.reply.payload[0], FileSlice)


async def test_a_follower_out_of_sync_reads_the_file(autojump_clock: MockClock) -> None:
    """It may begin anew, and is then the reader that finds what rots in a small log."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1, isr=(1,))), Follower(leader)
        replica.append(batch(b"a"), acks=1)
        await follower.ask(named())
        assert [type(piece) for piece in follower.reply.payload] == [FileSlice]


async def test_a_consumer_reads_the_file(autojump_clock: MockClock) -> None:
    """What it checks is what the disk has, or rot in new records would be found by no reader."""
    async with alone() as leader:
        replica = await leader.take_up(led_by(1, isr=(1,)))
        replica.append(batch(b"a"), acks=1)
        await settle()
        assert replica.log.tail is not None
        assert replica.log.tail.read(0, 1 << 20) is not None
        request = Fetch(0, 1, 1 << 20, partitions=(want(),))
        reply = await answered(leader.fetching.fetch(CLIENT, request, b""))
        assert [type(piece) for piece in reply.payload] == [FileSlice]


async def test_the_first_answer_does_not_wait(autojump_clock: MockClock) -> None:
    """It tells a follower that the logs agree, and it may say what it holds."""
    async with alone() as leader:
        await leader.take_up(led_by(1))
        began_at = trio.current_time()
        told = await Follower(leader).ask(named(), wait_ms=5000)
        assert trio.current_time() == began_at
        assert (told[0].error, told[0].length, told[0].log_start_offset) == (0, 0, 0)


async def test_a_high_watermark_alone_is_told_in_a_moment(autojump_clock: MockClock) -> None:
    """Several rises are one answer; records that come with them do not wait."""
    async with alone() as leader, trio.open_nursery() as nursery:
        replica, follower = await leader.take_up(led_by(1)), Follower(leader)
        for _ in range(3):
            replica.append(batch(), acks=1)
        await follower.ask(named())
        answers: list[Any] = []

        async def park(offset: int) -> None:
            answers.append(await follower.ask(named(offset, last=0), wait_ms=5000))

        nursery.start_soon(park, 3)
        await settle()
        assert not answers
        for held in (1, 2, 3):
            follower.tell(held)
            await wait_all_tasks_blocked()
        assert not answers
        await settle()
        assert [(t.high_watermark, t.length) for t in answers.pop().values()] == [(3, 0)]
        nursery.start_soon(park, 3)
        await settle()
        replica.append(batch(), acks=1)
        await wait_all_tasks_blocked()
        assert answers.pop()[0].length


async def test_errors_and_divergence_are_told_at_once(autojump_clock: MockClock) -> None:
    """Each partition has its own; nobody has to wait for the others."""
    async with alone() as leader:
        follower = Follower(leader)
        replicas = [await leader.take_up(led_by(1, 3), number) for number in range(5)]
        await leader.take_up(led_by(1, 3, replicas=(1, 3)), 5)
        replicas[3].append(batch(), acks=1)
        await settle()
        await leader.directory.delete_records(replicas[3].log, 1)
        began_at = trio.current_time()
        told = await follower.ask(
            named(0, 0, epoch=2),
            named(0, 1, epoch=4),
            named(7, 2, epoch=3, last=1),
            named(0, 3, epoch=3),
            named(0, 4, epoch=-1),
            named(0, 5, epoch=3),
            named(0, 6, epoch=3),
            wait_ms=5000,
        )
        assert trio.current_time() == began_at
        assert told[0].error == ErrorCode.FENCED_LEADER_EPOCH
        assert (told[0].leader, told[0].leader_epoch) == (1, 3)
        assert told[1].error == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert told[2].diverging.end_offset == 0
        assert (told[3].error, told[3].log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
        assert told[4].error == ErrorCode.INVALID_REQUEST
        assert told[5].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert told[6].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_who_has_cut_is_answered_at_once(autojump_clock: MockClock) -> None:
    """Nothing else is new, and yet it has to hear that the logs agree now."""
    async with alone() as leader:
        await leader.take_up(led_by(1, 3))
        follower = Follower(leader)
        told = await follower.ask(named(1, epoch=3), wait_ms=5000)
        assert told[0].diverging is not None
        began_at = trio.current_time()
        told = await follower.ask(named(0, epoch=3), wait_ms=5000)
        assert (trio.current_time(), told[0].diverging) == (began_at, None)


async def test_another_epoch_is_answered_at_once(autojump_clock: MockClock) -> None:
    """The same leader and the same log: what the follower knew was of the epoch before."""
    async with alone() as leader:
        await leader.take_up(led_by(1, 3))
        follower = Follower(leader)
        await follower.ask(named(0, epoch=3))
        await leader.take_up(led_by(1, 4))
        began_at = trio.current_time()
        told = await follower.ask(named(0, epoch=4), wait_ms=5000)
        assert (trio.current_time(), told[0].error) == (began_at, 0)


async def test_another_process_of_the_broker_is_refused(autojump_clock: MockClock) -> None:
    """Older than the registered one, newer than what is known here, or not registered at all."""
    async with alone() as leader:
        replica = await leader.take_up(led_by(1, replicas=(1, 2, 9)))
        replica.append(batch(), acks=1)
        follower = Follower(leader)
        await follower.ask(named())
        await follower.ask(named(1, last=0))
        for epoch in (101, 103):
            follower.epoch = epoch
            follower.tell(1)
            with pytest.raises(StaleBrokerEpoch, match=f"says epoch {epoch}"):
                await follower.ask(named())
        with pytest.raises(StaleBrokerEpoch, match="none"):
            await Follower(leader, 9).ask(named())
        assert replica.leading().progress_of(2).held_offset == 0  # type: ignore[union-attr]


async def test_a_session_belongs_to_one_process(autojump_clock: MockClock) -> None:
    """After another registration it begins anew: what was said before counts no more."""
    async with alone() as leader:
        await leader.take_up(led_by(1))
        follower = Follower(leader)
        await follower.ask(named())
        leader.epochs[2] = follower.epoch = 202
        with pytest.raises(FetchSessionIdNotFound):
            await follower.ask()


async def test_progress_counts_behind_the_fetch_before_it(autojump_clock: MockClock) -> None:
    """Both are called in order of arrival; the fetch is heard although its answer has to wait."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1)), Follower(leader)
        replica.append(batch(), acks=1)
        await follower.ask(named())
        await settle()
        request = ReplicaFetch(2, 102, 5000, 1, 999, follower.session_id, 1, (named(1, last=0),))
        leader.replicating.replica_fetch(CLIENT, request, b"")
        follower.tell(1)
        assert replica.high_watermark == 1


async def test_wrong_progress_is_dropped(autojump_clock: MockClock) -> None:
    """Unknown partitions, epochs that are over; whatever is right in the message counts."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1, 3)), Follower(leader)
        replica.append(batch(), acks=1)
        await settle()
        await follower.ask(named(epoch=3))
        await follower.ask(named(1, epoch=3, last=3))
        follower.tell(1, leader_epoch=2)
        follower.tell(1, partition=7, leader_epoch=3)
        assert replica.high_watermark == 0
        follower.tell(1, leader_epoch=3)
        assert replica.high_watermark == 1


async def test_a_parked_fetch_learns_of_another_leader(autojump_clock: MockClock) -> None:
    """And of records that were deleted before it could read them."""
    async with alone() as leader, trio.open_nursery() as nursery:
        follower = Follower(leader)
        await leader.take_up(led_by(1, 3))
        await follower.ask(named(epoch=3))
        told: list[Any] = []

        async def park() -> None:
            told.append(await follower.ask(wait_ms=5000))

        nursery.start_soon(park)
        await settle()
        await leader.take_up(led_by(2, 4))
        await wait_all_tasks_blocked()
        assert told[0][0].error == ErrorCode.FENCED_LEADER_EPOCH


async def test_forgotten_partitions_are_not_told_of(autojump_clock: MockClock) -> None:
    """Nor watched."""
    async with alone() as leader:
        replica, follower = await leader.take_up(led_by(1)), Follower(leader)
        await follower.ask(named())
        assert len(replica.watchers) == 1
        replica.append(batch(), acks=1)
        assert await follower.ask(forgotten=(TopicPartition(TOPIC_ID, 0),)) == {}
        assert not replica.watchers
