"""Members of groups whose programs are threads: what they lose, keep, finish and get again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from tests.unit.client.group.grouped import grouped, until
from tests.unit.sync.loop_here import LoopHere, threaded

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.sync.consumer import Consumer

NINE = tuple(map(str, range(9)))
MANY = 40
POLL_MS = 3000


def offsets_read(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for _, record in zip(range(count), consumer, strict=False)]


async def test_records_that_take_their_time(autojump_clock: MockClock) -> None:
    """Each well within `max_poll_interval_ms`, the batch that they came in not: it stays a member,
    gets each once, and what comes before the one at hand is committed along."""
    offsets, committed = list[int](), list[int]()

    def read(loop: LoopHere, consumer: Consumer) -> None:
        with consumer:
            for record in consumer.records(timeout=1.0):
                offsets.append(record.offset)
                loop.sleep(0.2)
                committed.append(loop.ask(lambda: here.committed(0)) or 0)

    async with grouped(1) as here:
        here.append(0, *map(str, range(MANY)))
        async with threaded(here, "a", max_poll_interval_ms=POLL_MS) as (loop, consumer):
            await loop.run(lambda: read(loop, consumer))
        assert offsets == list(range(MANY))
        assert all(done <= offset for done, offset in zip(committed, offsets, strict=True))
        assert committed[20] >= 17
        assert here.committed(0) == MANY


async def test_a_record_that_takes_too_long(autojump_clock: MockClock) -> None:
    """In the midst of a batch: others get the partition, and nothing more of the batch is handed
    out here."""

    def read(loop: LoopHere, consumer: Consumer) -> list[int]:
        with consumer:
            first = offsets_read(consumer, 3)
            loop.sleep(POLL_MS / 1000 + 0.5)
            loop.call(wait_for_others)
            return first + [record.offset for record in consumer.records(timeout=5.0)]

    async def wait_for_others() -> None:
        other = here.begin("b")
        await until(lambda: here.committed(0) == 9)
        await other.leave()
        here.append(0, "later")

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with threaded(here, "a", max_poll_interval_ms=POLL_MS) as (loop, consumer):
            assert await loop.run(lambda: read(loop, consumer)) == [0, 1, 2, 9]


@pytest.mark.parametrize("then", ["goes on", "pauses", "commits", "takes batches", "ends"])
async def test_at_most_once_and_others_meanwhile(autojump_clock: MockClock, then: str) -> None:
    """Records lie ready for a thread; their partition goes to somebody else, who reads on, and
    comes back. What lay there never comes again, whatever the program does next."""

    async def lose_and_get_back() -> None:
        here.world.network.isolate("a")
        other = here.begin("b", delivery="at_most_once")
        await until(lambda: other.held)
        here.append(0, *NINE)
        await until(lambda: len(other.records) == 9)
        await other.leave()
        here.world.network.heal()
        await until(lambda: len(here.saved().members) == 1)
        await trio.sleep(2.0)

    def read(loop: LoopHere, consumer: Consumer) -> list[int]:
        with consumer:
            found = offsets_read(consumer, 3)
            loop.call(lose_and_get_back)
            if then == "pauses":
                consumer.pause(("orders", 0))
                consumer.resume(("orders", 0))
            elif then == "commits":
                consumer.commit()
            elif then == "takes batches":
                found += [one for batch in consumer.batches(timeout=1.0) for one in batch.offsets]
            if then != "ends":
                loop.ask(lambda: here.append(0, "later"))
                found += [record.offset for record in consumer.records(timeout=1.0)]
            return found

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with threaded(here, "a", delivery="at_most_once") as (loop, consumer):
            later = [] if then == "ends" else [18]
            assert await loop.run(lambda: read(loop, consumer)) == [0, 1, 2, *later]
        assert here.committed(0) == 18 + len(later)


async def test_work_that_fails(autojump_clock: MockClock) -> None:
    """Its error goes its way, and it is not finished: what comes after it is not committed."""

    def work(loop: LoopHere, consumer: Consumer) -> int | None:
        with consumer:
            batches = consumer.batches(max_records=3)
            with suppress(ValueError), consumer.processing(next(batches)):
                next(batches)
                raise ValueError("bad")
            loop.sleep(1.0)
            done = loop.ask(lambda: here.committed(0))
            next(batches)
            loop.sleep(1.0)
            assert loop.ask(lambda: here.committed(0)) == 6
            return done

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with threaded(here, "a") as (loop, consumer):
            assert not await loop.run(lambda: work(loop, consumer))


async def test_work_that_takes_long(autojump_clock: MockClock) -> None:
    """In a `processing` block; after it, it is finished like anything else."""

    def work(loop: LoopHere, consumer: Consumer) -> None:
        with consumer:
            batches = consumer.batches(max_records=3)
            with consumer.processing(next(batches)):
                loop.sleep(2 * POLL_MS / 1000)
                next(batches)
                loop.sleep(1.0)
                assert not loop.ask(lambda: here.committed(0))
            loop.sleep(1.0)
            assert loop.ask(lambda: here.committed(0)) == 3

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with threaded(here, "a", max_poll_interval_ms=POLL_MS) as (loop, consumer):
            await loop.run(lambda: work(loop, consumer))


async def test_the_end_of_a_block_in_a_block(autojump_clock: MockClock) -> None:
    """The consumer is closed while something is held: that is nothing to raise."""

    def work(consumer: Consumer) -> None:
        with consumer, consumer.processing(next(consumer.batches())):
            consumer.close()

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with threaded(here, "a") as (loop, consumer):
            await loop.run(lambda: work(consumer))


async def test_another_member_joins(autojump_clock: MockClock) -> None:
    """It waits for the record at hand, and not for all that lie ready for the thread; each is read
    once."""
    offsets: list[tuple[int, int]] = []

    def read(loop: LoopHere, consumer: Consumer) -> None:
        with consumer:
            for record in consumer.records(timeout=3.0):
                offsets.append((record.partition, record.offset))
                loop.sleep(0.5 if len(offsets) < 20 else 0.0)

    async def join() -> None:
        await until(lambda: len(offsets) == 5)
        other = here.begin("b")
        await until(lambda: other.held, seconds=3.0)
        await until(lambda: len(other.records) == MANY - 5)
        offsets.extend((record.partition, record.offset) for record in other.records)

    async with grouped(2) as here, trio.open_nursery() as nursery:
        for partition in range(2):
            here.append(partition, *map(str, range(MANY)))
        async with threaded(here, "a") as (loop, consumer):
            nursery.start_soon(join)
            await loop.run(lambda: read(loop, consumer))
        expected = [(partition, offset) for partition in range(2) for offset in range(MANY)]
        assert sorted(offsets) == expected
