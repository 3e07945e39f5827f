"""Faults of named producers: late runs and fences, leaders that have just fenced and are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.simulation.brokers.group_faults import GroupTroubles
from tests.simulation.raft.fault_scripts import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.sdk_tasks import Run, SdkTask

CAST_SECONDS_MAX = 4.0  # for the roles of a script to be filled
TAKEOVER_SECONDS_MAX = 5.0  # until then connections to the absent broker still live
ALONE_SECONDS_MAX = 1.5  # of a cut-off leader, which then has not shrunk its ISR yet


class TaskTroubles(GroupTroubles):
    async def late_run(self) -> None:
        """A run is cut off until the next one has fenced its partitions; what it has sent, and what
        it goes on to send, comes then.
        """
        found = await self._find_run(lambda run: run.is_fenced)
        if found is not None:
            await self._cut_off_until_succeeded("late_run", *found)

    async def late_fence(self) -> None:
        """The same with a run that has not written yet, and the next one is of a higher
        generation.
        """
        found = await self._find_run(lambda run: run.is_connected and not run.is_fenced)
        if found is not None:
            found[0].gives_up = True
            await self._cut_off_until_succeeded("late_fence", *found)

    async def _cut_off_until_succeeded(self, kind: str, task: SdkTask, away: Run) -> None:
        self._struck(kind, away.machine)
        self.world.network.isolate(away.machine)
        await trio.sleep(self._random.choice((0.0, 0.1, 1.0)))
        await self._replace(task, away)
        await trio.sleep(self._random.choice((0.0, 0.05, 0.5)))
        self.world.network.heal(source=away.machine)
        self.world.network.heal(target=away.machine)

    async def kill_fenced(self) -> None:
        """A run has overtaken another one, which goes on. The leader after the one that has fenced
        must know the fence; a fence that no other replica has was not acknowledged.
        """
        found = await self._find_run(lambda run: run.is_fenced)
        leader = self._leader_of(self._random.choice(found[1].generation.spots)) if found else None
        if found is None or leader is None or not leader.is_up or leader.end:
            return
        self._struck("kill_fenced", leader.name)
        is_alone = self._random.random() < 0.5
        if is_alone:
            self._part_from_brokers(leader, self.world.network.cut_both)
        await self._replace(*found, seconds=ALONE_SECONDS_MAX if is_alone else TAKEOVER_SECONDS_MAX)
        await self._die(leader, power_lost=False)
        if is_alone:
            self._part_from_brokers(leader, self._join)
        await self._bring_back([leader])

    def _part_from_brokers(self, leader: BrokerHost, act: Callable[[str, str], None]) -> None:
        for host in self.world.hosts:
            if host is not leader:
                act(leader.name, host.name)

    def _join(self, first: str, second: str) -> None:
        self.world.network.heal(first, second)
        self.world.network.heal(second, first)

    async def pause_fenced(self) -> None:
        """The same, and the one that has fenced wakes up later."""
        found = await self._find_run(lambda run: run.is_fenced)
        if found is None:
            return
        await self._replace(*found)
        leader = self._leader_of(self._random.choice(found[1].generation.spots))
        if leader is None or not leader.is_up or leader.is_paused or leader.end:
            return
        self._struck("pause_fenced", leader.name)
        leader.pause()
        run = leader.runs
        await trio.sleep(self.world.plan.session_seconds + self._random.uniform(0.5, 3.0))
        if leader.runs == run and leader.is_up:
            leader.resume()

    # What these are made of

    async def _find_run(self, is_fit: Callable[[Run], bool]) -> tuple[SdkTask, Run] | None:
        """A task and its newest run."""
        found: list[tuple[SdkTask, Run]] = []

        def look() -> bool:
            newest = [(task, task.book.under_way[-1:]) for task in self.world.tasks]
            found[:] = [(task, run) for task, runs in newest for run in runs if is_fit(run)]
            return bool(found)

        if not await until(look, seconds=CAST_SECONDS_MAX):
            return None
        return self._random.choice(found)

    async def _replace(
        self, task: SdkTask, before: Run, *, seconds: float = TAKEOVER_SECONDS_MAX
    ) -> bool:
        """Have the next run begin; whether it has fenced in time."""
        task.succession.set()

        def is_done() -> bool:
            return any(run is not before and run.is_fenced for run in task.book.under_way[-1:])

        return await until(is_done, seconds=seconds)
