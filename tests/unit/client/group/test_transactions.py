"""commit="transaction": how far a member is done, for the transaction of a producer (A11.3)."""

from __future__ import annotations

import copy
import gc
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.group.offsets import COMMIT_SECONDS_MAX
from raftmq.client.transactions.offsets import member_behind
from raftmq.errors import IllegalGeneration, InvalidConfig, InvalidRequest, InvalidTransaction
from raftmq.wire.batch.control import ControlType
from raftmq.wire.messages.group_offsets import OffsetCommit
from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import GROUP, REBALANCE_SECONDS, grouped, until
from tests.unit.client.transactions_in_logs import in_transaction, marker

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.group_commits import GroupProgress
    from raftmq.wire.messages.transactions import GroupOffsets

NINE = tuple(map(str, range(9)))
EXACTLY_ONCE = {"delivery": "exactly_once"}
SOON = 5.0


def progress(c: Consumer, *works: Any) -> GroupProgress:
    """Of these; without any, of all that was handed out."""
    found = member_behind(c).transaction_progress()
    for work in works:
        found.add(work)
    if not works:
        found.add_all()
    return found


def told(offsets: GroupOffsets) -> dict[int, int]:
    """By partition, of the only topic."""
    return {one.partition: one.offset for one in offsets.offsets}


async def test_nothing_is_committed_by_itself(autojump_clock: MockClock) -> None:
    """Neither along the way, nor at a rebalance, nor as it leaves: others begin where it did."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            await take(c, 15)
            other = here.begin("b", commit="none")
            with trio.move_on_after(SOON):
                await anext(c)
            await until(lambda: other.held)
        assert [here.committed(partition) for partition in range(2)] == [None, None]
        assert not here.asked(OffsetCommit)


async def test_commit_outside_of_a_transaction(autojump_clock: MockClock) -> None:
    """Refused, with the way out; nothing is asked of the coordinator."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            record = await anext(c)
            for work in (None, record):
                with pytest.raises(InvalidTransaction, match=r"call tx.commit_offsets\(") as caught:
                    await c.commit(work)
                assert caught.value.definite
        assert not here.asked(OffsetCommit)


async def test_as_the_commit_carries_it(autojump_clock: MockClock) -> None:
    """The end of a batch, who says so, and in which generation."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE, group_instance_id="one") as c:
            batch = await anext(c.batches(max_records=4))
            found = await progress(c, batch).take()
            assert (found.group, found.instance_id) == (GROUP, "one")
            assert (found.generation, found.member_id) == (c.generation, c.member_id)
            assert told(found) == {0: 4}
            assert found.offsets[0].topic_id == here.world.topics["orders"].topic_id
            assert found.offsets[0].expected is None


async def test_from_what_was_handed_out_to_its_member(autojump_clock: MockClock) -> None:
    """A batch or a record is enough to know whose it is; a copy is not."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            batch = await anext(c.batches(max_records=2))
            record = await anext(c)
            assert member_behind(batch) is member_behind(record) is member_behind(c)
            with pytest.raises(InvalidRequest, match="copied since"):
                member_behind(copy.copy(record))
            with pytest.raises(TypeError, match="as it was handed out"):
                member_behind(17)  # type: ignore[arg-type]
        async with (
            here.connected("b") as cluster,
            Consumer(cluster, ("orders",), {"start": "earliest"}) as alone,
        ):
            with pytest.raises(InvalidConfig, match="commit_offsets: needs a group"):
                member_behind(alone)
            with pytest.raises(InvalidRequest, match="not handed out by a member"):
                member_behind(await anext(alone))


async def test_what_outlives_its_consumer(autojump_clock: MockClock) -> None:
    """A record that a program has kept does not keep its consumer, and commits nothing."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            record = await anext(c)
            found = progress(c, record)
        with pytest.raises(IllegalGeneration):
            await found.take()
        del c, found
        gc.collect()
        with pytest.raises(IllegalGeneration, match="is closed"):
            member_behind(record)


@pytest.mark.parametrize("commit", ["batch", "manual"])
async def test_a_consumer_that_commits_otherwise(commit: str, autojump_clock: MockClock) -> None:
    """By transactions or by itself, never both."""
    async with grouped(1) as here, here.consumer("a", commit=commit) as c:
        with pytest.raises(InvalidTransaction, match=f'commit="{commit}": .*exactly_once'):
            member_behind(c).transaction_progress()


async def test_all_that_was_handed_out(autojump_clock: MockClock) -> None:
    """Of every partition, also what is in hand; once it is committed it is no news any more."""
    async with grouped(3) as here:
        for partition in range(2):
            here.append(partition, "a", "b")
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            await take(c, 4)
            found = progress(c)
            assert told(await found.take()) == {0: 2, 1: 2, 2: 0}
            found.on_committed()
            assert not progress(c)
            here.append(2, "c")
            await take(c, 1)
            assert told(await progress(c).take()) == {2: 1}


async def test_what_is_passed_over_counts(autojump_clock: MockClock) -> None:
    """A group at the end of a partition has no lag: markers and aborted records are behind it."""
    async with grouped(1) as here:
        log = here.world.topics["orders"].partitions[0]
        for data in (in_transaction(7, "a", "b"), marker(7, ControlType.COMMIT)):
            log.place(data)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            found = progress(c, await anext(c.batches()))
            assert told(await found.take()) == {0: 3}
            for data in (in_transaction(7, "x"), marker(7, ControlType.ABORT)):
                log.place(data)
            await until(lambda: c.position("orders", 0) == 5)
            assert told(await found.take()) == {0: 5}


async def test_the_last_one_counts(autojump_clock: MockClock) -> None:
    """Several in one transaction: of a partition the one that was added last."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            batches = c.batches(max_records=3)
            first, second = await anext(batches), await anext(batches)
            assert told(await progress(c, first, second).take()) == {0: 6}


async def test_a_partition_that_was_anothers_meanwhile(autojump_clock: MockClock) -> None:
    """Its records come again elsewhere: a transaction that counts them must not commit."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            found = progress(c, await anext(c.batches(max_records=3)))
            here.world.network.isolate("a")
            other = here.begin("b", **EXACTLY_ONCE)
            await until(lambda: other.held)
            here.world.network.heal("a")
            with pytest.raises(IllegalGeneration):
                await found.take()


async def test_a_generation_later(autojump_clock: MockClock) -> None:
    """Another member joins, and this one keeps a partition: what was refused under the generation
    before is valid under the next one."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE, max_poll_records=1) as c:
            works: dict[int, Any] = {}
            batches = c.batches(max_records=1)
            while len(works) < 2:
                batch = await anext(batches)
                works[batch.partition] = batch
            before = {number: progress(c, work) for number, work in works.items()}
            generation = (await before[0].take()).generation
            other = here.begin("b", **EXACTLY_ONCE)
            with trio.move_on_after(REBALANCE_SECONDS):
                async for _ in batches:
                    await trio.sleep(0.1)
            await until(lambda: other.held)
            [kept] = [number for number in works if ("orders", number) in c.assignment]
            found = await before[kept].take(newer_than=generation)
            assert found.generation == c.generation > generation
            with pytest.raises(IllegalGeneration):
                await before[1 - kept].take(newer_than=generation)


async def test_between_join_and_sync(autojump_clock: MockClock) -> None:
    """It still has its partition, and was told of a generation that is not saved: the number may
    be used again, for another one (A11.3)."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE) as c:
            done = progress(c, await anext(c.batches(max_records=1)))
            generation = (await done.take()).generation
            here.delay_quorum(2.0)
            here.begin("b", **EXACTLY_ONCE)
            await until(lambda: c.generation > generation)
            assert here.saved().generation == generation
            assert (await done.take()).generation == generation


async def test_partitions_of_ones_own_choice(autojump_clock: MockClock) -> None:
    """With `assign` there is no member, and no generation to wait for."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", assign=[("orders", 0)], **EXACTLY_ONCE) as c:
            found = await progress(c, await anext(c.batches(max_records=3))).take(newer_than=-1)
            assert (found.generation, found.member_id) == (-1, "")
            assert told(found) == {0: 3}


@pytest.mark.parametrize("seconds", [3.0, 50.0])
async def test_the_beginning_is_committed_first(
    seconds: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of "latest" that arrives late would undo the transaction: it waits until a commit of
    it was answered, after which an earlier attempt changes nothing."""
    committed, hung = OffsetRequests._committed, list[float]()

    async def slowly(self: OffsetRequests, *given: Any) -> Any:
        hung.append(trio.current_time())
        await trio.sleep(seconds if len(hung) == 1 else 0.0)
        return await committed(self, *given)

    monkeypatch.setattr(OffsetRequests, "_committed", slowly)
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", **EXACTLY_ONCE, start="latest") as c:
            await until(lambda: c.assignment and c.position("orders", 0) == 9)
            here.append(0, "x")
            found = progress(c, await anext(c.batches()))
            assert told(await found.take()) == {0: 10}
            assert trio.current_time() >= min(hung[0] + seconds, hung[-1])
            numbers = [body.number for body in here.asked(OffsetCommit)]
            assert numbers == ([1] if seconds < COMMIT_SECONDS_MAX else [1, 2])
            await trio.sleep(SOON)
            assert len(here.asked(OffsetCommit)) == len(numbers)
