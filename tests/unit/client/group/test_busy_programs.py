"""Programs that are slow, or wait for long: when they count as hanging, and how far they are."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import grouped, keys, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer

NINE = tuple(map(str, range(9)))
POLL_MS = 3000
MANY = 40


def taking(seconds: float) -> Callable[[object], Awaitable[None]]:
    async def work(_record: object) -> None:
        await trio.sleep(seconds)

    return work


async def test_work_beside_a_loop_that_waits(autojump_clock: MockClock) -> None:
    """The last block ends while the loop waits already, and nothing comes for long: it waits, so it
    is a member, and gets what comes then."""
    sizes: list[int] = []

    async def work(c: Consumer, batch: ConsumedBatch) -> None:
        with c.processing(batch):
            await trio.sleep(1.0)

    async def loop(c: Consumer, nursery: trio.Nursery) -> None:
        async for batch in c.batches():
            sizes.append(len(batch))
            nursery.start_soon(work, c, batch)

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with (
            here.consumer("a", max_poll_interval_ms=POLL_MS) as c,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(loop, c, nursery)
            await until(lambda: sizes == [9])
            await trio.sleep(3 * POLL_MS / 1000)
            assert set(c.assignment) == keys(0)
            here.append(0, "later")
            await until(lambda: sizes == [9, 1], seconds=1.0)
            nursery.cancel_scope.cancel()


async def test_work_after_the_loop_has_stopped_asking(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The last block ends, and nobody asks for more: that is a program that hangs. As it has not
    asked, what it had comes again; the log names the limit."""
    caplog.set_level("INFO", "raftmq.client")
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", max_poll_interval_ms=POLL_MS) as c:
            with c.processing(await anext(c.batches())):
                await trio.sleep(2 * POLL_MS / 1000)
                assert set(c.assignment) == keys(0)
            await trio.sleep(POLL_MS / 1000 + 0.1)
            assert c.assignment == []
            assert "joining: group=" in caplog.text
            assert "partitions=orders-0" in caplog.text
            (lost,) = [one.message for one in caplog.records if one.levelname == "WARNING"]
            assert "partitions=orders-0: the program has asked for nothing" in lost
            assert f"max_poll_interval_ms = {POLL_MS};" in lost
            here.append(0, "later")
            assert await take(c, 10) == [*NINE, "later"]


async def test_who_has_given_up_waiting(autojump_clock: MockClock) -> None:
    """Nothing came in time, and the program does something else for too long."""
    async with grouped(1) as here, here.consumer("a", max_poll_interval_ms=POLL_MS) as c:
        await until(lambda: c.assignment)
        with trio.move_on_after(1.0):
            await anext(c)
        await trio.sleep(POLL_MS / 1000 + 0.1)
        assert c.assignment == []


@pytest.mark.parametrize("commit", ["batch", "manual", "before"])
async def test_records_that_take_their_time(autojump_clock: MockClock, commit: str) -> None:
    """Each well within `max_poll_interval_ms`, the batch that they came in not: nothing is lost,
    and nothing comes twice."""
    async with grouped(1) as here:
        here.append(0, *map(str, range(MANY)))
        slow = here.begin("a", commit=commit, max_poll_interval_ms=POLL_MS, work=taking(0.2))
        await until(lambda: len(slow.records) == MANY)
        assert slow.lost == []
        assert slow.values == [str(number) for number in range(MANY)]


async def test_a_record_that_takes_too_long(autojump_clock: MockClock) -> None:
    """In the midst of a batch whose other records were quick: the program hangs."""

    async def work(record: object) -> None:
        await trio.sleep(0.2 if record.offset < 16 else 100.0)  # type: ignore[attr-defined]

    async with grouped(1) as here:
        here.append(0, *map(str, range(MANY)))
        slow = here.begin("a", max_poll_interval_ms=POLL_MS, work=work)
        await until(lambda: len(slow.records) == 17)
        await trio.sleep(POLL_MS / 1000 * 0.9)
        assert slow.lost == []
        await trio.sleep(POLL_MS / 1000 * 0.2)
        assert slow.lost == [(("orders", 0),)]


async def test_how_far_it_is_in_a_batch(autojump_clock: MockClock) -> None:
    """Of records that are handed out one by one those before the last are committed along, though
    the batch has not ended: they do not come again after a crash."""
    async with grouped(1) as here:
        here.append(0, *map(str, range(MANY)))
        slow = here.begin("a", work=taking(0.5))
        await until(lambda: len(slow.records) == 15)
        assert 12 <= (here.committed(0) or 0) <= 14
        await slow.crash()
        other = here.begin("b")
        await until(lambda: other.values and other.values[-1] == str(MANY - 1))
        assert 12 <= other.records[0].offset <= 14


@pytest.mark.parametrize("mode", ["batch", "record"])
async def test_work_that_failed_last(autojump_clock: MockClock, mode: str) -> None:
    """A program notes the error of its last work and ends in order: that work was not done, and
    comes again (C3)."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit=mode) as c:
            await anext(c)
            record = await anext(c)
            with suppress(ValueError), c.processing(record):
                raise ValueError("bad")
        assert here.committed(0) == 1


async def test_work_that_failed_in_the_midst(autojump_clock: MockClock) -> None:
    """The program notes the error, and goes on with the next records of the batch: it has got over
    it, and nothing comes again."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a") as c:
            for _ in NINE:
                record = await anext(c)
                with suppress(ValueError), c.processing(record):
                    if record.offset == 1:
                        raise ValueError("bad")
        assert here.committed(0) == 9


async def test_a_pool_that_is_cancelled_at_the_end(autojump_clock: MockClock) -> None:
    """Two of ten works are not done when the block ends, in order: what is behind them comes again,
    too (C3). Work that is still held then is not done, either."""
    async with grouped(1) as here:
        here.append(0, *NINE)

        async def work(c: Consumer, record: object) -> None:
            with c.processing(record):  # type: ignore[arg-type]
                if record.offset in (2, 5):  # type: ignore[attr-defined]
                    await trio.sleep_forever()

        async with here.consumer("a") as c, trio.open_nursery() as nursery:
            for _ in NINE:
                nursery.start_soon(work, c, await anext(c))
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert here.committed(0) == 2
        async with here.consumer("b") as c:
            c.processing(await anext(c)).__enter__()
        assert here.committed(0) == 2


async def test_work_that_fails_beside_a_loop_that_waits(autojump_clock: MockClock) -> None:
    """Nobody works on it any more, so nobody has to wait for it; as it was not done, whoever gets
    the partition gets it again."""

    async def work(c: Consumer, batch: ConsumedBatch) -> None:
        with suppress(ValueError), c.processing(batch):
            await trio.sleep(0.1)
            if batch.base_offset == 6:
                raise ValueError("bad")

    async def loop(c: Consumer, nursery: trio.Nursery) -> None:
        async for batch in c.batches(max_records=6):
            nursery.start_soon(work, c, batch)

    async with grouped(2) as here, trio.open_nursery() as nursery:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a") as c:
            nursery.start_soon(loop, c, nursery)
            await trio.sleep(3.0)
            assert [here.committed(partition) for partition in range(2)] == [6, 6]
            other = here.begin("b")
            await until(lambda: len(other.held) == 1, seconds=2.0)
            await until(lambda: other.values == ["6", "7", "8"])
            nursery.cancel_scope.cancel()
