"""Faults of the world of groups, each a method that picks its target by chance.

Own how long they last. None checks whether it is a good moment.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.fault_table import by_name
from tests.simulation.timeline_nemesis import mostly_short

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.groups.process import Process
    from tests.simulation.groups.world import World

PROCESSES_MAX = 8  # more members than partitions at times
PARTITIONS_MAX = 9  # of a topic
SUBSCRIPTIONS = (("a",), ("b",), ("a", "b"), ("a", "b"))


class MemberFaults:
    """Processes that come, go, stand still or hang; what they subscribe to."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self.faults = by_name(
            self.crash, self.crash_leader, self.come, self.leave, self.restart, self.double,
            self.pause, self.hang, self.grow, self.subscribe, self.poison,
        )  # fmt: skip

    def victim(self) -> Process | None:
        running = self._world.running()
        return self._chance.choice(running) if running else None

    def crash(self) -> None:
        self._crash(self.victim())

    def crash_leader(self) -> None:
        self._crash(self._world.leader() or self.victim())

    def _crash(self, victim: Process | None) -> None:
        if victim is not None:
            victim.kill()
            if self._chance.random() < 0.7:
                self._back_later(victim, 10.0)

    def _back_later(self, victim: Process, most: float) -> None:
        seconds = mostly_short(self._chance, most)
        self._world.timeline.after(seconds, self._restart, victim.instance_id)

    def _restart(self, instance_id: str | None) -> None:
        if not self._world.is_calm and len(self._world.running()) < PROCESSES_MAX:
            self._world.start(instance_id)

    def come(self) -> None:
        self._restart(None)

    def leave(self) -> None:
        victim = self.victim()
        if victim is not None:
            victim.leave()

    def restart(self) -> None:
        """It is back before its session has expired."""
        victim = self.victim()
        if victim is not None:
            victim.kill()
            self._back_later(victim, 0.5)

    def double(self) -> None:
        """A static member is started whose process runs, or is only paused."""
        static = [process for process in self._world.running() if process.instance_id]
        if static:
            victim = self._chance.choice(static)
            if self._chance.random() < 0.5:
                self.pause_one(victim)
            self._restart(victim.instance_id)

    def pause(self) -> None:
        victim = self.victim()
        if victim is not None:
            self.pause_one(victim)

    def pause_one(self, victim: Process) -> None:
        victim.pause()
        self._world.timeline.after(mostly_short(self._chance, 20.0), self._resume, victim)

    def _resume(self, victim: Process) -> None:
        if victim.is_paused:
            victim.resume()

    def poison(self) -> None:
        """A record that ends whichever process handles it."""
        self._world.poison.strike()

    def hang(self) -> None:
        victim = self.victim()
        if victim is not None:
            victim.hang()
            self._back_later(victim, 10.0)

    def grow(self) -> None:
        world = self._world
        topic = self._chance.choice(sorted(world.counts))
        if world.counts[topic] < PARTITIONS_MAX:
            world.set_partitions(topic, world.counts[topic] + 1)

    def subscribe(self) -> None:
        victim = self.victim()
        if victim is not None:
            victim.subscribe(self._chance.choice(SUBSCRIPTIONS))


class ConnectionFaults:
    """Connections that break, fall silent, or pass requests on late."""

    def __init__(self, world: World, chance: Random, members: MemberFaults) -> None:
        self._world, self._chance, self._members = world, chance, members
        self._is_next_late = False
        self.faults = by_name(self.cut, self.mute, self.late)

    def repair(self) -> None:
        self._is_next_late = False

    def cut(self) -> None:
        victim = self._members.victim()
        if victim is not None:
            victim.cut()

    def mute(self) -> None:
        """Nothing passes, unnoticed; then the connections break."""
        victim = self._members.victim()
        if victim is not None:
            victim.mute()
            self._world.timeline.after(mostly_short(self._chance, 12.0), victim.end_silence)

    def late(self) -> None:
        """Its requests arrive after it has turned to another broker, or twice. It may stall just
        then, so that it does not contradict.
        """
        victim = self._members.victim()
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
        victim.keep_back(mostly_short(self._chance, 20.0), stall, from_join=from_join)

    def _maybe_stall(self, victim: Process) -> None:
        if not self._world.is_calm and self._chance.random() < 0.7:
            self._members.pause_one(victim)


class CoordinatorFaults:
    """Attributes:
    refuse_share, save_factor: of saves that are refused; how much slower they are.
    are_lookups_outdated: FindCoordinator may name the previous one.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self.repair()
        self.faults = by_name(
            self.move, self.crash_coordinator, self.outdated_lookups, self.refuse_saves,
            self.slow_saves,
        )  # fmt: skip

    def repair(self) -> None:
        self.refuse_share, self.save_factor = 0.0, 1.0
        self.are_lookups_outdated = False

    def move(self) -> None:
        """The old coordinator may not hear of it for a while."""
        self._world.move(mostly_short(self._chance, 4.0))

    def crash_coordinator(self) -> None:
        self._world.coordinator_broker().crash()
        self._world.move(0.0)

    def outdated_lookups(self) -> None:
        self.are_lookups_outdated = True
        self._world.timeline.after(mostly_short(self._chance, 6.0), self._look_up_truly)

    def _look_up_truly(self) -> None:
        self.are_lookups_outdated = False

    def refuse_saves(self) -> None:
        self.refuse_share = self._chance.choice([0.3, 1.0])
        self._world.timeline.after(mostly_short(self._chance, 3.0), self._take_saves)

    def _take_saves(self) -> None:
        self.refuse_share = 0.0

    def slow_saves(self) -> None:
        self.save_factor = self._chance.choice([5.0, 30.0])
        self._world.timeline.after(mostly_short(self._chance, 6.0), self._save_soon)

    def _save_soon(self) -> None:
        self.save_factor = 1.0
