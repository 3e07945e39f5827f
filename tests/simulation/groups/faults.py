"""Faults of the world of groups, each kind a method that picks its target by chance.

Owns when they come and how long they last. None checks whether it is a good moment.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.groups.process import Process
    from tests.simulation.groups.world import World

PROCESSES_MAX = 8  # more members than partitions at times
PARTITIONS_MAX = 9  # of a topic
SUBSCRIPTIONS = (("a",), ("b",), ("a", "b"), ("a", "b"))


class Faults:
    """Attributes:
    counts: how often each kind struck.
    refuse_share, save_factor: of saves that are refused; how much slower they are.
    are_lookups_outdated: FindCoordinator may name the previous one.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self.counts: Counter[str] = Counter()
        self.refuse_share, self.save_factor = 0.0, 1.0
        self.are_lookups_outdated = self._is_next_late = False

    def strike(self) -> None:
        """Now, and again soon."""
        world = self._world
        if world.is_calm:
            return
        kind = self._chance.choice(world.plan.kinds)
        world.timeline.say(f"-- {kind}")
        self.counts[kind] += 1
        getattr(self, kind)()
        world.timeline.after(self._chance.random() * 2 * world.plan.strike_seconds, self.strike)

    def repair(self) -> None:
        self.refuse_share, self.save_factor = 0.0, 1.0
        self.are_lookups_outdated = self._is_next_late = False
        for process in self._world.processes:
            process.end_silence()
            if process.is_paused:
                process.resume()

    def _seconds(self, most: float) -> float:
        return most * self._chance.random() ** 2 + 0.01

    def _victim(self) -> Process | None:
        running = self._world.running()
        return self._chance.choice(running) if running else None

    # -- members ---------------------------------------------------------------------------

    def crash(self) -> None:
        self._crash(self._victim())

    def crash_leader(self) -> None:
        self._crash(self._world.leader() or self._victim())

    def _crash(self, victim: Process | None) -> None:
        if victim is not None:
            victim.kill()
            if self._chance.random() < 0.7:
                self._world.timeline.after(self._seconds(10.0), self._restart, victim.instance_id)

    def _restart(self, instance_id: str | None) -> None:
        if not self._world.is_calm and len(self._world.running()) < PROCESSES_MAX:
            self._world.start(instance_id)

    def come(self) -> None:
        self._restart(None)

    def leave(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.leave()

    def restart(self) -> None:
        """It is back before its session has expired."""
        victim = self._victim()
        if victim is not None:
            victim.kill()
            self._world.timeline.after(self._seconds(0.5), self._restart, victim.instance_id)

    def double(self) -> None:
        """A static member is started whose process runs, or is only paused."""
        static = [process for process in self._world.running() if process.instance_id]
        if static:
            victim = self._chance.choice(static)
            if self._chance.random() < 0.5:
                self._pause(victim)
            self._restart(victim.instance_id)

    def pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._pause(victim)

    def _pause(self, victim: Process) -> None:
        victim.pause()
        self._world.timeline.after(self._seconds(20.0), self._resume, victim)

    def _resume(self, victim: Process) -> None:
        if victim.is_paused:
            victim.resume()

    def hang(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.hang()
            self._world.timeline.after(self._seconds(10.0), self._restart, victim.instance_id)

    def cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.cut()

    def mute(self) -> None:
        """Nothing passes, unnoticed; then the connections break."""
        victim = self._victim()
        if victim is not None:
            victim.mute()
            self._world.timeline.after(self._seconds(12.0), victim.end_silence)

    def late(self) -> None:
        """Its requests arrive after it has turned to another broker, or twice. It may stall just
        then, so that it does not contradict.
        """
        victim = self._victim()
        self._is_next_late = self._chance.random() < 0.3
        if victim is not None and not self._is_next_late:
            self._keep_back(victim, from_join=self._chance.random() < 0.5)

    def on_start(self, process: Process) -> None:
        """It may meet the proxy with its first request."""
        if self._is_next_late:
            self._is_next_late = False
            self._keep_back(process, from_join=True)

    def _keep_back(self, victim: Process, *, from_join: bool) -> None:
        stall = partial(self._maybe_stall, victim)
        victim.keep_back(self._seconds(20.0), stall, from_join=from_join)

    def _maybe_stall(self, victim: Process) -> None:
        if not self._world.is_calm and self._chance.random() < 0.7:
            self._pause(victim)

    def grow(self) -> None:
        world = self._world
        topic = self._chance.choice(sorted(world.counts))
        if world.counts[topic] < PARTITIONS_MAX:
            world.set_partitions(topic, world.counts[topic] + 1)

    def subscribe(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.subscribe(self._chance.choice(SUBSCRIPTIONS))

    # -- coordinators ----------------------------------------------------------------------

    def move(self) -> None:
        """The old coordinator may not hear of it for a while."""
        self._world.move(self._seconds(4.0))

    def crash_coordinator(self) -> None:
        self._world.coordinator_broker().crash()
        self._world.move(0.0)

    def outdated_lookups(self) -> None:
        self.are_lookups_outdated = True
        self._world.timeline.after(self._seconds(6.0), self._look_up_truly)

    def _look_up_truly(self) -> None:
        self.are_lookups_outdated = False

    def refuse_saves(self) -> None:
        self.refuse_share = self._chance.choice([0.3, 1.0])
        self._world.timeline.after(self._seconds(3.0), self._take_saves)

    def _take_saves(self) -> None:
        self.refuse_share = 0.0

    def slow_saves(self) -> None:
        self.save_factor = self._chance.choice([5.0, 30.0])
        self._world.timeline.after(self._seconds(6.0), self._save_soon)

    def _save_soon(self) -> None:
        self.save_factor = 1.0
