"""What a member of a group learns of crashes of the members before it (A12.5)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import trio

import raftmq
from raftmq.client.consumer.consumer import Consumer
from raftmq.errors import InvalidConfig
from raftmq.metadata.commands import FeatureLevel
from tests.unit.client.group.grouped import MEMBER, Grouped, grouped, until
from tests.unit.client.processing.mill import mill, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from tests.unit.client.processing.mill import Mill


@asynccontextmanager
async def counted(partitions: int = 1) -> AsyncIterator[Grouped]:
    async with grouped(partitions, level=FeatureLevel.SCHEDULED) as here:
        await here.tell_metadata("orders")
        yield here


async def die(here: Grouped, number: int, *, deadly: str = "", **options: Any) -> tuple[int, int]:
    """A program that dies of the first record, or of the one that is `deadly`: how many crashes it
    was told before, and how many records it had.
    """
    name, had = f"life {number}", 0
    with trio.CancelScope() as life:
        async with here.consumer(name, **options) as consumer:
            async for record in consumer:
                had += 1
                told = consumer.crashes("orders", record.partition)
                if deadly in ("", record.text()):
                    here.world.network.isolate(name)
                    life.cancel()
                await trio.lowlevel.checkpoint()
    return told, had


async def until_counted(here: Grouped, crashes: int, partition: int = 0) -> None:
    await until(lambda: here.crashes(partition) == crashes)


async def test_crashes_are_told(autojump_clock: MockClock) -> None:
    """Two at the most, where several records are in hand; 0 once the offset has moved."""
    async with counted() as here:
        here.append(0, *"abc")
        assert [(await die(here, number))[0] for number in range(4)] == [0, 1, 2, 2]
        async with here.consumer("at last") as consumer:
            async for record in consumer:
                assert consumer.crashes("orders", 0) == 2
                await consumer.commit(record)
                assert consumer.crashes("orders", 0) == 0
                break
        assert here.crashes(0) == 0


async def test_one_at_a_time_they_are_counted_on(autojump_clock: MockClock) -> None:
    """With commit="record", of the record at which it dies, wherever it stands; and a program may
    set it aside."""
    async with counted(2) as here:
        here.append(0, "a", "b", "poison", "c")
        here.append(1, "d")
        told = [await die(here, number, deadly="poison", commit="record") for number in range(5)]
        assert [crashes for crashes, _ in told] == [0, 1, 2, 3, 4]
        assert all(had == 1 for _, had in told[1:])
        assert here.committed(0) == 2
        assert here.crashes(1) <= 2
        seen = []
        async with here.consumer("at last", commit="record") as consumer:
            async for record in consumer:
                seen.append((record.text(), consumer.crashes("orders", record.partition)))
                if record.text() == "c":
                    break
        assert seen[0] == ("poison", 5)
        assert ("c", 0) in seen


POLICY = raftmq.RetryPolicy(attempts=4)


@pytest.mark.parametrize("commit", ["batch", "record"])
@pytest.mark.parametrize("way", ["records", "batches"])
async def test_with_a_policy_it_is_set_aside(
    autojump_clock: MockClock, way: str, commit: str
) -> None:
    """The program does nothing for it, and everything else is read; in the midst of a batch, and
    with partitions beside it."""
    async with mill(2, level=FeatureLevel.SCHEDULED) as here:
        await here.send(*numbers(5), "poison", *numbers(5, 5))
        await here.send(*numbers(10, 10), partition=1)
        done, deaths = set[str](), 0

        async def live(name: str) -> None:
            nonlocal deaths
            async with here.client(name) as mq:
                options = MEMBER | {"retry": POLICY, "commit": commit}
                async with mq.consumer("orders", **options) as consumer:
                    source = consumer if way == "records" else consumer.batches()
                    async for work in source:
                        records = [work] if way == "records" else list(work)
                        if any(record.text() == "poison" for record in records):
                            deaths += 1
                            here.here.world.network.isolate(name)
                            life.cancel()
                        await trio.lowlevel.checkpoint_if_cancelled()
                        done.update(record.text() for record in records)

        async with trio.open_nursery() as nursery:

            async def live_again() -> None:
                nonlocal life
                for number in count():
                    with trio.CancelScope() as life:
                        await live(f"life {number}")

            life = trio.CancelScope()
            nursery.start_soon(live_again)
            await here.until_committed(11, 10)
            nursery.cancel_scope.cancel()
        assert here.letters() == [("poison", 4, "its process died 4 times")]
        assert done == set(numbers(20))
        assert 4 <= deaths <= 8


async def test_a_batch_of_one(autojump_clock: MockClock) -> None:
    """Batches are of one record then, and noted alike."""
    async with counted() as here:
        here.append(0, *"abc")
        for number in range(2):
            await die(here, number, commit="record")
        name = "batches"
        with trio.CancelScope() as life:
            async with here.consumer(name, commit="record") as consumer:
                async for batch in consumer.batches():
                    assert (len(batch), consumer.crashes("orders", 0)) == (1, 2)
                    here.world.network.isolate(name)
                    life.cancel()
                    await trio.lowlevel.checkpoint()
        await until_counted(here, 3)


async def test_beside_a_block_it_is_not_alone(autojump_clock: MockClock) -> None:
    """What a `processing` block holds may be it as well."""
    async with counted(2) as here:
        here.append(0, "a")
        here.append(1, "b")
        for number in range(2):
            await die(here, number, commit="record")
        await until_counted(here, 2)
        name = "blocks"
        with trio.CancelScope() as life:
            async with here.consumer(name, commit="record") as consumer:
                first = await anext(consumer)
                with consumer.processing(first):
                    await anext(consumer)
                    here.world.network.isolate(name)
                    life.cancel()
                    await trio.lowlevel.checkpoint()
        await trio.sleep(20)
        assert max(here.crashes(0), here.crashes(1)) <= 2


async def live_and_die(here: Mill, work: Any, **options: Any) -> list[str]:
    """A program, again and again, until a record is set aside, or it has died ten times of the one
    that kills: these deaths. `work` puts off the others.
    """
    deaths: list[str] = []

    async def live(name: str, life: trio.CancelScope) -> None:
        async with here.client(name) as mq, trio.open_nursery() as tasks:
            options_of_life = MEMBER | {"retry": raftmq.RetryPolicy(attempts=3)} | options
            async with mq.consumer("orders", **options_of_life) as consumer:
                async for record in consumer:
                    if record.text() == "poison":
                        deaths.append(record.text())
                        here.here.world.network.isolate(name)
                        life.cancel()
                    await trio.lowlevel.checkpoint()
                    work(consumer, record, tasks)
                    await trio.lowlevel.checkpoint()  # until a block is entered

    async def live_again() -> None:
        for number in count():
            with trio.CancelScope() as life:
                await live(f"life {number}", life)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live_again)
        await until(lambda: here.letters() or len(deaths) == 10, seconds=600)
        nursery.cancel_scope.cancel()
    return deaths


def hold_on(consumer: Any, record: Any, tasks: trio.Nursery) -> None:
    async def hold() -> None:
        with consumer.processing(record):
            await trio.sleep_forever()

    tasks.start_soon(hold)


def read_it_later(consumer: Any, record: Any, tasks: trio.Nursery) -> None:
    consumer.seek("orders", record.partition, offset=record.offset)
    consumer.pause(("orders", record.partition))


def read_all_later(consumer: Any, record: Any, tasks: trio.Nursery) -> None:
    """Where that is has to be looked up, as nothing of it is read."""
    consumer.seek("orders", record.partition, timestamp=0)
    consumer.pause(("orders", record.partition))


@pytest.mark.parametrize("commit", ["batch", "record"])
@pytest.mark.parametrize("put_off", [hold_on, read_it_later, read_all_later])
async def test_what_is_put_off_is_not_blamed(
    autojump_clock: MockClock, put_off: Any, commit: str
) -> None:
    """It was handed out alone, and is not finished, so that its offset does not move: others are
    handed out, and one of them kills."""
    async with mill(6, level=FeatureLevel.SCHEDULED) as here:
        for partition in range(5):
            await here.send("innocent", partition=partition)
        await here.send("poison", partition=5)
        deaths = await live_and_die(here, put_off, commit=commit)
        assert here.letters() in ([], [("poison", 3, "its process died 3 times")])
        # Beside a block it is not alone
        assert put_off is hold_on or 3 <= len(deaths) <= 6
        assert max(map(here.here.crashes, range(5))) <= 2


async def test_rebalances_are_no_crashes(autojump_clock: MockClock) -> None:
    """Nor are members that leave, however often."""
    async with counted(2) as here:
        here.append(0, *"abc")
        async with here.consumer("stays", commit="none"):
            for number in range(3):
                async with here.consumer(f"comes {number}", commit="none") as consumer:
                    await until(lambda c=consumer: c.assignment)
                    assert consumer.crashes(*consumer.assignment[0]) == 0
        await trio.sleep(20)
        assert [here.crashes(0), here.crashes(1)] == [0, 0]


async def test_a_reader_without_a_group_has_none(autojump_clock: MockClock) -> None:
    """Nor a partition that is not read."""

    async def refused(consumer: Consumer, partition: int) -> str:
        with pytest.raises(InvalidConfig) as caught:
            consumer.crashes("orders", partition)
        return str(caught.value)

    async with counted() as here:
        async with (
            here.connected("alone") as cluster,
            Consumer(cluster, ["orders"], {"start": "earliest"}) as consumer,
        ):
            assert "needs a group" in await refused(consumer, 0)
        async with here.consumer("member") as consumer:
            assert "orders-7 is not read" in await refused(consumer, 7)
