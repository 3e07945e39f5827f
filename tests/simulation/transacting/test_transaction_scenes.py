"""A transaction's way through whole brokers: opened, written, decided, ended in logs, read (A11.3).

Clients are played by requests, so that a test says what arrives when.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import trio

from raftmq.errors import (
    ErrorCode,
    IllegalGeneration,
    RaftmqError,
    RebalanceInProgress,
    TransactionAborted,
    error_for,
)
from raftmq.model import IsolationLevel
from raftmq.partition.transactions import ALL_READ
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ACKS_ALL, TopicPartition
from raftmq.wire.messages.fetch import Fetch, FetchPartition
from raftmq.wire.messages.group_offsets import OffsetToCommit
from raftmq.wire.messages.offsets import LATEST, ListOffsets, WantedOffset
from raftmq.wire.messages.produce import Produce, ProducePartition
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.topics import CreateTopics, NewTopic
from raftmq.wire.messages.transactions import DescribeProducers, EndTxn, GroupOffsets
from tests.simulation.groups.whole_brokers import (
    DIRECTORY,
    GROUP,
    NODES,
    PATIENCE_SECONDS,
    Member,
    whole_brokers,
)
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from trio.testing import MockClock

    from raftmq.metadata.image import PartitionState
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from tests.simulation.groups.whole_brokers import Whole, WholeNode

ID, OWNER, OTHER = "billing", b"o" * 16, b"x" * 16
PARTITIONS = range(3)


class Opened(NamedTuple):
    producer_id: int
    epoch: int


class Clients:
    """Of one topic with three partitions, each led by another broker."""

    def __init__(self, whole: Whole, topic_id: bytes) -> None:
        self._whole, self.topic_id = whole, topic_id

    async def open(self, *, owner: bytes = OWNER, timeout_ms: int = 60_000) -> Opened:
        request = InitProducerId(
            transaction_id=ID, owner=owner, opening=1, transaction_timeout_ms=timeout_ms
        )
        reply = await self._whole.ask_coordinator(request, ID)
        return Opened(reply.producer_id, reply.producer_epoch)

    async def send(self, producer: Opened, partition: int, sequence: int = 0) -> None:
        data = bytes(
            encode_batch(
                values=[b"x"],
                timestamp=NOW_MS,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )
        request = Produce(
            ACKS_ALL, 5_000, (ProducePartition(self.topic_id, partition, -1, len(data)),)
        )
        await self._ask_leader(partition, request, data)

    async def end(
        self,
        producer: Opened,
        *,
        is_commit: bool,
        partitions: Sequence[int],
        groups: tuple[GroupOffsets, ...] = (),
    ) -> Any:
        request = EndTxn(
            ID,
            *producer,
            is_commit=is_commit,
            owner=OWNER,
            partitions=tuple(TopicPartition(self.topic_id, each) for each in partitions),
            groups=groups,
            wait_settled=True,
        )
        return await self._whole.ask_coordinator(request, ID)

    async def read(self, partition: int, offset: int = 0) -> tuple[int, int, int]:
        """Of committed records from `offset` on: how many there are, how many aborted transactions
        beside them, and the latest offset."""
        wanted = FetchPartition(self.topic_id, partition, offset)
        committed = IsolationLevel.READ_COMMITTED
        answer = await self._ask_leader(
            partition, Fetch(0, 1, 1 << 20, partitions=(wanted,), isolation_level=committed)
        )
        aborted = answer.body.partitions[0].aborted
        dropped = {
            (one.producer_id, offset)
            for one in aborted
            for offset in range(one.first_offset, one.marker_offset)
        }
        headers = [header for _, header in iter_batches(answer.payload)]
        count = sum(
            not header.is_control and (header.producer_id, header.base_offset) not in dropped
            for header in headers
        )
        latest = ListOffsets((WantedOffset(self.topic_id, partition, -1, LATEST),), committed)
        end = (await self._ask_leader(partition, latest)).body.partitions[0].offset
        return count, len(aborted), end

    async def open_count(self, partition: int) -> int:
        request = DescribeProducers((TopicPartition(self.topic_id, partition),))
        found = (await self._ask_leader(partition, request)).body.partitions[0]
        return len(found.transactions)

    async def _ask_leader(self, partition: int, request: Request, payload: bytes = b"") -> Answer:
        """Whoever that is: asked in turn until one does not refuse."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                for node_id in NODES:
                    try:
                        answer = await self._whole.peers.request(
                            node_id, request, [payload] if payload else (), timeout_seconds=10.0
                        )
                    except RaftmqError:  # it is dead
                        continue
                    told = answer.body.partitions[0]
                    if told.error == ErrorCode.NONE:
                        return answer
                    error = error_for(told.error, getattr(told, "message", ""))
                    if not error.retriable:
                        raise error
                await trio.sleep(0.05)


@asynccontextmanager
async def clients(
    topic: NewTopic = NewTopic("orders", len(PARTITIONS), 3),  # noqa: B008  # it is frozen
) -> AsyncIterator[tuple[Whole, Clients]]:
    async with whole_brokers() as whole:
        reply = await whole.ask(1, CreateTopics((topic,)))
        assert [told.error for told in reply.topics] == [ErrorCode.NONE], reply
        yield whole, Clients(whole, reply.topics[0].topic_id)


async def test_a_commit_is_seen_in_every_partition(autojump_clock: MockClock) -> None:
    """Once it is settled; before, nothing of it; the next transaction is aborted."""
    async with clients() as (_, here):
        producer = await here.open()
        for partition in PARTITIONS:
            await here.send(producer, partition)
        assert [await here.read(partition) for partition in PARTITIONS] == [(0, 0, 0)] * 3
        ended = await here.end(producer, is_commit=True, partitions=PARTITIONS)
        assert (ended.is_committed, ended.is_settled) == (True, True)
        assert [await here.read(partition) for partition in PARTITIONS] == [(1, 0, 2)] * 3
        producer = Opened(ended.producer_id, ended.producer_epoch)
        await here.send(producer, 1)
        ended = await here.end(producer, is_commit=False, partitions=())
        await trio.sleep(1.0)
        assert [await here.read(partition) for partition in PARTITIONS] == [
            (1, 0, 2), (1, 1, 4), (1, 0, 2)
        ]  # fmt: skip


async def test_a_client_that_dies_holds_readers_for_its_timeout(
    autojump_clock: MockClock,
) -> None:
    """And a second: then the leaders have it aborted."""
    async with clients() as (_, here):
        producer = await here.open(timeout_ms=5_000)
        for partition in PARTITIONS[:2]:
            await here.send(producer, partition)
        await trio.sleep(4.0)
        assert [await here.open_count(partition) for partition in PARTITIONS] == [1, 1, 0]
        await trio.sleep(2.0)
        assert [await here.open_count(partition) for partition in PARTITIONS] == [0, 0, 0]
        assert [await here.read(partition) for partition in PARTITIONS] == [
            (0, 1, 2), (0, 1, 2), (0, 0, 0)
        ]  # fmt: skip


async def test_the_leader_dies_with_the_decision(autojump_clock: MockClock) -> None:
    """The next one has the records, and its metadata the commit: it writes the marker."""
    async with clients() as (whole, here):
        producer = await here.open()
        for partition in PARTITIONS:
            await here.send(producer, partition)
        coordinator = await whole.coordinator(ID)
        doomed = next(number for number in NODES if number != coordinator)
        whole.nodes[doomed].kill()
        ended = await here.end(producer, is_commit=True, partitions=PARTITIONS)
        assert ended.is_committed
        await trio.sleep(20.0)
        assert [(await here.read(partition))[0] for partition in PARTITIONS] == [1, 1, 1]


async def test_an_owner_that_takes_over_ends_what_its_predecessor_has_open(
    autojump_clock: MockClock,
) -> None:
    """At once; what the predecessor still sends is refused."""
    async with clients() as (_, here):
        producer = await here.open()
        await here.send(producer, 0)
        successor = await here.open(owner=OTHER)
        assert successor == producer._replace(epoch=producer.epoch + 1)
        await trio.sleep(0.5)
        assert await here.open_count(0) == 0
        with pytest.raises(TransactionAborted, match="another producer"):
            await here.send(producer, 0, sequence=1)
        await here.send(successor, 0)
        assert (await here.read(0))[:2] == (0, 1)


def partition_in(whole: Whole) -> PartitionState:
    """The first one of the topic, as broker 3 knows it."""
    broker = whole.nodes[3].broker
    assert broker is not None, "broker 3 does not run"
    return next(iter(broker.quorum.image.partitions.values()))


def spoil(node: WholeNode, offset: int) -> None:
    """The header of that batch of the topic rots, and no snapshot says what it said."""
    for path in node.files.paths(DIRECTORY / "topics"):
        if path.suffix == ".producers":
            node.files.remove(path)
        elif path.suffix == ".log":
            data = node.files.open(path).read(0, node.files.size(path))
            position = next(at for at, header in iter_batches(data) if header.base_offset == offset)
            node.files.flip_bit(path, position + 16, 3)  # no magic any more


async def test_a_commit_arrives_when_its_member_has_its_partition_back(
    autojump_clock: MockClock,
) -> None:
    """The member had lost it by its own clock, and reads again what the commit says is done: that
    must be refused, or the results would be there twice."""
    async with clients() as (whole, here):
        first, second = Member(whole), Member(whole)
        await join_all(first, second)
        member, other = (second, first) if first.is_leader else (first, second)
        producer = await here.open()
        await here.send(producer, 1)
        done = OffsetToCommit(here.topic_id, 0, 7)
        late = GroupOffsets(GROUP, member.generation, member.member_id, offsets=(done,))
        with trio.move_on_after(1.0):
            await member.join()
        with pytest.raises(RebalanceInProgress):
            await other.beat()
        await join_all(other, member)
        assert await member.fetched() == {}
        with pytest.raises(IllegalGeneration):
            await here.end(producer, is_commit=True, partitions=(1,), groups=(late,))
        assert await member.fetched() == {}
        mine = msgspec.structs.replace(late, generation=member.generation)
        await here.end(producer, is_commit=True, partitions=(1,), groups=(mine,))
        assert await member.fetched() == {0: 7}


async def join_all(*members: Member) -> None:
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(member.join)


async def test_rot_hides_what_is_open_from_a_leader_alone_in_sync(
    autojump_clock: MockClock,
) -> None:
    """No reader of committed records gets anything of it; the other replica, once it is in sync,
    leads, has it committed, and puts right what has rotted."""
    configs = {"index.interval.bytes": "1", "min.insync.replicas": "1"}
    async with clients(NewTopic("orders", assignments=((1, 2),), configs=configs)) as (whole, here):
        producer = await here.open(timeout_ms=600_000)
        for _ in range(2):
            await here.send(producer, 0)
            ended = await here.end(producer, is_commit=True, partitions=(0,))
            producer = Opened(ended.producer_id, ended.producer_epoch)
        await here.send(producer, 0)
        assert await here.read(0) == (2, 0, 4)
        whole.nodes[2].stop()
        await trio.sleep(30.0)
        assert (partition_in(whole).leader, partition_in(whole).isr) == (1, (1,))
        whole.nodes[1].stop()
        await trio.sleep(5.0)
        spoil(whole.nodes[1], 2)
        whole.nodes[1].start()
        await trio.sleep(30.0)
        assert await here.open_count(0) == 0
        assert await here.read(0) == (1, 0, 2)
        assert await here.read(0, 4) == (0, 0, 2)
        whole.nodes[2].start()
        await trio.sleep(30.0)
        assert partition_in(whole).leader == 2
        assert await here.read(0) == (2, 0, 4)
        assert whole.nodes[1].broker is not None
        [healed] = whole.nodes[1].broker.replicas.all()
        assert healed.log.is_whole
        assert healed.log.transactions.unread == ALL_READ
        assert [one.first_offset for one in healed.open_transactions()] == [4]
        ended = await here.end(producer, is_commit=True, partitions=(0,))
        assert ended.is_settled
        assert await here.read(0) == (3, 0, 6)
