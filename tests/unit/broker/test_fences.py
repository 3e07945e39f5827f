"""FenceProducer, from a name to what stands in each partition."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.produce import ProduceRequests
from raftmq.broker.requests.producer_fencing import ProducerFencing
from raftmq.errors import ErrorCode, InvalidRequest
from raftmq.metadata.commands import FeatureLevel
from raftmq.rpc.context import RequestContext
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.batch.header import Account, named_producer_id
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProducePartition, ProduceReply
from raftmq.wire.messages.producers import (
    FenceProducer,
    FenceProducerReply,
    PartitionFenced,
    PartitionToFence,
)
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, begin, opened, settle
from tests.unit.rpc.talk import BROKERS
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node

CLIENT = RequestContext("alice", BROKERS, "test", 1, "here")
NAME = "etl/3"
NAMED = named_producer_id(NAME)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def fence(
    node: Node,
    generation: int = 1,
    *,
    name: str = NAME,
    partitions: tuple[int, ...] = (0,),
    partition_count: int = 0,
    level: int = FeatureLevel.TRANSACTIONS,
) -> list[Reply]:
    """The answer, once it is there."""
    wanted = tuple(PartitionToFence(TOPIC_ID, each) for each in partitions)
    answers: list[Reply] = []
    request = FenceProducer(name, generation, wanted, 1000, partition_count)
    answer = ProducerFencing(node.replicas, lambda: level).fence(CLIENT, request, b"")
    answer.attach(lambda reply: answers.append(_checked(reply)))
    return answers


def _checked(reply: Reply | Exception) -> Reply:
    assert isinstance(reply, Reply)
    return reply


def fenced(answers: list[Reply]) -> list[PartitionFenced]:
    [answer] = answers
    assert isinstance(answer.body, FenceProducerReply)
    assert answer.body.producer_id == NAMED
    return list(answer.body.partitions)


def send(node: Node, first: int, *, epoch: int = 0, generation: int = 1) -> list[PartitionProduced]:
    data = bytes(
        encode_batch(
            values=[b"a", b"b"],
            timestamp=NOW_MS,
            producer_id=NAMED,
            producer_epoch=epoch,
            base_sequence=first,
            account=Account(generation, first + 2),
        )
    )
    request = Produce(1, 1000, (ProducePartition(TOPIC_ID, 0, -1, len(data)),))
    found: list[PartitionProduced] = []

    def take(reply: Reply | Exception) -> None:
        assert isinstance(reply, Reply)
        assert isinstance(reply.body, ProduceReply)
        found.extend(reply.body.partitions)

    answer = ProduceRequests(node.replicas).produce(CLIENT, request, data)
    if isinstance(answer, PendingReply):
        answer.attach(take)
    else:
        assert answer is not None
        take(answer)
    return found


async def test_an_answer_says_where_to_go_on(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A first life, a second one of the same generation, a third one of a higher."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        first = fence(node)
        await settle()
        assert fenced(first) == [
            PartitionFenced(TOPIC_ID, 0, producer_epoch=0, next_sequence=0, end_offset=1)
        ]
        send(node, 0)
        second, third = fence(node), fence(node, 2)
        await settle()
        assert fenced(second) == [
            PartitionFenced(TOPIC_ID, 0, producer_epoch=1, next_sequence=2, digest=2, end_offset=4)
        ]
        assert fenced(third) == [
            PartitionFenced(TOPIC_ID, 0, producer_epoch=2, next_sequence=0, end_offset=5)
        ]


async def test_an_answer_says_whether_all_nodes_read_the_crc_of_a_head(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Brokers of earlier versions would take a batch with it for one without an account."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        before, after = fence(node), fence(node, level=FeatureLevel.TAGS)
        await settle()
        assert [one.takes_head_crc for one in (*fenced(before), *fenced(after))] == [False, True]


async def test_an_answer_says_with_how_many_partitions_it_began(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The first fence of a generation settles it, whatever later ones say; so a client is told."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        first, second = fence(node, partition_count=3), fence(node, partition_count=4)
        send(node, 0, epoch=1)
        third, fourth = fence(node, partition_count=5), fence(node, 2, partition_count=5)
        await settle()
        answers = [fenced(each)[0] for each in (first, second, third, fourth)]
        assert [each.partition_count for each in answers] == [3, 3, 3, 5]


async def test_an_answer_waits_until_the_fence_is_committed(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One replica of two has it; then time is over, and nobody knows what becomes of it."""
    async with opened(files, FakeCluster(2)) as node:
        replica = await begin(node, 1, 2)
        answers = fence(node)
        await settle()
        assert answers == []
        await trio.sleep(1)
        replica.tick(trio.current_time())
        [outcome] = fenced(answers)
        assert outcome.error == ErrorCode.REQUEST_TIMED_OUT
        assert (outcome.producer_epoch, outcome.end_offset) == (-1, -1)
        assert replica.log.log_end_offset == 1


async def test_each_partition_has_its_own_outcome(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One is led here, one is not there: who leads is said where somebody does."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        answers = fence(node, partitions=(7, 0))
        await settle()
        missing, sound = fenced(answers)
        assert (missing.partition, missing.error) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (sound.partition, sound.error, sound.end_offset) == (0, ErrorCode.NONE, 1)


async def test_whoever_was_fenced_is_told(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """A batch of the life before, and a fence of the generation before: nothing is appended."""
    async with opened(files, FakeCluster(1)) as node:
        replica = await begin(node, 1)
        fence(node)
        fence(node, 2)
        end = replica.log.log_end_offset
        [produced] = send(node, 0)
        assert produced.error == ErrorCode.PRODUCER_FENCED
        assert "another process" in produced.message
        [late] = fenced(fence(node, 1))
        assert late.error == ErrorCode.PRODUCER_FENCED
        assert "generation 1 of this producer name is over, 2 has begun" in late.message
        assert "take a generation above 2" in late.message
        assert late.leader == 1
        assert replica.log.log_end_offset == end


async def test_a_name_must_say_something(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """The empty one would be everybody's."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        with pytest.raises(InvalidRequest, match="name of a producer is empty"):
            fence(node, name="")
