"""What was handed out before a partition was somebody else's, or its topic another one: it says
nothing any more of how far the group is.
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio

from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.client.group import offsets
from raftmq.errors import IllegalGeneration, InvalidRequest, RaftmqError, UnknownMemberId
from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import grouped, until

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.batch import ConsumedBatch, Work
    from raftmq.client.consumer.consumer import Consumer
    from tests.unit.client.group.grouped import Grouped

NINE = tuple(map(str, range(9)))
POLL_MS = 3000


async def others_read_on(here: Grouped, c: Consumer) -> None:
    """Its program is too slow; another member reads to the end and leaves; it is back in."""
    await until(lambda: c.generation == -1)
    other = here.begin("b", commit="batch")
    await until(lambda: here.committed(0) == len(NINE))
    await other.leave()
    with trio.move_on_after(5.0):
        await anext(c.batches())
    await until(lambda: c.position("orders", 0) == len(NINE))
    assert here.committed(0) == len(NINE)


@pytest.mark.parametrize("is_record", [False, True])
async def test_committed_by_hand(autojump_clock: MockClock, *, is_record: bool) -> None:
    """A program commits what it got before another member read on from there: refused. Within one
    ownership it may go back as far as it likes."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", max_poll_interval_ms=POLL_MS) as c:
            batch = await anext(c.batches(max_records=3))
            old: Work = list(batch)[1] if is_record else batch
            await others_read_on(here, c)
            with pytest.raises(IllegalGeneration, match="nothing was committed"):
                await c.commit(old)
            assert here.committed(0) == 9
            here.append(0, "x", "y")
            first, second = await anext(c), await anext(c)
            await c.commit(second)
            await c.commit(first)
            assert here.committed(0) == 10


async def test_committed_while_another_commit_hangs(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit waits for its turn; when it comes, the partition was others' meanwhile."""
    committed, hung = OffsetRequests._committed, list[float]()

    async def slowly(self: OffsetRequests, *given: Any) -> Any:
        if not hung:
            hung.append(trio.current_time())
            await trio.sleep(20.0)
        return await committed(self, *given)

    monkeypatch.setattr(OffsetRequests, "_committed", slowly)
    refused: list[RaftmqError] = []

    async def commit(c: Consumer, batch: ConsumedBatch) -> None:
        try:
            await c.commit(batch)
        except RaftmqError as error:
            refused.append(error)

    async with grouped(1) as here, trio.open_nursery() as nursery:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", max_poll_interval_ms=POLL_MS) as c:
            batches = c.batches(max_records=3)
            for _ in range(2):
                nursery.start_soon(commit, c, await anext(batches))
                await trio.sleep(0.1)
            await others_read_on(here, c)
            await trio.sleep(20.0)
            assert [type(error) for error in refused] == [IllegalGeneration]
            assert here.committed(0) == 9


async def test_a_commit_of_many_partitions(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several requests: all of them are those of the member that it was at first."""
    committed, hung = OffsetRequests._committed, list[float]()

    async def slowly(self: OffsetRequests, *given: Any) -> Any:
        hung.append(trio.current_time())
        await trio.sleep(20.0)
        return await committed(self, *given)

    monkeypatch.setattr(OffsetRequests, "_committed", slowly)
    monkeypatch.setattr(offsets, "COMMITTED_AT_ONCE_MAX", 1)
    async with grouped(2) as here, trio.open_nursery() as nursery:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", commit="manual", max_poll_interval_ms=POLL_MS) as c:
            batches = c.batches()
            for _ in range(2):
                await anext(batches)
            nursery.start_soon(refused, c)
            await until(lambda: c.generation == -1)
            await anext(batches)  # of the partition of which nothing is committed
            assert c.generation > 0
            await trio.sleep(20.0)
            assert sorted(here.committed(partition) or 0 for partition in range(2)) == [0, 9]
            assert len(hung) == 1


async def refused(c: Consumer) -> None:
    with pytest.raises((IllegalGeneration, UnknownMemberId)):
        await c.commit()


async def test_work_that_outlasts_its_tenure(autojump_clock: MockClock) -> None:
    """A block goes on though its partition was others' since: it holds up nothing of what its
    member was handed out later."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a") as c:
            with c.processing(await anext(c.batches(max_records=3))):
                here.world.network.isolate("a")
                other = here.begin("b")
                await until(lambda: here.committed(0) == 9)
                await other.leave()
                here.world.network.heal()
                await until(lambda: c.assignment)
                here.append(0, "x", "y")
                assert await take(c, 2) == ["x", "y"]
                with trio.move_on_after(1.0):
                    await anext(c)
                assert here.committed(0) == 11
            await trio.sleep(1.0)
        assert here.committed(0) == 11


@pytest.mark.parametrize("is_dealt", [True, False])
async def test_a_topic_that_was_made_anew(autojump_clock: MockClock, *, is_dealt: bool) -> None:
    """What was handed out of the one before is not committed as if it were of this one; also where
    the program has chosen its partitions, and goes on by itself."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        options = {} if is_dealt else {"assign": [("orders", 0)]}
        async with here.consumer("a", commit="manual", **options) as c:
            batch = await anext(c.batches())
            record = list(batch)[4]
            del here.world.topics["orders"]
            here.world.add_topic("orders", 1)
            here.append(0, *NINE)
            if not is_dealt:
                with pytest.raises(RaftmqError, match="created anew"):
                    await anext(c)
                c.seek("orders", 0, offset=0)
            assert await take(c, 2) == ["0", "1"]
            for old in (batch, record):
                with pytest.raises(IllegalGeneration):
                    await c.commit(old)
            assert not here.committed(0)
            await c.commit()
            assert here.committed(0) == 2


async def test_a_copy_of_a_record(autojump_clock: MockClock) -> None:
    """It can be made, also for another process; but nobody knows when it was handed out."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            record = await anext(c)
            for made in (copy.copy(record), pickle.loads(pickle.dumps(record))):
                assert made == record
                with pytest.raises(InvalidRequest, match="give the one that was handed out"):
                    await c.commit(made)
                with pytest.raises(InvalidRequest, match="give the one that was handed out"):
                    c.processing(made)
            await c.commit(msgspec.structs.replace(record, value=b"decoded"))
            assert here.committed(0) == 1
