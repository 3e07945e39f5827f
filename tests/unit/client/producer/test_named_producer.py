"""A producer with a name: what a program may send again, and what it is told if it may not."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.producer.batch import BatchMetadata
from raftmq.errors import (
    Closed,
    ErrorCode,
    InvalidTimestamp,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    ReplayMismatch,
)
from raftmq.wire.batch.header import named_producer_id, read_header
from tests.unit.client.producer.shell import in_log, open_stage, requests, used_bytes
from tests.unit.client.world import World, done_and_lost, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.client import Client

NAME: dict[str, Any] = {"name": "etl/3", "generation": 17}
ROWS = [b"%d" % number for number in range(10)]


async def run(client: Client, rows: list[bytes], **options: Any) -> list[BatchMetadata]:
    """The task of a pipeline, from its start to its end."""
    async with client.producer(**{**NAME, **options}) as producer:
        return await producer.send_many("t", rows)


def values(rows: list[bytes]) -> list[str]:
    return [row.decode() for row in rows]


async def test_again_after_all_of_it(autojump_clock: MockClock) -> None:
    """Nothing leaves; all of it is told as skipped, and counted."""
    async with open_stage() as (world, _, client):
        assert await run(client, ROWS) == [BatchMetadata("t", 0, 1, 10)]
        before = len(requests(world))
        async with client.producer(**NAME) as producer:
            results = await producer.send_many("t", ROWS)
            assert results == [BatchMetadata("t", 0, -1, 10, is_skipped=True)]
            assert results[0].end_offset == -1
            assert (producer.statistics.skipped_records, producer.statistics.records) == (10, 0)
            assert used_bytes(producer) == 0
        assert len(requests(world)) == before
        assert in_log(world) == values(ROWS)


@pytest.mark.parametrize("batch_size", [1, 30, 64 << 10])
async def test_again_after_a_part(autojump_clock: MockClock, batch_size: int) -> None:
    """However batches are cut: the rest follows, in order, and results say where it stands."""
    async with open_stage() as (world, _, client):
        await run(client, ROWS[:4], batch_size=3)
        async with client.producer(**NAME, batch_size=batch_size) as producer:
            results = await producer.send_many("t", ROWS)
            statistics = producer.statistics
            assert (statistics.skipped_records, statistics.records) == (4, 6)
        assert in_log(world) == values(ROWS)
        skipped = [result for result in results if result.is_skipped]
        rest = [result for result in results if not result.is_skipped]
        assert sum(result.record_count for result in skipped) == 4
        assert rest[0].base_offset == 6  # two fences stand there, too
        assert rest[-1].end_offset == 12


async def test_single_records(autojump_clock: MockClock) -> None:
    """Each is told of as ever, without a place where it was skipped."""
    async with open_stage() as (world, _, client):
        await run(client, ROWS[:2])
        told: list[Any] = []
        async with client.producer(**NAME) as producer:
            deliveries = [
                producer.send_nowait(
                    "t", row, timestamp=number, on_delivery=lambda *given: told.append(given)
                )
                for number, row in enumerate(ROWS[:4])
            ]
            found = [await delivery for delivery in deliveries]
            assert [each.offset for each in found] == [-1, -1, 4, 5]
            assert [each.timestamp for each in found] == [0, 1, 2, 3]
            assert [metadata for _, metadata in told] == found
            assert (await producer.send("t", ROWS[4])).offset == 6
            await producer.flush()
        assert in_log(world) == values(ROWS[:5])


async def test_columns(autojump_clock: MockClock) -> None:
    """Some with keys, some without, over several partitions; by another call than before."""
    rows = [b"%d" % number for number in range(3000)]
    keys = [row if number % 3 else None for number, row in enumerate(rows)]
    world = World(2)
    world.add_topic("many", 1, 2, 1, 2)
    async with open_stage(world) as (_, _, client):
        async with client.producer(**NAME) as producer:
            await producer.send_columns("many", values=rows[:1700], keys=keys[:1700])
        async with client.producer(**NAME, batch_size=200) as producer:
            for value, key in zip(rows[:2000], keys[:2000], strict=True):
                await producer.enqueue("many", value, key=key)
        async with client.producer(**NAME) as producer:
            await producer.send_many(
                "many", range(3000), value=rows.__getitem__, key=keys.__getitem__
            )
            assert producer.statistics.skipped_records == 2000
        logs = [in_log(world, partition, "many") for partition in range(4)]
        assert sorted(chain.from_iterable(logs)) == sorted(values(rows))
        assert all([int(each) for each in log] == sorted(map(int, log)) for log in logs)


async def test_whoever_wrote_before(autojump_clock: MockClock) -> None:
    """It is refused, and so is all that it sends afterwards; the other one goes on."""
    async with open_stage() as (world, _, client):
        async with client.producer(**NAME) as old:
            await old.send("t", b"0")
            async with client.producer(**NAME) as new:
                await new.send_many("t", [b"0", b"1"])
                with pytest.raises(ProducerFenced) as caught:
                    await old.send("t", b"1")
                assert caught.value.definite
                for call in (old.send_nowait, old.enqueue, old.send):
                    with pytest.raises(ProducerFenced):
                        await call("t", b"2")  # type: ignore[operator]
                with pytest.raises(ProducerFenced):
                    await old.send_many("t", [b"2"])
                with pytest.raises(ProducerFenced):
                    await old.send("other", b"2")
                await new.send("t", b"2")
            await old.flush()
        assert in_log(world) == ["0", "1", "2"]


async def test_what_those_are_told_who_may_not_write(autojump_clock: MockClock) -> None:
    """Which producer, which generation and where, whether it fences or sends."""
    async with open_stage() as (_, _, client):
        async with client.producer(name="etl/3", generation=5) as old:
            await old.send("t", b"0", partition=0)
            await run(client, [b"0"], name="etl/3", generation=6)
            with pytest.raises(ProducerFenced, match="t-0: producer 'etl/3', generation 5: "):
                await old.send("t", b"1", partition=0)
        with pytest.raises(ProducerFenced, match=r"t-\d: producer 'etl/3', generation 5: "):
            await run(client, [b"0"], name="etl/3", generation=5)


async def test_fenced_while_an_answer_is_lost(autojump_clock: MockClock) -> None:
    """It is there, and the fence behind it: nobody says that it did not happen."""
    async with open_stage() as (world, _, client):
        async with client.producer(**NAME) as old:
            await old.send("t", b"0")
            world.brokers[1].produces += [done_and_lost]
            delivery = old.send_nowait("t", b"1")
            await trio.sleep(0.02)
            await run(client, [b"0", b"1"])
            with pytest.raises(OutcomeUnknown):
                await delivery
            with pytest.raises(ProducerFenced):
                await old.send("t", b"2")
        assert in_log(world) == ["0", "1"]


async def test_fenced_in_the_middle_of_a_long_call(autojump_clock: MockClock) -> None:
    """It ends at once, and tells of all that it was handed; leaving the block tells nothing."""

    async def slow() -> AsyncIterator[bytes]:
        for number in range(2000):
            await trio.sleep(0.001)
            yield b"%d" % number

    async with open_stage() as (world, tasks, client):
        async with client.producer(**NAME) as old:
            tasks.start_soon(fence_later, client)
            begin = trio.current_time()
            with pytest.raises(ProducerFenced) as caught:
                await old.send_many("t", slow())
            assert trio.current_time() - begin < 1
            assert "were delivered" in caught.value.__notes__[0]
        assert in_log(world) == values([b"%d" % number for number in range(len(in_log(world)))])
        assert used_bytes(old) == 0


async def fence_later(client: Client) -> None:
    await trio.sleep(0.5)
    with suppress(ReplayMismatch):  # it sends less than stands there
        await run(client, [b"0"])


async def test_generations(autojump_clock: MockClock) -> None:
    """A higher one sends all anew, a lower one nothing at all; none said is 0."""
    async with open_stage() as (world, _, client):
        async with client.producer(name="etl/3", generation=0) as producer:
            await producer.send("t", b"0")
        await run(client, [b"0"], generation=1)
        with pytest.raises(ProducerFenced):
            await run(client, [b"0"], generation=0)
        await run(client, [b"0"], name="etl/4", generation=0)
        assert in_log(world) == ["0", "0", "0"]


async def test_a_row_that_has_changed(autojump_clock: MockClock) -> None:
    """Nothing is appended, whatever comes behind it; the error says what to do."""
    async with open_stage() as (world, _, client):
        await run(client, ROWS[:4])
        changed = [*ROWS[:2], b"x", *ROWS[3:]]
        with pytest.raises(ReplayMismatch, match="the first 4 records") as caught:
            await run(client, changed, batch_size=1)
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        async with client.producer(**NAME, linger_ms=0) as producer:
            deliveries = [producer.send_nowait("t", row) for row in changed]
            for delivery in deliveries:
                with pytest.raises(ReplayMismatch):
                    await delivery
            with pytest.raises(ReplayMismatch):
                await producer.send("t", b"y")
        assert in_log(world) == values(ROWS[:4])
        await run(client, ROWS)
        assert in_log(world) == values(ROWS)


async def test_fewer_than_before(autojump_clock: MockClock) -> None:
    """Told at the end of the block, unless that ends with an error of its own."""
    async with open_stage() as (world, _, client):
        await run(client, ROWS)
        with pytest.raises(ReplayMismatch, match=r"10 records .* only 3 were sent again"):
            await run(client, ROWS[:3])
        with suppress(KeyError):
            async with client.producer(**NAME) as producer:
                await producer.send("t", ROWS[0])
                raise KeyError
        async with client.producer(**NAME):
            pass
        assert in_log(world) == values(ROWS)


async def test_a_partition_that_gets_nothing(autojump_clock: MockClock) -> None:
    """It, too, was fenced, and what stands there is missed."""
    world = World(1)
    world.add_topic("many", 1, 1)
    async with open_stage(world) as (_, _, client):
        async with client.producer(**NAME) as producer:
            await producer.send("many", b"a", partition=0)
            await producer.send("many", b"b", partition=1)
        with pytest.raises(ReplayMismatch, match="partition 1 of topic 'many'"):
            async with client.producer(**NAME) as producer:
                await producer.send("many", b"a", partition=0)


async def test_what_is_given_up_has_no_successor(autojump_clock: MockClock) -> None:
    """The next run would take it for what is missing; so it finds a place where it can go on."""
    async with open_stage() as (world, _, client):
        async with client.producer(**NAME, linger_ms=1000) as producer:
            await producer.send_many("t", ROWS[:2])
            world.brokers[1].produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
            with pytest.raises(MessageTooLarge):
                await producer.send_many("t", ROWS[2:4])
            with pytest.raises(Closed, match="open another one"):
                await producer.send("t", ROWS[4])
        assert in_log(world) == values(ROWS[:2])
        await run(client, ROWS)
        assert in_log(world) == values(ROWS)


async def test_what_waits_behind_what_is_given_up(autojump_clock: MockClock) -> None:
    """It fails at once, in other topics as well; nobody waits for room in vain."""
    world = World(1)
    world.add_topic("other", 1)
    options = {**NAME, "batch_size": 100, "linger_ms": 60_000}
    async with open_stage(world) as (_, _, client), client.producer(**options) as producer:
        world.brokers[1].produces += [refused(ErrorCode.INVALID_TIMESTAMP)]
        deliveries = [producer.send_nowait("t", bytes(100)) for _ in range(2)]
        deliveries += [producer.send_nowait("other", b"%d" % number) for number in range(2)]
        begin = trio.current_time()
        found = []
        for delivery in deliveries:
            with pytest.raises((InvalidTimestamp, Closed)) as caught:
                await delivery
            found.append(caught.type)
        assert found == [InvalidTimestamp, InvalidTimestamp, Closed, Closed]
        assert trio.current_time() - begin < 1
        await trio.sleep(0.1)
        assert used_bytes(producer) == 0


async def test_lost_answers(autojump_clock: MockClock) -> None:
    """What is sent again under its own number stands there once."""
    async with open_stage() as (world, _, client):
        world.brokers[1].produces += [done_and_lost, refused(ErrorCode.NOT_ENOUGH_REPLICAS)]
        await run(client, ROWS[:5])
        await run(client, ROWS)
        assert in_log(world) == values(ROWS)


async def test_another_leader(autojump_clock: MockClock) -> None:
    """It knows from the log: the name is not fenced again."""
    async with open_stage() as (world, _, client):
        async with client.producer(**NAME) as producer:
            await producer.send("t", b"0")
            world.lead("t", 0, 2)
            await producer.send("t", b"1")
        headers = [read_header(data) for _, _, data in world.topics["t"].partitions[0].batches]
        assert [header.is_control for header in headers] == [True, False, False]
        assert {header.producer_id for header in headers} == {named_producer_id("etl/3")}


async def test_a_topic_that_grows(autojump_clock: MockClock) -> None:
    """The records of one run are dealt out alike from the first one to the last."""
    async with open_stage() as (world, _, client):
        async with client.producer(**NAME, linger_ms=0) as producer:
            await producer.send("t", b"0", key=b"k")
            world.add_partition("t", 1)
            await client._cluster.refresh("t", deadline=trio.current_time() + 1)
            for number in range(20):
                await producer.send("t", b"%d" % number, key=number)
        assert len(in_log(world)) == 21
        assert in_log(world, 1) == []


async def test_a_topic_that_has_grown_unseen(autojump_clock: MockClock) -> None:
    """A client that knows fewer partitions from before asks anew for its named producers."""
    async with open_stage() as (world, _, client):
        async with client.producer() as producer:
            await producer.send("t", b"plain")
        world.add_partition("t", 1)
        async with client.producer(**NAME) as producer:
            await producer.send("t", b"0", partition=1)
        assert in_log(world, 1) == ["0"]


async def test_a_topic_that_grows_between_two_runs(autojump_clock: MockClock) -> None:
    """Of the second one nothing leaves, and it is told; a higher generation has the new places."""
    async with open_stage() as (world, _, client):
        await run(client, ROWS)
        world.add_partition("t", 1)
        with pytest.raises(ReplayMismatch, match=r"had 1 partitions .* has 2 now") as caught:
            await run(client, [*ROWS, b"10"])
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        assert (in_log(world), in_log(world, 1)) == (values(ROWS), [])
        with pytest.raises(ReplayMismatch):
            await run(client, [])
        async with client.producer(**{**NAME, "generation": 18}) as producer:
            await producer.send("t", b"10", partition=1)
        assert in_log(world, 1) == ["10"]


@pytest.mark.parametrize("call", ["send_columns", "enqueue_columns"])
async def test_no_rows_where_some_were(autojump_clock: MockClock, call: str) -> None:
    """A call without rows finds what stands there, as one with too few does."""
    async with open_stage() as (world, _, client):
        await run(client, [])
        await run(client, ROWS)
        with pytest.raises(ReplayMismatch, match="only 0 were sent again"):
            await run(client, [])
        with pytest.raises(ReplayMismatch, match="only 0 were sent again"):
            async with client.producer(**NAME) as producer:
                await getattr(producer, call)("t", values=[])
        assert in_log(world) == values(ROWS)
