"""`exactly_once` that moves what fails, and `tx.retry`: a record is moved in the transaction that
commits its offset (A11.3, A12.4, A12.5).
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pytest
import trio

import raftmq
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import letter_headers, read_letter
from raftmq.errors import ErrorCode, InvalidConfig, InvalidRecord, InvalidRequest
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.batch.scheduling import read_mark
from tests.unit.client.group.grouped import GROUP, until
from tests.unit.client.producer.shell import NOW_MS
from tests.unit.client.transactions.coordinator import committed_in
from tests.unit.client.transactions.test_exactly_once import COUNT, DEAD, INPUT, Plant, feed, plant
from tests.unit.client.world import refused

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.batch import AnyBatch

RETRY = f"__retry.{GROUP}"
POLICY = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(10))


def moved(here: Plant, topic: str) -> list[tuple[str, int | None, str]]:
    """Of a topic, in committed transactions: value, attempts and error."""
    values = committed_in(here.coordinator, here.here.world, topic=topic)
    batches = map(RecordBatch.decode, here.here.world.topics[topic].partitions[0].data)
    letters = {
        (value or b"").decode(): read_letter(headers)
        for one in batches
        for value, headers in zip(one.values, one.headers, strict=True)
    }
    return [(value, letters[value].attempts, letters[value].error) for value in sorted(values)]


@pytest.mark.parametrize("max_records", [1, 7, 10_000])
async def test_retries(autojump_clock: MockClock, max_records: int) -> None:
    """Records that fail by themselves are moved as soon as they have, once, and none of those
    beside them; their offsets are committed with that."""
    async with plant(retry=POLICY) as here:
        alone: list[bytes] = []

        async def transform(batch: AnyBatch, tx: Any) -> None:
            await here.transform(batch, tx)
            if found := {b"07", b"10", b"12"} & {*batch.values}:
                alone.extend(found if len(batch) == 1 else ())
                raise ValueError(f"one of {len(batch)}")

        async with here.running(transform, max_records=max_records, on_poison="retry"):
            feed(here)
            await until(lambda: len(here.results()) >= COUNT - 3)
            await until(lambda: here.coordinator.offsets[GROUP] == {0: 20, 1: 20})
        assert sorted(here.results()) == sorted({*INPUT} - {"07", "10", "12"})
        assert sorted(alone) == [b"07", b"10", b"12"]
        assert moved(here, RETRY) == [
            (value, 1, "ValueError: one of 1") for value in ("07", "10", "12")
        ]
        for data in here.here.world.topics[RETRY].partitions[0].data:
            mark = read_mark(data, 0, read_header(data))
            assert mark is not None
            assert 8_000 <= mark.due_ms - NOW_MS <= 12_000


def put_back(here: Plant, value: str, attempts: int) -> None:
    """A record that has come back after so many attempts."""
    record = ConsumerRecord("orders", 0, 3, 1000, None, value.encode())
    headers = letter_headers(record, GROUP, attempts=attempts, error="E")
    here.here.world.add_topic(RETRY, 1)
    data = encode_batch(values=[value.encode()], headers=[headers], timestamp=1000)
    here.here.world.topics[RETRY].partitions[0].place(bytes(data))


async def test_the_last_attempt(autojump_clock: MockClock) -> None:
    """Of a record that has come back: then it is a dead letter, which tells of all of them."""
    async with plant(retry=POLICY) as here:
        put_back(here, "10", 2)
        async with here.running(here.fail_at_ten, on_poison="retry"):
            await until(lambda: DEAD in here.here.world.topics)
            await until(lambda: committed_in(here.coordinator, here.here.world, topic=DEAD))
        assert moved(here, DEAD) == [("10", 3, "ValueError: ten")]
        [data] = here.here.world.topics[DEAD].partitions[0].data
        assert read_letter(RecordBatch.decode(data).headers[0]).origin == ("orders", 0, 3, 1000)


async def test_retries_without_dead_letters(autojump_clock: MockClock) -> None:
    """The error of the last attempt ends it, and nothing of the record is committed."""
    policy = raftmq.RetryPolicy(attempts=3, dead_letters=False)
    async with plant(retry=policy) as here:
        put_back(here, "10", 2)
        with pytest.raises(ValueError, match="ten") as caught, trio.fail_after(99):
            await raftmq.exactly_once(here.mq, here.consumer, here.fail_at_ten, on_poison="retry")
        assert f"{RETRY}-0, offset 0" in caught.value.__notes__[0]
        assert here.results() == []


async def never(batch: AnyBatch, tx: Any) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD])
@pytest.mark.parametrize("on_poison", ["retry", "dead_letter"])
async def test_refused_for_good(
    autojump_clock: MockClock, code: ErrorCode, on_poison: Literal["retry", "dead_letter"]
) -> None:
    """By the topic, as where the delay of the policy is over delay.max.ms: it ends with the reason,
    and nothing of the record is committed."""
    async with plant(retry=POLICY) as here:
        feed(here, 0, 2)
        here.bureau.leader = 3
        here.here.world.brokers[3].produces += [refused(code)] * 9
        with pytest.raises(InvalidRecord) as caught, trio.fail_after(99):
            await raftmq.exactly_once(here.mq, here.consumer, never, on_poison=on_poison)
        assert caught.value.code == code
        assert "offset 0: not moved" in caught.value.__notes__[0]
        assert here.coordinator.offsets == {}


@pytest.mark.parametrize(
    ("code", "is_lasting"),
    [(ErrorCode.INVALID_CONFIG, True), (ErrorCode.INVALID_REPLICATION_FACTOR, False)],
)
async def test_a_topic_that_is_not_made(
    autojump_clock: MockClock, code: ErrorCode, is_lasting: bool
) -> None:
    """While brokers are missing it is tried again."""
    async with plant(retry=POLICY) as here:
        feed(here, 0, 1)
        here.bureau.errors += [code]
        if is_lasting:
            with pytest.raises(InvalidConfig), trio.fail_after(99):
                await raftmq.exactly_once(here.mq, here.consumer, never, on_poison="retry")
            return
        async with here.running(never, on_poison="retry"):
            await until(lambda: RETRY in here.here.world.topics)
            await until(lambda: len(moved(here, RETRY)) == 1)


async def test_retries_without_a_policy(autojump_clock: MockClock) -> None:
    async with plant() as here:
        with pytest.raises(InvalidConfig, match=r"give it retry=raftmq\.RetryPolicy"):
            await raftmq.exactly_once(here.mq, here.consumer, here.transform, on_poison="retry")


async def test_retry_in_a_transaction(autojump_clock: MockClock) -> None:
    """By hand: it counts with the offset, or not at all, and serializers leave it alone."""
    async with plant(retry=POLICY) as here:
        feed(here, 0, 4)
        async with here.mq.producer(transactions=True, value_serializer=json.dumps) as producer:
            first = await anext(here.consumer)
            with suppress(ZeroDivisionError):
                async with producer.transaction() as tx:
                    told = await tx.retry(first, ValueError("no"))
                    assert (told.topic, told.offset) == (RETRY, 0)
                    tx.commit_offsets(here.consumer)
                    raise ZeroDivisionError
            assert moved(here, RETRY) == []
            async with producer.transaction() as tx:
                await tx.retry(first, ValueError("no"), attempts=2)
                tx.commit_offsets(here.consumer)
            value = (first.value or b"").decode()
            assert moved(here, RETRY) == [(value, 2, "ValueError: no")]
            assert here.coordinator.offsets[GROUP][first.partition] == 1
            async with producer.transaction() as tx:
                told = await tx.retry(first, ValueError("no"), attempts=3)
                assert told.topic == DEAD
                with pytest.raises(InvalidRequest, match="copied"):
                    await tx.retry(copy.copy(first))
