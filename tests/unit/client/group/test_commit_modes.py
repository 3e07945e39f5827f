"""What each commit mode promises: what comes again after a crash or an error, what never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.unit.client.consumer.reading import take, take_all
from tests.unit.client.group.grouped import grouped, until

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.group.grouped import Grouped, Reading

COUNT = 10


async def stopping_at(here: Grouped, last: str, **options: object) -> Reading:
    """A program that never finishes with `last`, once it has that in hand."""

    async def work(record: object) -> None:
        if record.value == last.encode():  # type: ignore[attr-defined]
            await trio.sleep_forever()

    reading = here.begin("a", work=work, **options)
    await until(lambda: last in reading.values)
    await trio.sleep(1.0)
    return reading


async def what_comes_again(here: Grouped, **options: object) -> list[str]:
    reading = here.begin("b", **options)
    await until(lambda: reading.held)
    await trio.sleep(2.0)
    return reading.values


def append_all(here: Grouped) -> None:
    """In two batches."""
    here.append(0, *map(str, range(COUNT // 2)))
    here.append(0, *map(str, range(COUNT // 2, COUNT)))


@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        ("batch", [str(number) for number in range(6, COUNT)]),
        ("record", [str(number) for number in range(6, COUNT)]),
        ("none", [str(number) for number in range(COUNT)]),
        ("manual", [str(number) for number in range(COUNT)]),
        ("before", [str(number) for number in range(8, COUNT)]),
    ],
)
async def test_what_comes_again_after_a_crash(
    autojump_clock: MockClock, commit: str, expected: list[str]
) -> None:
    """A program dies while it works on one record of a batch of four. Whoever reads on gets the
    batch again, or what comes from that record on; where commits come first the rest of the batch
    is lost."""
    async with grouped(1) as here:
        append_all(here)
        first = await stopping_at(here, "6", commit=commit, max_poll_records=4)
        assert first.values == [str(number) for number in range(7)]
        await first.crash()
        assert await what_comes_again(here, commit=commit) == expected


@pytest.mark.parametrize("commit", ["batch", "record", "before", "manual", "none"])
async def test_a_clean_exit(autojump_clock: MockClock, commit: str) -> None:
    """Whoever breaks off and leaves has done what it was handed: that is committed on the way out
    if commits are automatic."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit=commit) as c:
            assert await take(c, 3) == ["0", "1", "2"]
        expected = {"batch": 3, "record": 3, "manual": None, "none": None}
        if commit != "before":
            assert here.committed(0) == expected[commit]
        else:
            assert (here.committed(0) or 0) >= 3


@pytest.mark.parametrize(("commit", "done"), [("batch", 2), ("record", 2), ("manual", None)])
async def test_an_exit_by_an_error(
    autojump_clock: MockClock, commit: str, done: int | None
) -> None:
    """What the program has failed over is not done; what it had finished before is."""
    async with grouped(1) as here:
        append_all(here)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", commit=commit) as c:
                await take(c, 3)
                raise ValueError("bad")
        assert here.committed(0) == done


async def test_a_batch_is_done_when_the_next_is_asked_for(autojump_clock: MockClock) -> None:
    """A whole batch counts as in hand until then."""
    async with grouped(1) as here:
        append_all(here)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", max_poll_records=4) as c:
                batches = c.batches()
                assert [(await anext(batches)).base_offset for _ in range(2)] == [0, 4]
                raise ValueError("bad")
        assert here.committed(0) == 4


async def test_record_by_record(autojump_clock: MockClock) -> None:
    """With "record" each one is committed before the next is handed out."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit="record") as c:
            for number in range(COUNT):
                await take(c, 1)
                assert here.committed(0) == (number or None)
        assert here.committed(0) == COUNT


async def test_before_means_before(autojump_clock: MockClock) -> None:
    """With "before" whatever is in hand is committed already (A11.1)."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", delivery="at_most_once", max_poll_records=2) as c:
            for number in range(COUNT):
                assert await take(c, 1) == [str(number)]
                assert (here.committed(0) or 0) > number
        async with here.consumer("b", commit="before") as c:
            assert await take_all(c, seconds=2) == []


async def test_before_with_nobody_to_commit_to(autojump_clock: MockClock) -> None:
    """As long as the coordinator is away nothing is handed out; nothing is lost by it."""
    async with grouped(1) as here, here.consumer("a", commit="before", max_poll_records=5) as c:
        await until(lambda: c.assignment)
        here.kill(2)
        append_all(here)
        assert await take_all(c, seconds=2) == []
        await here.give(1)
        assert await take(c, COUNT) == [str(number) for number in range(COUNT)]


async def test_in_the_background(autojump_clock: MockClock) -> None:
    """With "batch" commits follow within moments, and no commit waits for the program."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit_interval_ms=50) as c:
            await take(c, COUNT)
            with trio.move_on_after(1.0):
                await anext(c)
            assert here.committed(0) == COUNT


async def test_where_reading_starts(autojump_clock: MockClock) -> None:
    """`start` is for what nobody has committed; what is committed goes on there."""
    async with grouped(2) as here:
        append_all(here)
        here.append(1, "old")
        async with here.consumer("a", assign=[("orders", 0)]) as c:
            await take(c, 4)
        async with here.consumer("a", start="latest") as c:
            await until(lambda: len(c.assignment) == 2)
            assert await take(c, COUNT - 4) == [str(number) for number in range(4, COUNT)]
            assert await take_all(c) == []
            here.append(1, "new")
            assert await take(c, 1) == ["new"]


async def test_committed_beyond_the_log(autojump_clock: MockClock) -> None:
    """An offset whose records are gone is no place to go on: `auto_offset_reset` says where."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a") as c:
            await take(c, 2)
        here.world.topics["orders"].partitions[0].log_start_offset = 5
        async with here.consumer("a", auto_offset_reset="earliest") as c:
            assert await take(c, 5) == ["5", "6", "7", "8", "9"]


async def test_before_and_breaking_off(autojump_clock: MockClock) -> None:
    """Records one by one, then batches, then records again: what was committed with a batch and not
    handed out yet comes next."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit="before") as c:
            values = await take(c, 3)
            values += [value.decode() for value in (await anext(c.batches(max_records=2))).values]
            values += await take(c, 1)
            c.pause(("orders", 0))
            c.resume(("orders", 0))
            values += await take(c, COUNT - 6)
            assert values == [str(number) for number in range(COUNT)]


async def test_before_and_a_seek(autojump_clock: MockClock) -> None:
    """Where the program goes, there it goes on; the rest of the batch is dropped."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit="before") as c:
            assert await take(c, 2) == ["0", "1"]
            c.seek("orders", 0, offset=7)
            assert await take(c, 3) == ["7", "8", "9"]


async def test_before_and_an_error(autojump_clock: MockClock) -> None:
    """What the program has failed over does not come again; what it was not handed, does."""
    async with grouped(1) as here:
        append_all(here)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", commit="before") as c:
                await take(c, 3)
                raise ValueError("bad")
        async with here.consumer("b", commit="before") as c:
            assert await take(c, 1) == ["3"]


async def test_before_and_a_revocation(autojump_clock: MockClock) -> None:
    """In the midst of a batch: whoever gets the partition begins behind what was handed out."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *(f"{partition}{letter}" for letter in "abcdef"))
        release = trio.Event()

        async def work(record: object) -> None:
            if record.offset == 2:  # type: ignore[attr-defined]
                await release.wait()

        first = here.begin("a", commit="before", work=work)
        await until(lambda: len(first.records) == 3)
        second = here.begin("b", commit="before")
        await trio.sleep(2.0)
        release.set()
        await until(lambda: len(first.records) + len(second.records) == 12)
        await trio.sleep(1.0)
        assert second.values
        expected = sorted(f"{partition}{letter}" for partition in range(2) for letter in "abcdef")
        assert sorted(first.values + second.values) == expected


async def test_before_and_cancelled_waits(autojump_clock: MockClock) -> None:
    """A commit that was broken off may have happened; who leaves says how far it really came."""
    async with grouped(1) as here:
        append_all(here)
        values: list[str] = []
        for life in range(4):
            async with here.consumer(f"a{life}", commit="before", max_poll_records=4) as c:
                await until(lambda c=c: c.assignment)
                for step in range(60):
                    with trio.move_on_after(0.002 * (step % 9)):
                        values += await take(c, 1)
                    if len(values) > 2 * life + 2:
                        break
        assert values == [str(number) for number in range(len(values))]
        assert len(values) > 4


async def test_before_and_a_loss(autojump_clock: MockClock) -> None:
    """A member that was cut off in the midst of a batch hands out nothing more of it once others
    may have the partition."""
    async with grouped(1) as here:
        append_all(here)
        async with here.consumer("a", commit="before") as c:
            assert await take(c, 2) == ["0", "1"]
            here.world.network.isolate("a")
            other = here.begin("b", commit="before")
            here.append(0, "new")
            await until(lambda: other.values == ["new"])
            assert await take_all(c, seconds=1.0) == []
