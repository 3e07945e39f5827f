"""Produce requests of idempotent producers, from their bytes to the answer."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.produce import ProduceRequests
from raftmq.errors import ErrorCode
from raftmq.model import TimestampType
from raftmq.rpc.context import RequestContext
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProducePartition, ProduceReply
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, begin, opened, settle
from tests.unit.rpc.talk import BROKERS
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node

CLIENT = RequestContext("alice", BROKERS, "test", 1, "here")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def numbered(first: int, *, producer_id: int = 5, epoch: int = 0) -> bytes:
    data = encode_batch(
        values=[b"a", b"b"],
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=first,
    )
    return bytes(data)


def send(node: Node, *batches: bytes, acks: int = -1) -> list[Reply]:
    """The answer, once it is there."""
    data = b"".join(batches)
    request = Produce(acks, 1000, (ProducePartition(TOPIC_ID, 0, -1, len(data)),))
    answers: list[Reply] = []
    answer = ProduceRequests(node.replicas).produce(CLIENT, request, data)
    if isinstance(answer, PendingReply):
        answer.attach(lambda reply: answers.append(_checked(reply)))
    elif answer is not None:
        answers.append(answer)
    return answers


def _checked(reply: Reply | Exception) -> Reply:
    assert isinstance(reply, Reply)
    return reply


def outcome(answers: list[Reply]) -> PartitionProduced:
    [answer] = answers
    assert isinstance(answer.body, ProduceReply)
    [produced] = answer.body.partitions
    return produced


async def test_an_answer_names_the_offset_of_each_batch(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Where some stood there already; otherwise the first one says it all."""
    async with opened(files, FakeCluster(1)) as node:
        await begin(node, 1)
        first = send(node, numbered(0), numbered(2))
        stranger = send(node, numbered(0, producer_id=6))
        await settle()
        assert outcome(first).base_offsets == ()
        assert outcome(stranger).base_offset == 4
        again = send(node, numbered(2), numbered(4))
        await settle()
        assert outcome(again).error == ErrorCode.NONE
        assert outcome(again).base_offset == 2
        assert outcome(again).base_offsets == (2, 6)


async def test_an_answer_to_duplicates_alone_waits_for_them(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One replica of two holds it: neither request is answered; then time is over for both."""
    async with opened(files, FakeCluster(2)) as node:
        replica = await begin(node, 1, 2)
        first, again = send(node, numbered(0)), send(node, numbered(0))
        await settle()
        assert first == again == []
        await trio.sleep(1)
        replica.tick(trio.current_time())
        assert [outcome(each).error for each in (first, again)] == [ErrorCode.REQUEST_TIMED_OUT] * 2
        assert outcome(again).base_offsets == (0,)


async def test_what_is_refused_says_why(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """A gap, an unknown producer, an epoch that is over: told at once, nothing appended."""
    async with opened(files, FakeCluster(1)) as node:
        replica = await begin(node, 1)
        send(node, numbered(0, epoch=1))
        end = replica.log.log_end_offset
        for batch, code in (
            (numbered(6, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (numbered(2, producer_id=9), ErrorCode.UNKNOWN_PRODUCER_ID),
            (numbered(0), ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            refused = outcome(send(node, numbered(2, epoch=1), batch))
            assert (refused.error, refused.base_offset) == (code, -1)
            assert "sequence" in refused.message
        assert replica.log.log_end_offset == end


async def test_an_answer_tells_the_leaders_time(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Records of a LogAppendTime topic are sent, and sent again among new ones: each answer has the
    time that stands in the log; a duplicate that was deleted has none.
    """
    async with opened(files, FakeCluster(1)) as node:
        replica = await begin(node, 1)
        by_producer = send(node, numbered(0, producer_id=7))
        await settle()
        assert outcome(by_producer).log_append_time_ms == ABSENT
        replica.log.config = replace(
            replica.log.config, message_timestamp_type=TimestampType.LOG_APPEND_TIME
        )
        node.directory.now_ms = lambda: NOW_MS + 5000
        first = send(node, numbered(0), numbered(2))
        await settle()
        assert outcome(first).log_append_time_ms == NOW_MS + 5000
        assert outcome(first).log_append_times_ms == ()
        node.directory.now_ms = lambda: NOW_MS + 6000
        again = send(node, numbered(2), numbered(4))
        await settle()
        assert outcome(again).log_append_times_ms == (NOW_MS + 5000, NOW_MS + 6000)
        # Appended while the producer's timestamps counted.
        older = send(node, numbered(0, producer_id=7))
        await settle()
        assert outcome(older).log_append_times_ms == (ABSENT,)
        await node.directory.delete_records(replica.log, 4)
        deleted = send(node, numbered(0))
        await settle()
        assert outcome(deleted).log_append_times_ms == (ABSENT,)
