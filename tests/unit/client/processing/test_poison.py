"""`process` with records that end their process: these are set aside, and nothing else (A12.5)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from anyio.lowlevel import checkpoint

import raftmq
from raftmq.metadata.commands import FeatureLevel
from tests.unit.client.group.grouped import SESSION_SECONDS, until
from tests.unit.client.processing.mill import Mill, mill, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.consumer.record import ConsumerRecord

FOUR = raftmq.RetryPolicy(attempts=4, backoff=raftmq.Exponential(1, factor=1), in_place=True)
PATIENT = {"seconds": 600.0}


async def pass_by(record: ConsumerRecord) -> None:
    await checkpoint()


def deadly(*values: str) -> Any:
    return lambda record: record.text() in values


@asynccontextmanager
async def living(here: Mill, count: int, handler: Any, kills: Any, **options: Any) -> Any:
    """So many workers, each of which is started again when it has died."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            name = f"w{number}."

            async def live(name: str = name) -> None:
                await here.live_again(handler, kills, name, **{"retry": FOUR, **options})

            nursery.start_soon(live)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def poisoned(partitions: int = 1) -> AsyncIterator[Mill]:
    async with mill(partitions, level=FeatureLevel.SCHEDULED) as here:
        yield here


async def until_committed(here: Mill, *offsets: int) -> None:
    found = here.here.committed
    await until(lambda: [found(n) for n in range(len(offsets))] == [*offsets], **PATIENT)


async def test_a_record_that_kills_is_set_aside(autojump_clock: MockClock) -> None:
    """After as many deaths as the policy has attempts, with how many these were."""
    async with poisoned() as here:
        await here.send("poison", *numbers(20))
        async with living(here, 1, pass_by, deadly("poison"), concurrency=4):
            await until_committed(here, 21)
        assert here.deaths == ["poison"] * 4
        assert here.letters() == [("poison", 4, "its process died 4 times")]
        assert set(here.handled) == set(numbers(20))


async def test_behind_others_they_are_not_blamed(autojump_clock: MockClock) -> None:
    """What is in hand beside it, and before it, is handled alone, and done."""
    async with poisoned() as here:
        await here.send(*numbers(10), "poison", *numbers(10, 10))
        async with living(here, 1, pass_by, deadly("poison"), concurrency=8):
            await until_committed(here, 21)
        assert 4 <= len(here.deaths) <= 6
        assert here.letters() == [("poison", 4, "its process died 4 times")]
        assert set(here.handled) == set(numbers(20))


async def test_other_partitions_are_not_blamed(autojump_clock: MockClock) -> None:
    """A worker that dies at once, of one of three partitions, each time before it has handled
    anything of the others."""
    async with poisoned(3) as here:
        for partition in range(3):
            first = "poison" if partition == 1 else f"innocent {partition}"
            await here.send(first, *numbers(5, 5 * partition), partition=partition)

        async def slow(record: ConsumerRecord) -> None:
            await trio.sleep(0.5)

        async with living(here, 1, slow, deadly("poison"), concurrency=8):
            await until_committed(here, 6, 6, 6)
        assert [value for value, *_ in here.letters()] == ["poison"]
        assert len(here.deaths) == 4


async def test_three_workers_share_it(autojump_clock: MockClock) -> None:
    """It goes from one to the next; two that kill, in different partitions."""
    async with poisoned(4) as here:
        for partition in range(4):
            values = numbers(10, 10 * partition)
            values[3:3] = [f"poison {partition}"] if partition < 2 else []
            await here.send(*values, partition=partition)
        async with living(here, 3, pass_by, deadly("poison 0", "poison 1"), concurrency=2):
            await until_committed(here, 11, 11, 10, 10)
        assert {value for value, *_ in here.letters()} == {"poison 0", "poison 1"}
        assert {error for *_, error in here.letters()} == {"its process died 4 times"}
        assert set(here.handled) == set(numbers(40))


async def test_nothing_else_is_handled_beside_it(autojump_clock: MockClock) -> None:
    """Of any partition; then all goes on as before."""
    at_work, beside, most = set[tuple[int, int]](), set[tuple[int, int]](), 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal most
        at_work.add((record.partition, record.offset))
        most = max(most, len(at_work))
        if len(at_work) > 1 and any(partition == 0 for partition, _ in at_work):
            beside.update(at_work)
        try:
            await trio.sleep(0.2)
        finally:
            at_work.remove((record.partition, record.offset))

    async with poisoned(2) as here:
        await here.send("poison", *numbers(10))
        await here.send(*numbers(40, 10), partition=1)
        async with living(here, 1, handle, deadly("poison"), concurrency=4):
            await until(lambda: len(here.deaths) == 2, **PATIENT)
            await until(lambda: here.here.crashes(0) == 2, **PATIENT)
            beside.clear()
            await until_committed(here, 11, 40)
            assert not beside
            most = 0
            await here.send(*numbers(10, 50))
            await until_committed(here, 21, 40)
            assert most == 4


async def test_what_fails_and_then_kills(autojump_clock: MockClock) -> None:
    """Its first attempt raises, the second one ends the process: alone, both times."""
    tried: list[str] = []

    def kills(record: ConsumerRecord) -> bool:
        tried.append(record.text())
        return record.text() == "poison" and tried.count("poison") % 2 == 0

    async def handle(record: ConsumerRecord) -> None:
        if record.text() == "poison":
            raise MemoryError

    async with poisoned() as here:
        await here.send("poison", *numbers(5))
        async with living(here, 1, handle, kills, concurrency=2):
            await until_committed(here, 6)
        assert [(value, error) for value, _, error in here.letters()] == [
            ("poison", "its process died 4 times")
        ]


async def test_one_that_waits_holds_up_no_others(autojump_clock: MockClock) -> None:
    """Its workers died by no fault of it; then it raises, and its next attempt is far off."""
    patient = raftmq.RetryPolicy(attempts=5, backoff=raftmq.Exponential(1_000), in_place=True)

    async def handle(record: ConsumerRecord) -> None:
        if record.text() == "000":
            raise ValueError("not now")

    async with poisoned() as here:
        await here.send(*numbers(10))
        kills = iter([True, True])
        async with living(here, 1, handle, lambda _: next(kills, False), retry=patient):
            await until(lambda: len(here.handled) == 9, **PATIENT)
            assert here.here.committed(0) == 0
            assert here.here.crashes(0) == 2  # also once it was noted, and that was taken back
        assert here.letters() == []


@pytest.mark.parametrize("attempts", [3, 4, 6])
async def test_what_kills_behind_one_that_fails(autojump_clock: MockClock, attempts: int) -> None:
    """The one before raises, and waits: one crash counts for it at the most, and then what is
    behind it waits, too, until it is done.
    """
    policy = raftmq.RetryPolicy(
        attempts=attempts, backoff=raftmq.Exponential(20, factor=1), in_place=True
    )

    async def handle(record: ConsumerRecord) -> None:
        if record.text() == "fails":
            raise ValueError("no")

    async with poisoned() as here:
        await here.send("fails", "poison", *numbers(5))
        async with living(here, 1, handle, deadly("poison"), retry=policy, concurrency=2):
            await until(lambda: here.here.committed(0) == 7, seconds=5_000)
        assert here.letters() == [
            ("fails", attempts, "ValueError: no"),
            ("poison", attempts, f"its process died {attempts} times"),
        ]
        assert len(here.deaths) == 2 + (attempts > 3) + attempts
        assert set(here.handled) == set(numbers(5))


async def test_accidents_set_nothing_aside(autojump_clock: MockClock) -> None:
    """Workers end by no fault of any record; then one handles the first alone."""
    async with poisoned() as here:
        await here.send(*numbers(6))
        kills = iter([True, True, True])
        async with living(here, 1, pass_by, lambda _: next(kills, False)):
            await until_committed(here, 6)
        assert here.letters() == []
        assert here.here.crashes(0) == 0


@pytest.mark.parametrize("attempts", [1, 2])
async def test_two_deaths_are_never_enough(autojump_clock: MockClock, attempts: int) -> None:
    """Any record in hand may have been it."""
    policy = raftmq.RetryPolicy(attempts=attempts, in_place=True)
    async with poisoned() as here:
        await here.send(*numbers(3), "poison")
        async with living(here, 1, pass_by, deadly("poison"), retry=policy, concurrency=4):
            await until_committed(here, 4)
        assert here.letters() == [("poison", 3, "its process died 3 times")]
        assert set(here.handled) == set(numbers(3))


async def test_without_dead_letters_nothing_is_set_aside(autojump_clock: MockClock) -> None:
    """Nor handled alone: the program has not asked for it."""
    async with poisoned() as here:
        await here.send("poison", *numbers(5))
        async with living(here, 1, pass_by, deadly("poison"), retry=None, concurrency=2):
            await until(lambda: len(here.deaths) == 5, **PATIENT)
        assert here.letters() == []
        assert here.here.crashes(0) == 2


async def test_a_worker_that_is_stopped_is_not_counted(autojump_clock: MockClock) -> None:
    """Though it is cancelled while it handles a record alone: its note is taken back."""
    async with poisoned() as here:
        await here.send(*numbers(4))
        kills = iter([True, True])
        async with living(here, 1, pass_by, lambda _: next(kills, False)):
            await until(lambda: len(here.deaths) == 2, **PATIENT)
        await until(lambda: here.here.crashes(0) == 2, **PATIENT)

        async def hang(record: ConsumerRecord) -> None:
            await trio.sleep_forever()

        for number in range(3):
            begun = len(here.begun)
            async with here.running(hang, f"stopped {number}", retry=FOUR):
                await until(lambda begun=begun: len(here.begun) > begun, **PATIENT)
            await trio.sleep(2 * SESSION_SECONDS)
        assert here.here.crashes(0) == 2


async def test_a_cut_off_worker_counts_once(autojump_clock: MockClock) -> None:
    """Its session ends, and it comes back: of what it handles alone that counts as one death."""
    async with poisoned() as here:
        await here.send(*numbers(4))
        kills = iter([True, True])
        async with living(here, 1, pass_by, lambda _: next(kills, False)):
            await until(lambda: len(here.deaths) == 2, **PATIENT)
        await until(lambda: here.here.crashes(0) == 2, **PATIENT)
        release = trio.Event()
        here.begun.clear()

        async def wait(record: ConsumerRecord) -> None:
            await release.wait()

        async with here.running(wait, "cut off", retry=FOUR):
            await until(lambda: here.begun.count("000") == 1, **PATIENT)
            here.here.world.network.isolate("cut off")
            await until(lambda: here.here.crashes(0) == 3, **PATIENT)
            here.here.world.network.rejoin("cut off")
            await trio.sleep(3 * SESSION_SECONDS)
            assert (here.begun, here.here.crashes(0)) == (["000"], 3)
            release.set()
            await until_committed(here, 4)
        assert here.letters() == []


async def test_static_workers(autojump_clock: MockClock) -> None:
    """One that is back within its session may have died: nobody has told."""
    async with poisoned() as here:
        await here.send("poison", *numbers(5))
        options = {"group_instance_id": "one", "concurrency": 2}
        async with living(here, 1, pass_by, deadly("poison"), **options):
            await until_committed(here, 6)
        assert here.deaths == ["poison"] * 4
        assert [value for value, *_ in here.letters()] == ["poison"]


async def test_the_coordinator_moves(autojump_clock: MockClock) -> None:
    """After each death, before or after it was counted: no death counts twice."""
    async with poisoned() as here:
        await here.send("poison", *numbers(5))

        async def move() -> None:
            for number in range(100):
                seen = len(here.deaths)
                await until(lambda seen=seen: len(here.deaths) > seen, **PATIENT)
                await trio.sleep(SESSION_SECONDS * (0.9 + 0.1 * (number % 3)))
                await here.here.give(1 + number % 3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            async with living(here, 2, pass_by, deadly("poison"), concurrency=2):
                await until_committed(here, 6)
            nursery.cancel_scope.cancel()
        assert here.deaths == ["poison"] * 4
        assert [value for value, *_ in here.letters()] == ["poison"]
