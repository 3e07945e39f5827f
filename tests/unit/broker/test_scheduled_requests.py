"""CancelScheduled and ListScheduled at the leader: what can be cancelled, and what is pending."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.requests import scheduled
from raftmq.broker.requests.scheduled import ScheduledRequests
from raftmq.errors import ErrorCode, NotController, UnsupportedVersion
from raftmq.metadata.commands import SUPPORTED_LEVEL, FeatureLevel
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.scheduled import (
    CancelScheduled,
    CancelScheduledReply,
    ListScheduled,
    ListScheduledReply,
)
from tests.bodies import decode_body, encode_body
from tests.unit.broker.asking import CONTEXT, UNKNOWN, ask
from tests.unit.broker.consuming import Parked
from tests.unit.broker.copying import answered
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.scheduling import now_ms, plain, schedule, scheduling
from tests.unit.broker.transacting import end, open_id
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import MetadataImage
    from tests.unit.broker.hosting import Node


def requests(node: Node) -> ScheduledRequests:
    return ScheduledRequests(node.replicas, node.directory, voters=(1,))


async def cancel(
    node: Node, *offsets: int, topic_id: bytes = TOPIC_ID, **more: Any
) -> CancelScheduledReply:
    """The answer, as it arrives: within all limits."""
    request = CancelScheduled(topic_id, 0, offsets, **more)
    reply = await answered(requests(node).cancel(CONTEXT, request, b""))
    assert reply.body is not None
    return decode_body(CancelScheduledReply, encode_body(reply.body))


async def listed(node: Node, **more: Any) -> tuple[ListScheduledReply, list[RecordBatch]]:
    """The answer, and the batches behind it."""
    request = ListScheduled(TOPIC_ID, 0, **more)
    reply = await requests(node).tell(CONTEXT, request, b"")
    assert reply.body is not None
    body = decode_body(ListScheduledReply, encode_body(reply.body))
    payload = b"".join(bytes(piece) for piece in reply.payload)  # type: ignore[arg-type]
    batches, position = [], 0
    for entry in body.entries:
        if entry.length:
            batches.append(RecordBatch.decode(payload[position : position + entry.length]))
        position += entry.length
    assert position == len(payload)
    return body, batches


# -- cancels --------------------------------------------------------------------------------------


async def test_each_record_has_its_own_answer(autojump_clock: MockClock) -> None:
    """Cancelled, too late, twice, and never there; what is cancelled never comes (A12.3)."""
    async with scheduling() as (_, node, replica, _):
        first = schedule(replica, b"a", b"b", delay=5)
        soon = schedule(replica, b"c", delay=1)
        plain(replica, b"d")
        await trio.sleep(2)
        told = await cancel(node, first + 1, soon, first + 1, soon + 1, 777)
        assert (told.error, told.message) == (ErrorCode.NONE, "")
        assert [(one.error, one.reason) for one in told.records] == [
            (ErrorCode.NONE, ""),
            (ErrorCode.CANNOT_CANCEL, "delivered"),
            (ErrorCode.CANNOT_CANCEL, "cancelled"),
            (ErrorCode.CANNOT_CANCEL, "unknown"),
            (ErrorCode.CANNOT_CANCEL, "unknown"),
        ]
        assert told.records[1].message == "it was delivered"
        [again] = (await cancel(node, first + 1)).records
        assert (again.reason, again.message) == ("cancelled", "it was cancelled before")


async def test_of_an_aborted_transaction(autojump_clock: MockClock) -> None:
    """Before its end the record may be cancelled, after an abort there is nothing to cancel."""
    async with scheduling() as (cluster, node, replica, _):
        producer = await open_id(cluster)
        of_it = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transactional": True,
        }
        first = schedule(replica, b"a", b"b", base_sequence=0, **of_it)
        assert [one.error for one in (await cancel(node, first)).records] == [ErrorCode.NONE]
        await end(cluster, producer, is_commit=False)
        await trio.sleep(2)
        [told] = (await cancel(node, first + 1)).records
        assert (told.error, told.reason) == (ErrorCode.CANNOT_CANCEL, "aborted")


@pytest.mark.parametrize("offset", [0, 999])
async def test_nothing_is_said_before_it_is_committed(
    autojump_clock: MockClock, offset: int
) -> None:
    """Neither a success nor a refusal: what it follows from may be cut (A12.3)."""
    disk = Disk()
    async with scheduling(run_sync=disk) as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        await settle()
        disk.seconds = 7.0
        plain(replica, b"b")
        parked = Parked()
        async with trio.open_nursery() as nursery:
            request = CancelScheduled(TOPIC_ID, 0, (offset,))
            answer = answered(requests(node).cancel(CONTEXT, request, b""))
            nursery.start_soon(parked.run, answer)
            await trio.sleep(6)
            assert parked.is_waiting
            await trio.sleep(20)
        disk.seconds = 0.0
        [told] = parked.replies[0].body.records  # type: ignore[union-attr]
        assert told.error == (ErrorCode.NONE if offset == 0 else ErrorCode.CANNOT_CANCEL)


async def test_a_commit_that_takes_too_long(autojump_clock: MockClock) -> None:
    """Nobody knows then what became of it; the leader is named."""
    disk = Disk()
    async with scheduling(run_sync=disk) as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        await settle()
        disk.seconds = 10.0
        told = await cancel(node, 0, timeout_ms=1000)
        assert (told.error, told.records) == (ErrorCode.REQUEST_TIMED_OUT, ())
        assert (told.leader, told.leader_epoch) == (2, 0)
        disk.seconds = 0.0


async def test_where_part_of_the_log_cannot_be_read(autojump_clock: MockClock) -> None:
    """A settlement may stand there: ask again, as it is repaired (A12.3)."""
    async with scheduling() as (_, node, replica, _):
        first = schedule(replica, b"a", delay=60)
        replica.log.schedule.on_unread(0, 1)
        [told] = (await cancel(node, first)).records
        assert (told.error, told.reason) == (ErrorCode.CORRUPT_MESSAGE, "")
        assert "ask again when it is repaired" in told.message
        replica.log.schedule.accept_unread()
        assert [one.error for one in (await cancel(node, first)).records] == [ErrorCode.NONE]


# -- lists ----------------------------------------------------------------------------------------


async def test_what_is_pending(autojump_clock: MockClock) -> None:
    """Counts and the next due time of the partition, and the batches as they were sent (A12.2)."""
    async with scheduling() as (_, node, replica, _):
        assert await listed(node) == (ListScheduledReply(), [])
        first = schedule(replica, b"a", b"b", b"c", delay=60, keys=[b"k", None, 7])
        second = schedule(replica, b"d", delay=30)
        plain(replica, b"e")
        gone = schedule(replica, b"f", delay=1)
        await trio.sleep(2)
        await cancel(node, first + 1)
        body, batches = await listed(node)
        assert (body.pending_count, body.next_offset) == (2, -1)
        assert body.next_due_ms == body.entries[1].due_ms == now_ms() + 28_000
        assert body.pending_bytes == sum(entry.length for entry in body.entries)
        assert [(one.base_offset, one.first_offset, one.record_count) for one in body.entries] == [
            (first, first, 3),
            (second, second, 1),
        ]
        assert [one.left_out for one in body.entries] == [(1,), ()]
        assert [list(batch.values) for batch in batches] == [[b"a", b"b", b"c"], [b"d"]]
        assert list(batches[0].keys) == [b"k", None, 7]
        assert gone not in [one.base_offset for one in body.entries]


async def test_of_an_open_transaction(autojump_clock: MockClock) -> None:
    """It is listed, and not counted as pending: it may be aborted."""
    async with scheduling() as (cluster, node, replica, _):
        producer = await open_id(cluster)
        schedule(
            replica,
            b"a",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        await settle()
        body, _ = await listed(node)
        assert [entry.is_undecided for entry in body.entries] == [True]
        assert (body.pending_count, body.next_due_ms) == (0, -1)


async def test_pages(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the limit, by bytes, and by how many batches were looked at; each goes on where the one
    before has ended."""
    monkeypatch.setattr(scheduled, "LOOK_AT_ONCE", 3)
    monkeypatch.setattr(scheduled, "LOOKED_MAX", 6)
    async with scheduling() as (_, node, replica, _):
        offsets = [schedule(replica, b"x" * 300_000, delay=60) for _ in range(4)]
        for _ in range(13):
            schedule(replica, b"y", delay=1)
        offsets += [schedule(replica, b"z", delay=60) for _ in range(7)]
        await trio.sleep(5)
        found, start, counts = list[int](), 0, list[int]()
        while start >= 0:
            body, _ = await listed(node, start_offset=start, limit=5)
            found += [entry.base_offset for entry in body.entries]
            counts.append(len(body.entries))
            assert body.next_offset == -1 or body.next_offset > start
            assert body.pending_count == 11
            start = body.next_offset
        assert found == offsets
        assert counts[0] == 3, "a fourth would be more than 1 MiB"
        assert 0 in counts
        assert max(counts) <= 5
        body, _ = await listed(node, limit=0)
        assert (body.entries, body.next_offset, body.pending_count) == ((), -1, 11)


async def test_a_batch_larger_than_a_page(autojump_clock: MockClock) -> None:
    """It comes alone."""
    async with scheduling(max_message_bytes="3000000") as (_, node, replica, _):
        schedule(replica, b"x" * 2_000_000, delay=60)
        second = schedule(replica, b"y", delay=60)
        await settle()
        body, [batch] = await listed(node)
        assert (len(body.entries), body.next_offset) == (1, second)
        assert len(batch.values[0] or b"") == 2_000_000


async def test_only_what_is_committed_is_listed(autojump_clock: MockClock) -> None:
    disk = Disk()
    async with scheduling(run_sync=disk) as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        await settle()
        disk.seconds = 5.0
        schedule(replica, b"b", delay=60)
        request = ListScheduled(TOPIC_ID, 0, limit=9)
        with trio.fail_after(100):
            body = await ask(requests(node).tell, request)
        assert [entry.base_offset for entry in body.entries] == [0]
        disk.seconds = 0.0


async def test_a_batch_that_cannot_be_read(autojump_clock: MockClock) -> None:
    """Its entry comes without it; the others are whole."""
    async with scheduling() as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        schedule(replica, b"b", delay=60)
        await settle()
        node.directory._files.fail("read", "*.log")
        body, [batch] = await listed(node)
        assert [bool(entry.length) for entry in body.entries] == [False, True]
        assert list(batch.values) == [b"b"]


# -- who answers ----------------------------------------------------------------------------------


async def test_only_the_leader_answers(autojump_clock: MockClock) -> None:
    """A follower names the leader; an epoch that is over is refused; so is an unknown topic."""
    async with scheduling() as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        await settle()
        assert (await cancel(node, 0, leader_epoch=9)).error == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await cancel(node, 0, topic_id=UNKNOWN)).error == ErrorCode.UNKNOWN_TOPIC_ID
        body, _ = await listed(node, leader_epoch=9)
        assert body.error == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert replica.assignment is not None
        await replica.take_up(
            replica.assignment._replace(leader=1, leader_epoch=1, partition_epoch=9)
        )
        told = await cancel(node, 0)
        assert (told.error, told.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, ())
        body, _ = await listed(node)
        assert (body.error, body.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


@pytest.mark.parametrize(
    ("level_max", "code", "words"),
    [
        (FeatureLevel.TAGS, ErrorCode.UNSUPPORTED_VERSION, "upgrade brokers [2];"),
        (SUPPORTED_LEVEL, ErrorCode.NOT_CONTROLLER, "nodes know it: ask again,"),
    ],
)
async def test_below_the_feature_level(
    autojump_clock: MockClock, level_max: int, code: ErrorCode, words: str
) -> None:
    """Brokers of an earlier version would take a cancel for something else (A12.2)."""
    async with scheduling() as (_, node, replica, _):
        schedule(replica, b"a", delay=60)
        await settle()
        older = OlderReplicas(node.replicas, level_max)
        handler = ScheduledRequests(older, node.directory, voters=(1,))  # type: ignore[arg-type]
        for told in (
            await ask(handler.cancel, CancelScheduled(TOPIC_ID, 0, (0,))),
            await ask(handler.tell, ListScheduled(TOPIC_ID, 0)),
        ):
            assert told.error == code
            assert words in told.message


@pytest.mark.parametrize(
    ("level_max", "error"),
    [(FeatureLevel.TAGS, UnsupportedVersion), (SUPPORTED_LEVEL, NotController)],
)
async def test_no_scheduled_record_is_taken_below_the_feature_level(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    level_max: int,
    error: type[RaftmqError],
) -> None:
    """A follower of an earlier version would deliver it at once as a leader (A12.2)."""
    async with scheduling() as (_, node, replica, _):
        older = OlderReplicas(node.replicas, level_max).image()
        with monkeypatch.context() as patch:
            patch.setattr(node.replicas, "_quorum", SimpleNamespace(image=older))
            with pytest.raises(error, match="a delayed or scheduled record"):
                schedule(replica, b"a", delay=60)
            plain(replica, b"b")
        assert replica.log.log_end_offset == 1
        assert replica.log.schedule.is_empty


class OlderReplicas:
    """In a cluster at a lower level; this broker says that it knows `level_max`."""

    def __init__(self, replicas: Replicas, level_max: int) -> None:
        self._replicas, self._level_max = replicas, level_max

    def image(self) -> MetadataImage:
        image = self._replicas.image()
        broker = replace(image.brokers[2], feature_level_max=self._level_max)
        brokers = image.brokers.set(2, broker)
        return image._replace(feature_level=FeatureLevel.TAGS, brokers=brokers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replicas, name)
