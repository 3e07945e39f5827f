"""`value_deserializer` and `key_deserializer`: what they make, and records that they refuse."""

from __future__ import annotations

import json
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.errors import UndecodableRecord
from raftmq.wire.batch.records import encode_batch
from tests.unit.client.consumer.reading import append, consumer, reading
from tests.unit.client.group.grouped import grouped
from tests.unit.sync.loop_here import threaded, threaded_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer
    from raftmq.sync.consumer import Consumer as SyncConsumer


async def seen(c: Consumer, count: int) -> list[object]:
    """What is handed out: values, and offsets of records that could not be read."""
    found: list[object] = []
    for _ in range(count):
        try:
            found.append((await anext(c)).value)
        except UndecodableRecord as error:
            found.append(f"bad {error.offset}")
    return found


async def test_keys_and_values(autojump_clock: MockClock) -> None:
    """Each has what its function makes; None stays None, and the size is that of what was sent."""
    async with reading(1) as (world, client):
        data = encode_batch(values=[b"[1, 2]", None], keys=[b"k", None], timestamp=1)
        world.topics["u"].partitions[0].append(bytes(data))
        options = {"value_deserializer": json.loads, "key_deserializer": bytes.decode}
        async with consumer(client, **options) as c:
            first, second = await anext(c), await anext(c)
            assert (first.key, first.value, first.size) == ("k", [1, 2], 7)
            assert (second.key, second.value, second.size) == (None, None, 0)
            assert isinstance(first, ConsumerRecord)
            c.seek("u", 0, offset=0)
            batch = await anext(c.batches())
            assert (list(batch.keys), list(batch.values)) == (["k", None], [[1, 2], None])
            assert list(batch) == [first, second]
            assert list(batch.raw.values) == [b"[1, 2]", None]


async def test_reading_goes_on_behind_a_record(autojump_clock: MockClock) -> None:
    """The first, one in the midst and the last of a batch cannot be read: each is raised once, with
    the record as it was sent."""
    async with reading(1) as (world, client):
        append(world, 0, "{", "1", "x", "2", "}")
        append(world, 0, "3")
        async with consumer(client, value_deserializer=json.loads) as c:
            assert await seen(c, 6) == ["bad 0", 1, "bad 2", 2, "bad 4", 3]
            assert (c.position("u", 0), c.last_consumed("u", 0)) == (6, 5)
            c.seek("u", 0, offset=2)
            with pytest.raises(UndecodableRecord) as caught:
                await anext(c)
            assert str(caught.value).startswith(
                "u-0 offset 2: value_deserializer: JSONDecodeError: Expecting value"
            )
            assert caught.value.record == ConsumerRecord("u", 0, 2, 1000, None, b"x")
            assert isinstance(caught.value.__cause__, ValueError)
            assert (c.position("u", 0), c.last_consumed("u", 0)) == (3, 2)


async def test_a_batch_with_a_record_that_cannot_be_read(autojump_clock: MockClock) -> None:
    """Its values fail, by the record; its raw ones do not, and the next batch comes."""
    async with reading(1) as (world, client):
        append(world, 0, "1", "x", "2")
        append(world, 0, "3")
        async with consumer(client, value_deserializer=json.loads) as c:
            batches = c.batches(max_records=3)
            batch = await anext(batches)
            for _ in range(2):
                with pytest.raises(UndecodableRecord, match="u-0 offset 1: value_deserializer"):
                    _ = batch.values
            assert list(batch.raw.values) == [b"1", b"x", b"2"]
            rows = iter(batch)
            assert next(rows).value == 1
            with pytest.raises(UndecodableRecord):
                next(rows)
            assert [record.value for record in rows] == [2]
            assert list((await anext(batches)).values) == [3]


@pytest.mark.parametrize("mode", ["batch", "record", "manual", "before"])
async def test_what_a_group_commits(mode: str, autojump_clock: MockClock) -> None:
    """A program that goes on has done with the record; one that ends over it gets it again, but
    for "before" (A11.2)."""
    async with grouped(1) as here:
        here.append(0, "1", "x", "2")
        options = {"commit": mode, "value_deserializer": json.loads}

        async def read_two() -> None:
            async with here.consumer("a", **options) as c:
                await anext(c)
                await anext(c)

        with pytest.raises(UndecodableRecord):
            await read_two()
        assert (here.committed(0) or 0) <= (3 if mode == "before" else 1)
        if mode == "before":
            return
        async with here.consumer("a", **options) as c:
            found = await seen(c, 3 - (here.committed(0) or 0))
            assert found[-2:] == ["bad 1", 2]
            if mode == "manual":
                await c.commit()
        assert here.committed(0) == 3


async def test_the_record_of_the_error_can_be_committed(autojump_clock: MockClock) -> None:
    """It was handed out with the error, so it bears the mark of what was handed out."""
    async with grouped(1) as here:
        here.append(0, "x", "2")
        options = {"commit": "manual", "value_deserializer": json.loads}
        async with here.consumer("a", **options) as c:
            with pytest.raises(UndecodableRecord) as caught:
                await anext(c)
            await c.commit(caught.value.record)
            assert here.committed(0) == 1
            record = await anext(c)
            with c.processing(record):
                await c.commit(record)
            assert here.committed(0) == 2


class Interrupted:
    """A deserializer that Ctrl-C, or a cancellation, hits with one value, once."""

    def __init__(self, value: bytes) -> None:
        self._value: bytes | None = value

    def __call__(self, value: bytes) -> str:
        if value == self._value:
            self._value = None
            raise KeyboardInterrupt
        return value.decode()


@pytest.mark.parametrize("hit", [b"1", b"2", b"3"])
async def test_a_deserializer_that_is_interrupted(autojump_clock: MockClock, hit: bytes) -> None:
    """The record was not handed out: it comes with the next read, and none comes twice."""
    async with reading(1) as (world, client):
        append(world, 0, "1", "2", "3")
        append(world, 0, "4")
        async with consumer(client, value_deserializer=Interrupted(hit)) as c:
            values = [(await anext(c)).value for _ in range(int(hit) - 1)]
            with pytest.raises(KeyboardInterrupt):
                await anext(c)
            before = None if hit == b"1" else int(hit) - 2
            assert (c.last_consumed("u", 0), c.position("u", 0)) == (before, int(hit) - 1)
            while len(values) < 4:
                values.append((await anext(c)).value)
            assert values == ["1", "2", "3", "4"]


@pytest.mark.parametrize("hit", [b"1", b"2", b"3"])
async def test_it_is_interrupted_in_a_thread(autojump_clock: MockClock, hit: bytes) -> None:
    """The same, whether the program goes on with the iterator or makes another; each can be
    closed."""

    def read(consumer: SyncConsumer) -> None:
        with consumer:
            records = consumer.records(timeout=0.5)
            values = [next(records).value for _ in range(int(hit) - 1)]
            with pytest.raises(KeyboardInterrupt):
                next(records)
            before = None if hit == b"1" else int(hit) - 2
            assert consumer.last_consumed("orders", 0) == before
            values.append(next(records).value)
            records.close()  # type: ignore[attr-defined]
            assert list(records) == []
            values += [record.value for record in consumer.records(timeout=0.5)]
            assert values == ["1", "2", "3"]

    async with grouped(1) as here:
        here.append(0, "1", "2", "3")
        options = {"start": "earliest", "value_deserializer": Interrupted(hit)}
        async with threaded_alone(here, "a", **options) as (loop, threaded):
            await loop.run(lambda: read(threaded))


class InterruptedLate:
    """A deserializer that is hit with one value, once, after `meanwhile` has run in a thread."""

    def __init__(self, value: bytes) -> None:
        self._value: bytes | None = value
        self.meanwhile: Callable[[], None]

    def __call__(self, value: bytes) -> str:
        if value == self._value:
            self._value = None
            other = Thread(target=self.meanwhile)
            other.start()
            other.join()
            raise KeyboardInterrupt
        return value.decode()


def share(consumer: SyncConsumer, deserializer: InterruptedLate, others_count: int) -> list[str]:
    """What a thread reads before it is interrupted, and then what another has read meanwhile."""
    values, meanwhile = list[str](), list[str]()

    def read_some() -> None:
        consumer.resume(*consumer.assignment)
        records = consumer.records(timeout=0.5)
        meanwhile.extend(next(records).value for _ in range(others_count))

    deserializer.meanwhile = read_some
    with pytest.raises(KeyboardInterrupt):
        values.extend(record.value for record in consumer.records(timeout=0.5))
    return values + meanwhile


async def test_another_thread_has_gone_on_to_another_partition(autojump_clock: MockClock) -> None:
    """The interrupted record has an offset that the other's batch has, too: nothing of that batch
    is skipped (C3, S6)."""
    deserializer = InterruptedLate(b"0:2")

    def read(consumer: SyncConsumer) -> None:
        with consumer:
            consumer.pause(("orders", 1))  # the other thread resumes it
            values = share(consumer, deserializer, 1)
            consumer.pause(("orders", 1))  # ends the batch
            consumer.resume(("orders", 1))
            values += [record.value for record in consumer.records(timeout=0.5)]
            assert values == ["0:0", "0:1", *(f"1:{number}" for number in range(4))]

    async with grouped(2) as here:
        here.append(0, *(f"0:{number}" for number in range(3)))
        here.append(1, *(f"1:{number}" for number in range(4)))
        options = {"start": "earliest", "value_deserializer": deserializer}
        async with threaded_alone(here, "a", **options) as (loop, threaded):
            await loop.run(lambda: read(threaded))


@pytest.mark.parametrize(("mode", "committed"), [("before", 4), ("batch", 1)])
async def test_another_thread_has_gone_on(
    autojump_clock: MockClock, mode: str, committed: int
) -> None:
    """A program that ends its loop with Ctrl-C: with "before" nothing that the other thread has got
    comes again; with others the record that was not handed out does (C3, C4)."""
    deserializer = InterruptedLate(b"1")

    def read(consumer: SyncConsumer) -> list[str]:
        with consumer:
            return share(consumer, deserializer, 2)

    async with grouped(1) as here:
        here.append(0, *map(str, range(6)))
        options = {"commit": mode, "value_deserializer": deserializer}
        async with threaded(here, "a", **options) as (loop, consumer):
            assert await loop.run(lambda: read(consumer)) == ["0", "2", "3"]
        assert here.committed(0) == committed


async def test_in_a_thread(autojump_clock: MockClock) -> None:
    """The function runs in the program's thread; the same iteration goes on behind a record."""

    def read(consumer: SyncConsumer) -> None:
        with consumer:
            records = consumer.records(timeout=0.5)
            assert next(records).value == 1
            with pytest.raises(UndecodableRecord, match="orders-0 offset 1"):
                next(records)
            assert consumer.last_consumed("orders", 0) == 1
            assert [record.value for record in records] == [2]
            consumer.seek("orders", 0, offset=1)
            with pytest.raises(UndecodableRecord, match="orders-0 offset 1"):
                list(consumer.records(timeout=0.5))
            assert [record.value for record in consumer.records(timeout=0.5)] == [2]
            consumer.seek("orders", 0, offset=2)
            assert [list(batch.values) for batch in consumer.batches(timeout=0.5)] == [[2]]

    async with grouped(1) as here:
        here.append(0, "1", "x", "2")
        options = {"start": "earliest", "value_deserializer": json.loads}
        async with threaded_alone(here, "a", **options) as (loop, threaded):
            await loop.run(lambda: read(threaded))
