"""Lives of members of a group, in virtual time: what is taken down, and how it is judged."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.checkers.verdict import Result
from jepsen_like.history.event import Type
from jepsen_like.workloads.group_plan import COMMITS, End, Fate, draw_fate
from tests.jepsen_like.workloads.group_runs import PARTITIONS, a_group_run
from tests.unit.client.group.grouped import until

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("commit", COMMITS)
async def test_members_come_and_go(commit: str, autojump_clock: MockClock) -> None:
    """Two share the partitions, a third one comes, one leaves: everything is handed out, and
    every commit and every change is in the history."""
    async with a_group_run(commit) as run:
        run.begin("a", Fate(12.0, End.LEAVE))
        run.begin("b")
        for step in range(40):
            run.append(step % PARTITIONS, 3)
            if step == 10:
                run.begin("c")
            await trio.sleep(0.5)
        verdict = await run.finish()
        assert not verdict.failures, str(verdict)
        assert verdict.figures["records handed out to groups"] >= 120
        assert verdict.figures["generations"] >= 3
        assert verdict.figures["commits"] >= 10
        assert run.of("leave", process="a")
        assert run.of("gone", process="a")[0].error is None
        revoked = [event for event in run.of("rebalance") if "revoked" in event.value]
        assert {event.process for event in revoked} >= {"a", "b"}


async def test_a_crash_is_told_to_nobody(autojump_clock: MockClock) -> None:
    """Its session has to end before the other one gets what it had; nothing of it comes later."""
    async with a_group_run("batch") as run:
        run.begin("a", Fate(8.0, End.CRASH))
        run.begin("b")
        await until(lambda: run.of("crash"))
        (crash,) = run.of("crash")
        later = [e for e in run.events[crash.index + 1 :] if e.process == "a" and e.f != "commit"]
        assert not later
        run.append(0)
        run.append(1)
        run.append(2)
        run.append(3)
        verdict = await run.finish()
        assert not verdict.failures, str(verdict)
        given = [e for e in run.of("rebalance", process="b") if e.index > crash.index]
        assert given[0].time - crash.time > 3.0


async def test_who_is_not_heard_loses_what_it_has(autojump_clock: MockClock) -> None:
    """For longer than a session, while it reads on: it stops by itself before another one begins,
    and commits that come late are refused."""
    async with a_group_run("batch") as run:
        run.begin("a", Fate(100.0, End.LEAVE, mute_at=6.0, mute_seconds=9.0))
        run.begin("b")
        for step in range(60):
            run.append(step % PARTITIONS)
            await trio.sleep(0.3)
        verdict = await run.finish()
        assert not verdict.failures, str(verdict)
        lost = [event for event in run.of("rebalance", process="a") if "lost" in event.value]
        assert lost
        (mute,) = run.of("mute")
        late = [e for e in run.of("commit", Type.FAIL, process="a") if e.index > mute.index]
        assert any("Generation" in (e.error or "") or "Member" in (e.error or "") for e in late)


async def test_who_asks_for_nothing_is_put_out(autojump_clock: MockClock) -> None:
    """Idle for longer than the group is patient; it joins again when it goes on."""
    async with a_group_run("manual") as run:
        run.begin("a", Fate(100.0, End.LEAVE, idle_at=5.0, idle_seconds=12.0))
        run.begin("b")
        for step in range(80):
            run.append(step % PARTITIONS)
            await trio.sleep(0.3)
        verdict = await run.finish()
        assert not verdict.failures, str(verdict)
        assert run.of("idle")
        assert len([e for e in run.of("rebalance", process="a") if "assigned" in e.value]) > 1


@pytest.mark.parametrize(("seed", "commit"), list(enumerate(COMMITS)))
async def test_any_lives(seed: int, commit: str, autojump_clock: MockClock) -> None:
    """As they are drawn, three at a time, while the group moves to other coordinators."""
    random = Random(seed)
    async with a_group_run(commit, seed=seed) as run:
        for step in range(120):
            run.append(random.randrange(PARTITIONS), random.randint(1, 3))
            if step % 12 == 0:
                run.begin(f"m{step}", draw_fate(random, life_seconds=12.0))
            if step in (30, 50, 70):
                await run.here.give(step // 10 % 3 + 1)
            await trio.sleep(0.3)
        run.begin("last")
        verdict = await run.finish()
        assert not verdict.failures, f"seed {seed}: {verdict}"
        assert verdict.result is Result.PASS
        assert run.of("commit", Type.OK)
