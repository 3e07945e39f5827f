"""Crashes in the world of groups: partitions that end each process which gets them, and the judge.

Owns the fault `poison`: a partition at whose first record so many processes die, one after the
other, until the record is set aside. From the second death on they say that they handle it alone,
and die once that is noted. What the real coordinator counts is judged by what has truly happened:

    C1  a member is counted once at the most, and never if it has left its coordinator
    C2  nor if nothing was wrong with it: it was not silent for a session
    C3  a member that died with its partitions, undisturbed by other faults, is counted
    C4  beside an offset that stands more than two stand only of members that were alone there
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raftmq.client.group.effects import State
from raftmq.client.processing.alone import is_suspect
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import CrashedMember, PartitionsHeld
from raftmq.model import ACCIDENTS_MAX
from raftmq.wire.messages.groups import LeaveGroupReply
from tests.simulation.groups.asks import Commit, Committed
from tests.simulation.groups.checks import Violation, demand

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from raftmq.broker.groups.phases import SavePlan
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.wire.bodies import Body
    from raftmq.wire.messages.groups import JoinGroup
    from tests.simulation.groups.connection import Heard
    from tests.simulation.groups.process import Process
    from tests.simulation.groups.world import World

DEATHS = (2, 3, 5)
DEATH_SECONDS_MAX = 0.5  # until the record is handled
AGAIN_SECONDS = 0.3  # between attempts to note it
BACK_SECONDS_MAX = 3.0
# Faults after which a member that is alive may be silent, as far as its coordinator knows.
SILENCING = {
    "pause", "double", "cut", "mute", "late", "move", "crash_coordinator", "outdated_lookups",
    "slow_saves", "refuse_saves",
}  # fmt: skip
# After which one that is dead may not be counted: what it sent before comes late, or the command
# in which it is counted is refused.
CONFUSING = {"late", "double", "refuse_saves", "cut", "mute"}


def topic_id_of(topic: str) -> bytes:
    return topic.encode() * 16


def crashed_of(save: SavePlan) -> tuple[CrashedMember, ...]:
    """As the coordinator's shell has them in the command."""
    return tuple(
        CrashedMember(
            crash.member_id,
            tuple(
                PartitionsHeld(topic_id_of(topic), (number,))
                for topic, number in sorted(crash.held)
            ),
        )
        for crash in save.crashes
    )


class Poison:
    """Attributes:
    deaths: of processes by it.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self._left: dict[Key, int] = {}  # how many it kills yet
        self.deaths = 0

    def strike(self) -> None:
        world = self._world
        key = self._chance.choice(
            [(topic, n) for topic, count in sorted(world.counts.items()) for n in range(count)]
        )
        self._left[key] = self._chance.choice(DEATHS)
        for process in world.running():
            if key in process.works_on():
                self._meet(process, key)

    def repair(self) -> None:
        self._left.clear()

    def on_assigned(self, process: Process, keys: Iterable[Key]) -> None:
        for key in sorted(set(keys) & self._left.keys()):
            self._meet(process, key)

    def _meet(self, process: Process, key: Key) -> None:
        seconds = DEATH_SECONDS_MAX * self._chance.random()
        self._world.timeline.after(seconds, process.when_awake, partial(self._handle, process, key))

    def _handle(self, process: Process, key: Key) -> None:
        if key not in self._left or key not in process.works_on():
            return
        if not is_suspect(self._world.quorum.crashes(key)):
            return self._kill(process, key)
        membership = process.membership
        note = Commit(membership.member_id, membership.generation, process.instance_id, alone=key)
        return process.send(note, partial(self._on_noted, process, key))

    def _on_noted(self, process: Process, key: Key, heard: Heard) -> None:
        answer = heard.outcome
        if isinstance(answer, Committed) and answer.error == ErrorCode.NONE:
            self._kill(process, key)
        else:
            again = partial(self._handle, process, key)
            self._world.timeline.after(AGAIN_SECONDS, process.when_awake, again)

    def _kill(self, process: Process, key: Key) -> None:
        if not process.is_up or key not in self._left:
            return
        self._world.timeline.say(f"{process} dies of {key}")
        self.deaths += 1
        self._left[key] -= 1
        if not self._left[key]:
            del self._left[key]
        process.kill()
        seconds = BACK_SECONDS_MAX * self._chance.random()
        self._world.timeline.after(seconds, self._restart, process.instance_id)

    def _restart(self, instance_id: str | None) -> None:
        if not self._world.is_calm:
            self._world.start(instance_id)


class CrashJudge:
    """Attributes:
    counted: members, by id.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._members: dict[str, Process] = {}
        self._left: dict[str, int] = {}  # slot epoch of who has answered
        self.counted = set[str]()
        self._owed: dict[str, str] = {}
        self._notes: dict[Key, set[str]] = {}

    def on_join(self, ask: JoinGroup, process: Process) -> None:
        if ask.member_id:
            self._members[ask.member_id] = process

    def on_answer(self, body: Body, slot_epoch: int) -> None:
        if isinstance(body, LeaveGroupReply):
            for member in body.members:
                if not member.error:  # else it was none any more
                    self._left[member.member_id] = slot_epoch

    def on_noted(self, commit: Commit) -> None:
        """It is applied."""
        if commit.alone is not None:
            self._notes.setdefault(commit.alone, set()).add(commit.member_id)

    def on_killed(self, process: Process) -> None:
        membership, world = process.membership, self._world
        group = world.group()
        is_owed = (
            membership.state is State.STABLE
            and process.instance_id is None
            and group is not None
            and group.generation == membership.generation
            and bool(process.works_on())
            and not process.is_misled
        )
        if is_owed:
            self._owed[membership.member_id] = str(process)

    def on_saved(self, save: SavePlan, slot_epoch: int) -> None:
        """It is applied, with what it counts."""
        for crash in save.crashes:
            process = self._members[crash.member_id]
            demand(crash.member_id not in self.counted, f"C1: {process} is counted twice")
            self.counted.add(crash.member_id)
            has_left = self._left.get(crash.member_id) == slot_epoch
            demand(not has_left, f"C1: {process} has left, and is counted")
            self._check_silent(process)
        for topic, count in self._world.counts.items():
            for key in ((topic, number) for number in range(count)):
                own = len(self._notes.get(key, set()) & self.counted)
                crashes = self._world.quorum.crashes(key)
                demand(crashes <= ACCIDENTS_MAX + own, f"C4: {crashes} at {key}, alone {own}")

    def _check_silent(self, process: Process) -> None:
        struck = {kind for kind, times in self._world.nemesis.counts.items() if times}
        is_quiet = bool(struck) and not struck & SILENCING  # no scene, whose faults nobody counts
        is_fine = process.is_up and process.instance_id is None and is_quiet
        demand(not is_fine, f"C2: {process} is fine, and is counted")

    def at_last(self) -> None:
        """All is settled."""
        plan = self._world.plan
        is_late = plan.member.rebalance_seconds < plan.member.session_seconds + 1.0
        # A rebalance may be sooner than the session; scenes name no faults.
        if is_late or not plan.kinds or CONFUSING & set(plan.kinds):
            return
        missing = {who: what for who, what in self._owed.items() if who not in self.counted}
        if missing:
            raise Violation(f"C3: not counted: {missing}")
