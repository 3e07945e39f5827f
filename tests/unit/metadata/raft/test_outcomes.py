"""Waiting for what becomes of a proposal: settled, too late, given up; and the room it takes."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from raftmq.metadata.raft.engine.replication import Fate
from raftmq.metadata.raft.quorum import SETTLED_MAX, CommandOutcome, CommandOutcomes


async def test_whoever_waits_is_woken_by_the_first_news_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An outcome is settled once; what is told later changes nothing."""
    outcome = CommandOutcome(1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome.wait)
        await trio.testing.wait_all_tasks_blocked()
        outcome.settle(Fate.APPLIED, 7)
        outcome.settle(Fate.UNKNOWN, "this node stops")
    assert (outcome.fate, outcome.result) == (Fate.APPLIED, 7)


async def test_what_takes_too_long_is_unknown_at_its_own_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Deadlines pass in their own order, whatever the order in which they were asked for."""
    outcomes, ends = CommandOutcomes(), dict[float, float]()

    async def wait(seconds: float) -> None:
        outcome = outcomes.add(seconds)
        await outcome.wait()
        assert outcome.fate is Fate.UNKNOWN
        assert outcome.result == f"no answer within {seconds:g} s"
        ends[seconds] = trio.current_time() - begin

    begin = trio.current_time()
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcomes.run)
            for seconds in (5.0, 1.0, 30.0, 0.5):
                nursery.start_soon(wait, seconds)
                await trio.testing.wait_all_tasks_blocked()
    assert ends == pytest.approx({0.5: 0.5, 1.0: 1.0, 5.0: 5.0, 30.0: 30.0})


async def test_a_cancelled_wait_can_be_settled_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nobody is there any more; the news goes nowhere and wakes no task."""
    outcome = CommandOutcome(60.0)
    with trio.move_on_after(1) as scope:
        await outcome.wait()
    assert scope.cancelled_caught
    outcome.settle(Fate.APPLIED, None)


def test_settled_outcomes_take_bounded_room() -> None:
    """Long deadlines of short proposals do not pile up."""

    async def propose_much() -> None:
        outcomes = CommandOutcomes()
        for _ in range(10 * SETTLED_MAX):
            outcomes.add(3600.0).settle(Fate.APPLIED, None)
        assert len(outcomes._heap) <= SETTLED_MAX + 1

    trio.run(propose_much)
