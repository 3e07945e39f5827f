"""Faults of named producers: late runs and fences, leaders that have just fenced and are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import die
from tests.simulation.nemesis import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.brokers.faults import RoleFaults
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.brokers.sdk_tasks import Run, SdkTask
    from tests.simulation.brokers.world import World
    from tests.simulation.machine_faults import CrashFaults

CAST_SECONDS_MAX = 4.0  # for the roles of a script to be filled
TAKEOVER_SECONDS_MAX = 5.0  # until then connections to the absent broker still live
ALONE_SECONDS_MAX = 1.5  # of a cut-off leader, which then has not shrunk its ISR yet


class TaskFaults:
    def __init__(
        self, world: World, injector: BrokerInjector, crashes: CrashFaults, roles: RoleFaults
    ) -> None:
        self._world, self._network, self._crashes = world, world.network, crashes
        self._injector, self._random, self._roles = injector, injector.random, roles
        self.faults = by_name(self.late_run, self.late_fence, self.kill_fenced, self.pause_fenced)

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
        self._injector.struck(kind, away.machine)
        self._network.isolate(away.machine)
        await trio.sleep(self._random.choice((0.0, 0.1, 1.0)))
        await self._replace(task, away)
        await trio.sleep(self._random.choice((0.0, 0.05, 0.5)))
        self._network.rejoin(away.machine)

    async def kill_fenced(self) -> None:
        """A run has overtaken another one, which goes on. The leader after the one that has fenced
        must know the fence; a fence that no other replica has was not acknowledged.
        """
        found = await self._find_run(lambda run: run.is_fenced)
        leader = self._leader_of_one(found[1]) if found else None
        if found is None or leader is None or not leader.is_up or leader.end:
            return
        self._injector.struck("kill_fenced", leader.name)
        is_alone = self._random.random() < 0.5
        if is_alone:
            self._with_each_broker(leader, self._network.cut_both)
        await self._replace(*found, seconds=ALONE_SECONDS_MAX if is_alone else TAKEOVER_SECONDS_MAX)
        await die(leader, power_lost=False)
        if is_alone:
            self._with_each_broker(leader, self._network.heal_both)
        await self._crashes.bring_back([leader])

    def _with_each_broker(self, leader: BrokerHost, act: Callable[[str, str], None]) -> None:
        for host in self._world.hosts:
            if host is not leader:
                act(leader.name, host.name)

    async def pause_fenced(self) -> None:
        """The same, and the one that has fenced wakes up later."""
        found = await self._find_run(lambda run: run.is_fenced)
        if found is None:
            return
        await self._replace(*found)
        leader = self._leader_of_one(found[1])
        await self._roles.pause_past_session("pause_fenced", leader)

    # What these are made of

    async def _find_run(self, is_fit: Callable[[Run], bool]) -> tuple[SdkTask, Run] | None:
        """A task and its newest run."""
        found: list[tuple[SdkTask, Run]] = []

        def look() -> bool:
            newest = [(task, task.ledger.under_way[-1:]) for task in self._world.tasks]
            found[:] = [(task, run) for task, runs in newest for run in runs if is_fit(run)]
            return bool(found)

        if not await until(look, seconds=CAST_SECONDS_MAX):
            return None
        return self._random.choice(found)

    def _leader_of_one(self, run: Run) -> BrokerHost | None:
        """Of the partitions that it writes to."""
        return self._injector.leader_of(self._random.choice(run.generation.spots))

    async def _replace(
        self, task: SdkTask, before: Run, *, seconds: float = TAKEOVER_SECONDS_MAX
    ) -> bool:
        """Have the next run begin; whether it has fenced in time."""
        task.succession.set()

        def is_done() -> bool:
            return any(run is not before and run.is_fenced for run in task.ledger.under_way[-1:])

        return await until(is_done, seconds=seconds)
