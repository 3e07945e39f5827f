"""`commit`, `committed`, `processing`, and partitions that the program itself chooses."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.consumer.consumer import Consumer
from raftmq.errors import (
    IllegalGeneration,
    InvalidConfig,
    InvalidRequest,
    RaftmqError,
    UnknownMemberId,
)
from tests.unit.client.consumer.reading import take, take_all
from tests.unit.client.group.grouped import grouped, keys, until

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.record import ConsumerRecord

NINE = tuple(map(str, range(9)))


async def test_commit_a_record(autojump_clock: MockClock) -> None:
    """Everything up to it is done; it is in the quorum when the call returns (A7.4)."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            for expected in (1, 2, 3):
                await c.commit(await anext(c))
                assert here.committed(0) == expected
                assert await c.committed("orders", 0) == expected
        assert here.committed(0) == 3


async def test_commit_a_batch(autojump_clock: MockClock) -> None:
    """The same for a batch: its end (A7.4)."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            async for batch in c.batches(max_records=4):
                await c.commit(batch)
                assert here.committed(0) == batch.end_offset
                if batch.end_offset == len(NINE):
                    break


async def test_commit_everything(autojump_clock: MockClock) -> None:
    """Without an argument: all that was handed out, also what is in hand, of every partition."""
    async with grouped(3) as here:
        for partition in range(3):
            here.append(partition, "a", "b")
        async with here.consumer("a", commit="manual", max_poll_records=1) as c:
            await take(c, 4)
            positions = [c.position("orders", partition) or 0 for partition in range(3)]
            await c.commit()
            assert [here.committed(partition) or 0 for partition in range(3)] == positions
            assert sum(positions) == 4


async def test_commit_goes_back_by_hand(autojump_clock: MockClock) -> None:
    """Who says that less is done is believed."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            first = await anext(c)
            await take(c, 4)
            await c.commit()
            await c.commit(first)
            assert here.committed(0) == 1
        async with here.consumer("b", commit="manual") as c:
            assert (await anext(c)).offset == 1


async def test_by_hand_and_by_itself(autojump_clock: MockClock) -> None:
    """What the program has said to be done stays done, though it works on more of that batch."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit_interval_ms=1, max_poll_records=4) as c:
            await take(c, 5)
            record = await anext(c)
            await c.commit(record)
            await trio.sleep(1.0)
            assert here.committed(0) == 6
            for expected in (7, 8):
                await c.commit(await anext(c))
                await trio.sleep(0.1)
                assert here.committed(0) == expected


@pytest.mark.parametrize("is_all", [False, True])
async def test_by_hand_and_broken_off(autojump_clock: MockClock, *, is_all: bool) -> None:
    """Nobody knows whether that happened: what is committed next is not less."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit_interval_ms=1, max_poll_records=4) as c:
            await take(c, 5)
            record = await anext(c)
            with trio.move_on_after(0.003):
                await c.commit(None if is_all else record)
            await trio.sleep(1.0)
            assert here.committed(0) == 6


async def test_after_a_seek_back(autojump_clock: MockClock) -> None:
    """Where the program has gone back to, there the group goes on."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a") as c:
            await take(c, 5)
            await trio.sleep(1.0)
            c.seek("orders", 0, offset=2)
        assert here.committed(0) == 2


@pytest.mark.parametrize("offset", [0, 3, 9])
async def test_commit_right_after_a_seek(autojump_clock: MockClock, offset: int) -> None:
    """Nothing was fetched there yet, and that is where the group goes on all the same."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            await take(c, 5)
            c.seek("orders", 0, offset=offset)
            await c.commit()
            assert here.committed(0) == offset


async def test_nothing_is_committed_yet(autojump_clock: MockClock) -> None:
    """`committed` says so."""
    async with grouped(1) as here, here.consumer("a") as c:
        await until(lambda: c.assignment)
        assert await c.committed("orders", 0) is None
        await c.commit()
        assert (here.committed(0) or 0) == 0


async def test_what_was_revoked_is_not_committed(autojump_clock: MockClock) -> None:
    """A record in hand whose partition went to somebody else: its commit is refused, and changes
    nothing; that of another partition is accepted."""
    async with grouped(2) as here:
        here.append(0, "a0", "a1")
        here.append(1, "b0", "b1")
        async with here.consumer("a", commit="manual") as c:
            records = {record.partition: record for record in [await anext(c) for _ in range(3)]}
            assert set(records) == {0, 1}
            other = here.begin("b", commit="none")
            with trio.move_on_after(2.0):
                await anext(c)
                await anext(c)
            await until(lambda: other.held and len(c.assignment) == 1)
            [(_, mine)], [(_, theirs)] = c.assignment, list(other.held)
            with pytest.raises(IllegalGeneration, match="nothing was committed"):
                await c.commit(records[theirs])
            await c.commit(records[mine])
            assert here.committed(theirs) is None
            assert here.committed(mine) is not None


async def test_what_another_consumer_has_handed_out(autojump_clock: MockClock) -> None:
    """A program that mixes two consumers up is told so, and loses nothing (A7.4)."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        await here.give(1, "others")
        async with (
            here.consumer("a", commit="manual") as one,
            here.consumer("b", commit="manual", group="others") as other,
        ):
            record = await anext(other)
            with pytest.raises(InvalidRequest, match="handed out by another consumer: give it to"):
                await one.commit(record)
            await other.commit(record)


async def test_who_was_put_out_commits_nothing(autojump_clock: MockClock) -> None:
    """A member that was silent for longer than its session, and has not noticed yet."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            records = [await anext(c) for _ in range(3)]
            here.world.network.isolate("a")
            other = here.begin("b", commit="manual")
            await until(lambda: len(other.records) == 9)
            here.world.network.heal()
            with pytest.raises((IllegalGeneration, UnknownMemberId)):
                await c.commit(records[-1])
            assert here.committed(0) is None


async def test_partitions_of_ones_own_choice(autojump_clock: MockClock) -> None:
    """With `assign` nobody joins: the group's offsets are used, and nothing else of it (A7.6)."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", assign=[("orders", 1)]) as c:
            assert len(await take(c, 9)) == 9
            assert (c.generation, c.member_id) == (-1, "")
        assert [here.committed(partition) for partition in range(2)] == [None, 9]
        async with here.consumer("b", assign=[("orders", 0), ("orders", 1)]) as c:
            assert {record.partition for record in [await anext(c) for _ in range(9)]} == {0}
            assert await take_all(c) == []


async def test_own_choice_beside_members(autojump_clock: MockClock) -> None:
    """As long as the group has members, nobody else commits for it."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        member = here.begin("a")
        await until(lambda: len(member.records) == 9)
        async with here.consumer("b", assign=[("orders", 0)], commit="manual") as c:
            c.seek("orders", 0, offset=0)
            record = await anext(c)
            with pytest.raises((UnknownMemberId, IllegalGeneration)):
                await c.commit(record)
        await member.leave()
        assert here.committed(0) == 9


async def test_without_a_group(autojump_clock: MockClock) -> None:
    """Everything that belongs to groups names what is missing."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        options = {"start": "earliest"}
        async with here.connected("a") as cluster, Consumer(cluster, ("orders",), options) as c:
            record = await anext(c)
            for act in (c.commit, lambda: c.committed("orders", 0)):
                with pytest.raises(InvalidConfig, match="needs a group"):
                    await act()
            with pytest.raises(InvalidConfig, match="needs a group"):
                c.processing(record)


async def test_work_that_is_held(autojump_clock: MockClock) -> None:
    """In a `processing` block a batch is not done, though more is asked for; after it, it is."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", max_poll_records=3) as c:
            batches = c.batches()
            held = await anext(batches)
            with c.processing(held):
                await anext(batches)
                await anext(batches)
                await trio.sleep(1.0)
                assert (here.committed(0) or 0) == 0
            await trio.sleep(1.0)
            assert here.committed(0) == 6
        assert here.committed(0) == 9


async def test_a_held_partition_stays(autojump_clock: MockClock) -> None:
    """It is not given away before the block ends; the group waits for it."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", max_poll_records=9) as c:
            batches = c.batches()
            both = [await anext(batches) for _ in range(2)]
            with c.processing(both[0]), c.processing(both[1]):
                other = here.begin("b")
                with trio.move_on_after(3.0):
                    await anext(batches)
                assert not other.held
                assert set(c.assignment) == keys(0, 1)
            await until(lambda: other.held)
            await trio.sleep(1.0)
            assert other.values == []
            [(_, theirs)] = other.held
            assert here.committed(theirs) == 9


async def test_processing_stops_the_clock(autojump_clock: MockClock) -> None:
    """Longer than `max_poll_interval_ms`: the member stays, as long as it says that it works."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", max_poll_interval_ms=2000, max_poll_records=3) as c:
            batches = c.batches()
            with c.processing(await anext(batches)):
                await trio.sleep(30.0)
                assert c.generation == 1
            await anext(batches)
            assert set(c.assignment) == keys(0)


async def test_a_block_that_fails(autojump_clock: MockClock) -> None:
    """Its error goes its way, and what it held is free again."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a") as c:
                batch = await anext(c.batches())
                with c.processing(batch):
                    raise ValueError("bad")
        assert (here.committed(0) or 0) == 0


@pytest.mark.parametrize("mode", ["batch", "record"])
async def test_several_tasks_work_on_records(autojump_clock: MockClock, mode: str) -> None:
    """As docs/SDK.md has it: they end out of order, and what is committed by itself never goes
    beyond the first record that is still in work (A7.4)."""
    beyond: list[tuple[int, int]] = []
    in_work: set[int] = set()
    done: list[int] = []

    async with grouped(1) as here:
        here.append(0, *NINE)

        async def work(
            c: Consumer, record: ConsumerRecord, limit: trio.CapacityLimiter, *, task_status: Any
        ) -> None:
            async with limit:
                with c.processing(record):
                    task_status.started()
                    in_work.add(record.offset)
                    await trio.sleep(1.0 if record.offset % 3 == 0 else 0.3)
                    if (committed := here.committed(0) or 0) > min(in_work):
                        beyond.append((committed, min(in_work)))
                    in_work.remove(record.offset)
                done.append(record.offset)

        async def loop(c: Consumer, tasks: trio.Nursery) -> None:
            limit = trio.CapacityLimiter(3)
            async for record in c:
                await tasks.start(work, c, record, limit)

        async with here.consumer("a", commit=mode) as c, trio.open_nursery() as tasks:
            tasks.start_soon(loop, c, tasks)
            await until(lambda: len(done) == len(NINE))
            if mode == "batch":  # the other one commits when a record is asked for, or at the end
                await until(lambda: here.committed(0) == len(NINE), seconds=1.0)
            tasks.cancel_scope.cancel()
        assert here.committed(0) == len(NINE)
    assert done != sorted(done)
    assert not beyond


async def test_one_of_several_workers_fails(autojump_clock: MockClock) -> None:
    """Batches are worked on side by side; one fails, and with it the program. What others have
    finished before it is committed, and it comes again."""
    async with grouped(1) as here:
        here.append(0, *NINE)

        async def work(c: Consumer, batch: ConsumedBatch) -> None:
            with c.processing(batch):
                await trio.sleep(1.0 + batch.base_offset / 10)
                if batch.base_offset == 3:
                    raise ValueError("bad")

        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="bad")):
            async with here.consumer("a", max_poll_records=3) as c, trio.open_nursery() as nursery:
                async for batch in c.batches():
                    nursery.start_soon(work, c, batch)
        assert here.committed(0) == 3


async def test_a_block_that_fails_and_is_got_over(autojump_clock: MockClock) -> None:
    """Whoever catches the error and asks for more is done with it."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", max_poll_records=3) as c:
            batches = c.batches()
            batch = await anext(batches)
            with suppress(ValueError), c.processing(batch):
                raise ValueError("bad")
            await anext(batches)
            await trio.sleep(1.0)
            assert here.committed(0) == 3


async def test_who_does_not_ask_any_more(autojump_clock: MockClock) -> None:
    """A program that hangs longer than `max_poll_interval_ms` loses its partitions to others; once
    it asks again it is a member again, and gets what is there for it."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, "one")
        release = trio.Event()

        async def work(_: object) -> None:
            await release.wait()

        slow = here.begin("a", work=work, max_poll_interval_ms=3000)
        await until(lambda: len(slow.records) == 1)
        quick = here.begin("b")
        await until(lambda: quick.held == keys(0, 1))
        assert slow.lost
        await until(lambda: len(quick.records) == 2)
        release.set()
        await until(lambda: slow.held and len(quick.held) == 1)
        for partition in range(2):
            here.append(partition, "two")
        await until(lambda: "two" in slow.values and quick.values[2:] == ["two"])
        assert slow.error is None


async def test_a_commit_while_nobody_coordinates(autojump_clock: MockClock) -> None:
    """It is repeated until somebody does."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            record = await anext(c)
            here.kill(2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(c.commit, record)
                await trio.sleep(1.0)
                await here.give(3)
            assert here.committed(0) == 1


async def test_a_commit_that_is_cancelled(autojump_clock: MockClock) -> None:
    """It may have happened; the next one goes through all the same."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            first, second = await anext(c), await anext(c)
            with trio.move_on_after(0.001):
                await c.commit(first)
            await c.commit(second)
            assert here.committed(0) == 2


async def test_a_commit_after_the_end(autojump_clock: MockClock) -> None:
    """Refused, like everything else of a consumer that is closed."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            record = await anext(c)
        with pytest.raises(RaftmqError, match="closed"):
            await c.commit(record)


async def test_no_answer_and_another_beginning(autojump_clock: MockClock) -> None:
    """Nobody knows whether the last commit happened when the beginning of another partition is
    found: that of this one is not committed any more."""
    async with grouped(2) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", start="latest") as c:
            await until(lambda: here.committed(0) == 9)
            here.append(0, "x", "y")
            first, second = await anext(c), await anext(c)
            await c.commit(first)
            here.world.network.isolate("a")
            with trio.move_on_after(1.0):
                await c.commit(second)
            here.world.network.heal()
            await trio.sleep(2.0)
            c.seek("orders", 1, timestamp=0)
            await trio.sleep(2.0)
            assert here.committed(0) in (10, 11)
