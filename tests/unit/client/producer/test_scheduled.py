"""Scheduled records of a producer: one due time a batch, in order, numbered as ever (A12.2)."""

from __future__ import annotations

import pickle
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.producer.accumulator import Accumulator
from raftmq.client.producer.batch import RecordMetadata
from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.partition_queue import RecordColumns
from raftmq.client.producer.record import NO_EXTRAS, RECORD_OVERHEAD_BYTES
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import (
    DeliveryTimedOut,
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    UnsupportedVersion,
)
from raftmq.sync.producer import Producer
from raftmq.wire.messages.produce import Produce
from tests.unit.client.producer.shell import NOW_MS, in_log, open_producer, open_stage
from tests.unit.client.producer.test_numbered_sending import again, known_model, send
from tests.unit.client.scheduling.due import batches_in, due_in
from tests.unit.client.transactions.coordinator import open_transactions
from tests.unit.client.world import done_and_lost, refused
from tests.unit.sync.loop_here import LoopHere

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.producer.accumulator import TopicQueues
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.partition_queue import ProduceRequest
    from tests.unit.client.producer.sending_model import Model

# -- batches --------------------------------------------------------------------------------------


def make(partitions: int = 1, **options: object) -> tuple[Accumulator, TopicQueues]:
    accumulator = Accumulator(ProducerOptions(**options), Random(3), lambda *_: True, lambda: None)
    topic = accumulator.topic("t")
    topic.count = partitions
    return accumulator, topic


def add(
    accumulator: Accumulator,
    topic: TopicQueues,
    value: bytes,
    due_ms: int | None,
    key: bytes | None = None,
) -> ProducerBatch:
    extras = NO_EXTRAS if due_ms is None else NO_EXTRAS._replace(due_ms=due_ms)
    size = RECORD_OVERHEAD_BYTES + len(value)
    batch, _ = accumulator.add(topic, value, key, NOW_MS, size, lambda: 0.0, extras)
    return batch


DUE = st.none() | st.sampled_from([100, 200, 300])


@given(st.lists(st.tuples(DUE, st.booleans()), max_size=40), st.integers(1, 60))
def test_each_batch_has_one_due_time(given: list[tuple[int | None, bool]], size: int) -> None:
    """Another due time closes the open batch; the order of a partition is that of the calls."""
    accumulator, topic = make(partitions=3, batch_size=size)
    for number, (due_ms, has_key) in enumerate(given):
        key = b"%d" % (number % 4) if has_key else None
        batch = add(accumulator, topic, b"%d" % number, due_ms, key)
        assert batch.due_ms == due_ms
    for queue in topic.queues.values():
        batches = list(queue)
        numbers = [int(value) for batch in batches for value in batch.keys_and_values()[1]]  # type: ignore[arg-type]
        assert numbers == sorted(numbers)
        assert all(batch.is_closed for batch in batches[:-1])
        for batch in batches:
            due = {given[int(value)][0] for value in batch.keys_and_values()[1]}  # type: ignore[arg-type]
            assert due == {batch.due_ms}
        for before, after in pairwise(batches):
            is_full = before.payload_bytes + len(after.keys_and_values()[1][0] or b"") > size
            assert before.due_ms != after.due_ms or is_full or topic.count > 1


def test_columns_join_no_scheduled_batch() -> None:
    """Nor does a scheduled record join theirs."""
    accumulator, topic = make()
    first = add(accumulator, topic, b"a", 100)
    columns = RecordColumns([b"b", b"c"])
    [(second, _, _)] = accumulator.add_columns(
        topic, 0, columns, [RECORD_OVERHEAD_BYTES + 1] * 2, NOW_MS, 0.0
    )
    third = add(accumulator, topic, b"d", 100)
    assert [first, second, third] == list(topic.queue(0))
    assert [batch.due_ms for batch in (first, second, third)] == [100, None, 100]
    assert [batch.is_closed for batch in (first, second, third)] == [True, True, False]


def test_pieces_of_a_scheduled_batch_are_scheduled() -> None:
    """Where a broker takes only smaller ones, also after they were encoded."""
    accumulator, topic = make(batch_size=1 << 20)
    for number in range(6):
        batch = add(accumulator, topic, b"%d" % number, 500)
    batch.encode(ProducerOptions().codec)
    pieces = [batch, *batch.split([2, 4])]
    assert [one.due_ms for one in pieces] == [500] * 3
    assert [one.keys_and_values()[1] for one in pieces] == [
        [b"0", b"1"], [b"2", b"3"], [b"4", b"5"],
    ]  # fmt: skip


# -- who is to blame ------------------------------------------------------------------------------


def with_due_times(model: Model, *due_times: int | None) -> ProduceRequest:
    """A request with a batch of one record for each."""
    request = send(model, *[1] * len(due_times))
    for batch, due_ms in zip(request.parts[0].batches, due_times, strict=True):
        batch.due_ms = due_ms
    return request


def test_what_is_due_too_late_fails_alone() -> None:
    """The broker names the latest due time that it takes (delay.max.ms)."""
    model = known_model()
    error = InvalidTimestamp("due too late")
    error.allowed = 250
    model.answer(with_due_times(model, None, 300, 250, 400, 100), error)
    assert sorted(model.outcomes) == [1, 3]
    assert all(isinstance(found, InvalidTimestamp) for found in model.outcomes.values())
    request = again(model)
    assert [batch.due_ms for batch in request.parts[0].batches] == [None, 250, 100]


@pytest.mark.parametrize("error", [InvalidRecord("Kafka's format"), UnsupportedVersion("level")])
def test_what_is_due_latest_fails_first(error: InvalidRecord | UnsupportedVersion) -> None:
    """A broker refuses all batches of a request: the others leave again, without it."""
    model = known_model()
    model.answer(with_due_times(model, None, 200, 300, 300), error)
    assert sorted(model.outcomes) == [2, 3]
    model.answer(again(model), error)
    assert sorted(model.outcomes) == [1, 2, 3]
    model.answer(again(model), error)
    assert sorted(model.outcomes) == [0, 1, 2, 3]
    assert all(isinstance(found, type(error)) for found in model.outcomes.values())


# -- sends ----------------------------------------------------------------------------------------


async def test_a_handle_of_each_scheduled_record(autojump_clock: MockClock) -> None:
    """And none of others: the topic's id, the partition, and the offset of the record (A12.3)."""
    async with open_producer(linger_ms=50) as (world, producer):
        topic_id = world.topics["t"].topic_id
        plain = producer.send_nowait("t", b"a")
        later = [producer.send_nowait("t", b"b", delay=timedelta(minutes=1)) for _ in range(2)]
        at = producer.send_nowait("t", b"c", deliver_at=NOW_MS + 60_000)
        assert (await plain).schedule_handle is None
        for number, delivery in enumerate([*later, at], 1):
            found = await delivery
            assert found.schedule_handle == ScheduleHandle(topic_id, 0, number)
            assert found == RecordMetadata("t", 0, number, NOW_MS)
            topic, partition, offset, timestamp = found
            assert (topic, partition, offset, timestamp) == ("t", 0, number, NOW_MS)
            assert repr(found).endswith(f"schedule_handle={found.schedule_handle!r})")
            assert pickle.loads(pickle.dumps(found)).schedule_handle == found.schedule_handle
        assert due_in(world) == [None] + [NOW_MS + 60_000] * 3
        assert len(batches_in(world)) == 2, "one for each due time"


async def test_a_scheduled_record_is_numbered_like_any(autojump_clock: MockClock) -> None:
    """Sent again after an answer is lost, it stands there once, and its handle is right (S3)."""
    async with open_producer() as (world, producer):
        await producer.send("t", b"a")
        world.brokers[1].produces.append(done_and_lost)
        found = await producer.send("t", b"b", delay=5)
        await producer.send("t", b"c")
        assert found.schedule_handle is not None
        assert found.schedule_handle.offset == found.offset == 1
        assert in_log(world) == ["a", "b", "c"]
        assert [batch.header.base_sequence for batch in batches_in(world)] == [0, 1, 2]


async def test_acks_0_brings_no_handle(autojump_clock: MockClock) -> None:
    """Nobody says where the record is."""
    async with open_producer(acks=0, idempotence=False) as (world, producer):
        found = await producer.send("t", b"a", delay=5)
        assert (found.offset, found.schedule_handle) == (-1, None)
        await producer.flush()
        await trio.sleep(1)
        assert due_in(world) == [NOW_MS + 5000]


async def test_a_named_producer_sends_scheduled_records(autojump_clock: MockClock) -> None:
    """Under its account; what an earlier run has written has no handle (A12.3)."""
    async with open_stage() as (world, _, client):
        for run in range(2):
            async with client.producer(name="job", generation=1) as producer:
                first = await producer.send("t", b"a", key=b"k", delay=5)
                assert (first.schedule_handle is None) == bool(run)
        data = [batch for batch in batches_in(world) if not batch.is_control]
        assert [batch.mark.due_ms for batch in data if batch.mark] == [NOW_MS + 5000]


async def test_records_that_come_before_the_metadata(autojump_clock: MockClock) -> None:
    """They keep their due times while they wait."""
    async with open_producer() as (world, producer):
        for due in (None, 1, 1, 2):
            producer.send_nowait("t", b"", delay=due)
        await producer.flush()
        assert due_in(world) == [None, NOW_MS + 1000, NOW_MS + 1000, NOW_MS + 2000]


async def test_a_refusal_reaches_the_record(autojump_clock: MockClock) -> None:
    """As of a topic in Kafka's format, or beyond delay.max.ms: at once, and definitely."""
    async with open_producer() as (world, producer):
        world.brokers[1].produces.append(refused(ErrorCode.INVALID_RECORD))
        with pytest.raises(InvalidRecord) as caught:
            await producer.send("t", b"", delay=1e9)
        assert caught.value.definite
        assert not isinstance(caught.value, DeliveryTimedOut)
        assert world.brokers[1].count(Produce) == 1


async def test_sends_in_a_transaction(autojump_clock: MockClock) -> None:
    """By each call (A11.3)."""
    async with open_transactions() as (_, (world, _, client)):
        async with client.producer(transaction_id="a") as producer:
            async with producer.transaction() as tx:
                sent = await tx.send("t", b"a", delay=1)
                later = await tx.enqueue("t", b"b", deliver_at=NOW_MS + 2000)
                now = tx.send_nowait("t", b"c", delay=timedelta(seconds=3))
                handles = [sent.schedule_handle, (await later).schedule_handle]
                handles.append((await now).schedule_handle)
            assert [one and one.offset for one in handles] == [0, 1, 2]
            async with producer.transaction(version=7) as tx:
                pass
            async with producer.transaction(version=7) as tx:
                assert tx.is_done
                assert (await tx.send("t", b"d", delay=1)).schedule_handle is None
        data = [batch for batch in batches_in(world) if not batch.is_control]
        assert [batch.mark and batch.mark.due_ms for batch in data] == [
            NOW_MS + 1000, NOW_MS + 2000, NOW_MS + 3000,
        ]  # fmt: skip
        assert all(batch.header.is_transactional for batch in data)


async def test_blocking_sends(autojump_clock: MockClock) -> None:
    """The same, with errors in the caller's thread."""
    async with open_stage() as (world, _, client), trio.open_nursery() as nursery:
        loop = LoopHere(nursery)

        def program() -> None:
            with Producer(loop, client.producer(), 1 << 20) as producer:
                sent = producer.send("t", b"a", delay=1)
                assert sent.schedule_handle == ScheduleHandle(world.topics["t"].topic_id, 0, 0)
                producer.enqueue("t", b"b", deliver_at=NOW_MS + 2000)
                producer.send_nowait("t", b"c", delay=timedelta(seconds=3)).result()
                with pytest.raises(InvalidRecord, match="delay = -1"):
                    producer.send_nowait("t", b"d", delay=-1)
                with pytest.raises(InvalidRecord, match="delay_level is a str"):
                    producer.enqueue("t", b"d", delay_level="5")  # type: ignore[arg-type]
                with pytest.raises(InvalidRecord, match="delay and deliver_at: give one"):
                    producer.send("t", b"d", delay=1, deliver_at=NOW_MS)

        await loop.run(program)
        assert due_in(world) == [NOW_MS + 1000, NOW_MS + 2000, NOW_MS + 3000]
