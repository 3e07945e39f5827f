"""Tasks that wait for offsets: released in order, failed, expired, cancelled, forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import NotLeaderOrFollower, RaftmqError, RequestTimedOut
from raftmq.partition.waiters import OffsetWaiters

if TYPE_CHECKING:
    from trio.testing import MockClock

FOR_EVER = float("inf")


class Crowd:
    """Tasks that wait, and what became of each."""

    def __init__(self, waiters: OffsetWaiters, nursery: trio.Nursery) -> None:
        self.waiters, self._nursery = waiters, nursery
        self.outcomes: dict[int, str] = {}

    async def join(self, *offsets: int, deadline: float = FOR_EVER) -> None:
        for offset in offsets:
            self._nursery.start_soon(self._wait, offset, deadline)
        await wait_all_tasks_blocked()

    async def _wait(self, offset: int, deadline: float) -> None:
        try:
            await self.waiters.wait(offset, deadline=deadline)
            self.outcomes[offset] = "done"
        except RaftmqError as error:
            self.outcomes[offset] = type(error).__name__


async def test_an_offset_releases_all_up_to_it() -> None:
    """Whoever waits for more goes on waiting."""
    async with trio.open_nursery() as nursery:
        crowd = Crowd(OffsetWaiters(), nursery)
        await crowd.join(5, 3, 7)
        crowd.waiters.release(5)
        await wait_all_tasks_blocked()
        assert crowd.outcomes == {3: "done", 5: "done"}
        assert len(crowd.waiters) == 1
        nursery.cancel_scope.cancel()


async def test_failing_tells_everybody() -> None:
    """The part is laid down: nobody knows what becomes of the records."""
    async with trio.open_nursery() as nursery:
        crowd = Crowd(OffsetWaiters(), nursery)
        await crowd.join(1, 2)
        crowd.waiters.fail(NotLeaderOrFollower("over"))
        await wait_all_tasks_blocked()
        assert crowd.outcomes == dict.fromkeys((1, 2), "NotLeaderOrFollower")
        assert not crowd.waiters


async def test_reached_with_too_few_replicas_is_told(autojump_clock: MockClock) -> None:
    """Released with an error: the record is there, but not as safe as was asked."""
    async with trio.open_nursery() as nursery:
        crowd = Crowd(OffsetWaiters(), nursery)
        await crowd.join(4)
        crowd.waiters.release(4, NotLeaderOrFollower("too few"))
        await wait_all_tasks_blocked()
        assert crowd.outcomes == {4: "NotLeaderOrFollower"}


async def test_whose_time_is_over_leaves(autojump_clock: MockClock) -> None:
    """Only they; the others keep their order."""
    async with trio.open_nursery() as nursery:
        crowd = Crowd(OffsetWaiters(), nursery)
        now = trio.current_time()
        await crowd.join(1, 4, deadline=now + 1)
        await crowd.join(3, 2)
        crowd.waiters.expire(now + 1)
        await wait_all_tasks_blocked()
        assert crowd.outcomes == dict.fromkeys((1, 4), RequestTimedOut.__name__)
        assert len(crowd.waiters) == 2
        crowd.waiters.release(2)
        await wait_all_tasks_blocked()
        assert crowd.outcomes[2] == "done"
        assert 3 not in crowd.outcomes
        nursery.cancel_scope.cancel()


async def test_nothing_is_kept_of_waiters_while_nothing_is_acknowledged(
    autojump_clock: MockClock,
) -> None:
    """A high watermark that stands still, producers that come and give up, one that stays."""
    waiters = OffsetWaiters()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: waiters.wait(1, deadline=FOR_EVER))
        for offset in range(2, 50):
            with trio.move_on_after(0.01):
                await waiters.wait(offset, deadline=FOR_EVER)
            waiters.expire(trio.current_time())
        assert len(waiters) == 1
        waiters.release(1)
