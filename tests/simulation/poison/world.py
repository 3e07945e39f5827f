"""Random worlds of workers that crash: what is counted, and what is set aside for it.

The rules of the quorum (`metadata/apply/crashes.py`) and of workers (`client/processing/`) are the
real ones; coordinator, members and network are as small as they can be. A process is a worker of
`process`, or a program with a plain consumer, all of one world alike. It dies by a record
that kills it, or by accident; it may also be silent for a session and come back, or leave.
Coordinators die between the end of a session and the plan that counts it.

    python -m tests.simulation.poison --seeds 2000
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from immutables import Map

from raftmq.metadata.apply.crashes import crashes_counted, crashes_kept
from raftmq.metadata.commands import CrashedMember, PartitionId, PartitionsHeld, StoredOffset
from raftmq.metadata.image import CommittedOffset
from raftmq.model import ACCIDENTS_MAX
from tests.simulation.poison.program import Program
from tests.simulation.poison.worker import Tenure, Violation, Worker

if TYPE_CHECKING:
    from typing import TypeAlias

    from raftmq.client.consumer.record import ConsumerRecord

    Process: TypeAlias = Worker | Program

TOPIC = bytes(16)
STEPS_MAX = 40_000


class Plan(NamedTuple):
    """What a seed draws."""

    partitions: int
    records: int  # of each partition
    poison: frozenset[tuple[int, int]]
    attempts: int
    concurrency: int
    max_in_hand: int
    accidents: int
    pauses: int
    commit_share: float
    leaves: int
    pause: int  # of a record that has failed, in steps
    is_plain: bool = False  # the way of a consumer, and not of `process`


def draw_plan(seed: int, *, is_plain: bool = False) -> Plan:
    chance = Random(f"plan {seed}")
    partitions, records = chance.randint(1, 3), chance.randint(1, 12)
    places = [(p, n) for p in range(partitions) for n in range(records)]
    poison = chance.sample(places, min(len(places), chance.choice((0, 1, 1, 2, 3))))
    attempts = chance.choice((1, 2, 3, 4, 6))
    concurrency = chance.choice((1, 2, 4))
    return Plan(
        partitions,
        records,
        frozenset(poison),
        attempts,
        concurrency,
        max(2 * concurrency, chance.choice((2, 4, 8, 100))),
        chance.randint(0, 3),
        chance.randint(0, 2),
        chance.choice((0.02, 0.1, 0.5)),
        chance.choice((1, 8)),
        chance.choice((20, 20, 400)),
        is_plain,
    )


class Metadata:
    """What the quorum has: members with their partitions, and offsets with their crashes."""

    def __init__(self) -> None:
        self.members: dict[str, frozenset[int]] = {}
        self.offsets: Map[PartitionId, CommittedOffset] = Map()

    def save(self, members: dict[str, frozenset[int]], crashed: list[CrashedMember]) -> None:
        self.members = members
        self.offsets = crashes_counted(self.offsets, crashed, 0)

    def commit(self, partition: int, offset: int, alone_by: str = "") -> None:
        key = PartitionId(TOPIC, partition)
        commit = StoredOffset(TOPIC, partition, offset, alone_by=alone_by)
        crashes = crashes_kept(self.offsets.get(key), commit)
        self.offsets = self.offsets.set(key, CommittedOffset(offset, crashes=crashes))

    def committed(self, partition: int) -> int:
        there = self.offsets.get(PartitionId(TOPIC, partition))
        return 0 if there is None else max(0, there.offset)

    def crashes(self, partition: int) -> int:
        there = self.offsets.get(PartitionId(TOPIC, partition))
        return 0 if there is None or there.crashes is None else there.crashes.count

    def noted(self, partition: int) -> tuple[int, str]:
        """The record that is noted to be alone, and by whom."""
        there = self.offsets.get(PartitionId(TOPIC, partition))
        by = "" if there is None or there.crashes is None else there.crashes.alone_by
        return self.committed(partition), by


class World:
    """Attributes:
    deaths: of processes, by the record that has killed them; None: by accident.
    alone_ends: how often a worker has ended, or was silent, that handled a record alone.
    accidents_alone: of these, by no fault of the record.
    passed_ends: how often one has ended that handled another one under the note of a record.
    lost_notes: how often a worker has left that could not take back that it handles a record alone,
        and its coordinator has died before that was saved.
    aside: what was set aside, with the crashes that were counted.
    """

    def __init__(self, seed: int, *, is_plain: bool = False) -> None:
        self.seed, self.plan = seed, draw_plan(seed, is_plain=is_plain)
        self.chance = Random(seed)
        self.metadata = Metadata()
        self.workers: list[Process] = []
        self.members: dict[str, frozenset[int]] = {}  # in the coordinator's memory
        self.crashed: list[CrashedMember] = []  # not saved yet
        self.is_rebalancing = False
        self.deaths = Counter[tuple[int, int] | None]()
        self.alone_ends = Counter[tuple[int, int]]()
        self.passed_ends = Counter[tuple[int, int]]()
        self.accidents_alone = Counter[tuple[int, int]]()
        self.lost_notes = Counter[tuple[int, int]]()
        self._notes_left: dict[str, tuple[int, int]] = {}
        self.done = set[tuple[int, int]]()
        self.aside: dict[tuple[int, int], int] = {}
        self._accidents, self._pauses = self.plan.accidents, self.plan.pauses
        self._leaves = self.plan.leaves
        self._named: dict[str, Process] = {}  # by all ids that it ever had

    # -- what workers ask ------------------------------------------------------------------

    def is_stranger(self, worker: Process) -> bool:
        return worker.member_id not in self.members

    def commits(self, worker: Process, tenure: Tenure, offset: int, *, alone: bool = False) -> bool:
        """Whether the coordinator takes it: of a member, in its partition, and mostly."""
        if self.is_stranger(worker) or tenure.has_ended or self.chance.random() < 0.1:
            return False
        self.metadata.commit(tenure.partition, offset, worker.member_id if alone else "")
        return True

    def on_set_aside(self, record: ConsumerRecord, crashes: int) -> None:
        key = record.partition, record.offset
        own = self.alone_ends[key] + self.lost_notes[key]
        beside = ACCIDENTS_MAX + min(1, self.passed_ends[key])
        if crashes > beside + own:
            raise Violation(f"{key} is set aside for {crashes}, of it {own}")
        self.aside[key] = crashes

    def kill(self, worker: Process, record: ConsumerRecord | None) -> None:
        worker.is_up = False
        self.deaths[None if record is None else (record.partition, record.offset)] += 1
        self._note_end(worker, is_accident=record is None)

    def _note_end(self, worker: Process, *, is_accident: bool) -> None:
        """What it handled alone, or was about to, may be blamed for it."""
        key = worker.alone
        if key is not None and worker.is_passing:
            self.passed_ends[key] += 1
        elif key is not None:
            self.alone_ends[key] += 1
            self.accidents_alone[key] += is_accident

    # -- steps -----------------------------------------------------------------------------

    def play(self) -> None:
        """Until each record is done or set aside, as far as is committed."""
        for _ in range(STEPS_MAX):
            if self.is_over:
                return self._judge()
            self._step()
        raise Violation(f"not over: {self}")

    @property
    def is_over(self) -> bool:
        committed = map(self.metadata.committed, range(self.plan.partitions))
        return all(offset >= self.plan.records for offset in committed)

    def _judge(self) -> None:
        innocent = {key for key in self._all if key not in self.plan.poison}
        condemned = {key for key in innocent if self.accidents_alone[key] + self.lost_notes[key]}
        missing = self.plan.poison - self.aside.keys() | innocent - condemned - self.done
        if missing:
            raise Violation(f"neither done nor set aside: {missing}")

    @property
    def _all(self) -> list[tuple[int, int]]:
        return [(p, n) for p in range(self.plan.partitions) for n in range(self.plan.records)]

    def _step(self) -> None:
        draw = self.chance.random()
        running = [worker for worker in self.workers if worker.is_up and not worker.is_paused]
        if draw < 0.02 or not running:
            self._coordinate()
        elif draw < 0.022 and self._accidents:
            self._accidents -= 1
            self.kill(self.chance.choice(running), None)
        elif draw < 0.024 and self._pauses:
            self._pauses -= 1
            worker = self.chance.choice(running)
            worker.is_paused = True
            self._note_end(worker, is_accident=True)
        elif draw < 0.026:
            self.fail_over()
        elif draw < 0.066 and self._leaves and len(running) > 1:
            alone = [worker for worker in running if worker.alone is not None]
            if alone or self.chance.random() < 0.1:  # mostly with something to lose
                self._leaves -= 1
                self._leave(self.chance.choice(alone or running))
        else:
            self.chance.choice(running).step(self.chance)

    def _coordinate(self) -> None:
        """Sessions end, processes come back, plans are made."""
        act = self.chance.choice(
            (self._end_session, self._wake, self._start, self._plan, self._plan)
        )
        act()

    def _end_session(self) -> None:
        gone = [member_id for member_id in self.members if self._is_silent(member_id)]
        if gone:
            self.on_crash(self.chance.choice(gone))

    def _is_silent(self, member_id: str) -> bool:
        worker = self._named[member_id]
        return not worker.is_up or worker.is_paused or worker.member_id != member_id

    def on_crash(self, member_id: str) -> None:
        self.note_crash(member_id, self.members.pop(member_id))
        self.is_rebalancing = True
        if (key := self._notes_left.get(member_id)) is not None:
            self.lost_notes[key] += 1

    def note_crash(self, member_id: str, held: frozenset[int]) -> None:
        if held:
            parts = (PartitionsHeld(TOPIC, tuple(sorted(held))),)
            self.crashed.append(CrashedMember(member_id, parts))

    def _leave(self, worker: Process) -> None:
        """What is done is committed, what is at work is cancelled. If its note stays, a coordinator
        that dies before the next plan makes a crash of it.
        """
        if not self.is_stranger(worker):
            worker.commit()
            key = worker.alone
            if key is not None:
                tenure = worker.tenures.get(key[0])
                is_cut = self.chance.random() < 0.5
                if tenure is None or is_cut or not self.commits(worker, tenure, key[1]):
                    self._notes_left[worker.member_id] = key
            worker.lose_all()
            worker.is_up = False
            self.on_left(worker.member_id)

    def on_left(self, member_id: str) -> None:
        del self.members[member_id]
        self.is_rebalancing = True

    def _wake(self) -> None:
        for worker in self.workers:
            if worker.is_up and worker.is_paused:
                worker.is_paused = False
                if self.is_stranger(worker):  # it finds out, and joins anew
                    worker.lose_all()
                    self._join(worker)

    def _start(self) -> None:
        running = [worker for worker in self.workers if worker.is_up]
        if len(running) < 3:
            self.workers = [*running, Program(self) if self.plan.is_plain else Worker(self)]
            self._join(self.workers[-1])

    def _join(self, worker: Process) -> None:
        worker.member_id = f"m{len(self._named)}"
        self._named[worker.member_id] = worker
        self.members[worker.member_id] = frozenset()
        self.is_rebalancing = True

    def _plan(self) -> None:
        """Partitions move, but for those that their owner is at, or may be at."""
        if not self.is_rebalancing or not self.members:
            return
        workers = {member_id: self._named[member_id] for member_id in self.members}
        plan: dict[str, set[int]] = {member_id: set() for member_id in self.members}
        for partition in range(self.plan.partitions):
            owners = [m for m, held in self.members.items() if partition in held]
            new = self.chance.choice(sorted(self.members))
            owner = owners[0] if owners else new
            worker = workers[owner]
            is_stuck = self._is_silent(owner) or worker.marking is not None
            plan[owner if is_stuck or partition in worker.busy() else new].add(partition)
        moved = {member_id: frozenset(parts) for member_id, parts in plan.items()}
        there = {m: worker for m, worker in workers.items() if not self._is_silent(m)}
        for member_id, worker in there.items():
            worker.commit(given_up=frozenset(worker.tenures) - moved[member_id])
            worker.assign(frozenset(worker.tenures) & moved[member_id])
        self.save(moved)
        for member_id, worker in there.items():
            worker.assign(moved[member_id])
        self.is_rebalancing = False

    def save(self, moved: dict[str, frozenset[int]]) -> None:
        self.members = moved
        self.metadata.save(dict(moved), self.crashed)
        self.crashed = []

    def fail_over(self) -> None:
        """The next coordinator knows what was saved: members that had gone by then are members
        again, until their sessions end once more; those that had come join again.
        """
        self.crashed = []
        self.members = dict(self.metadata.members)
        for worker in self.workers:
            if worker.is_up and not worker.is_paused and self.is_stranger(worker):
                worker.lose_all()
                self._join(worker)
        self.is_rebalancing = True

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.plan}: deaths {dict(self.deaths)}, aside {self.aside},"
            f" offsets {dict(self.metadata.offsets.items())}"
        )


def failure(seed: int, *, is_plain: bool = False) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    world = World(seed, is_plain=is_plain)
    try:
        world.play()
    except Violation as error:
        way = " --plain" if is_plain else ""
        command = f"python -m tests.simulation.poison --seed {seed}{way}"
        return f"{error} of {world}\nreplay it: {command}"
    return None
