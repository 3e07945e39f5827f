"""The world of one consumer group under virtual time: members, coordinators, metadata, faults.

Owns the acts: members join, faults are injected, then no more, and all must be settled within
`Plan.heal_seconds_max`. One seed is one replay. The rules of the group and of the metadata are the
real ones.

    python -m tests.simulation.groups --seed N
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from raftmq.client.group.member_options import MemberOptions
from raftmq.errors import FencedInstanceId, InconsistentGroupFilter, InvalidRequest
from raftmq.tag_filter import parse
from tests.simulation.groups.asks import GROUP
from tests.simulation.groups.broker import Broker
from tests.simulation.groups.checks import Checks, demand, is_replaced
from tests.simulation.groups.crashing import CrashJudge, Poison
from tests.simulation.groups.faults import (
    SUBSCRIPTIONS,
    ConnectionFaults,
    CoordinatorFaults,
    MemberFaults,
)
from tests.simulation.groups.plan import SECONDS, Plan, draw_plan
from tests.simulation.groups.process import Process
from tests.simulation.groups.quorum import Quorum
from tests.simulation.replication.timeline import Timeline
from tests.simulation.timeline_nemesis import TimelineNemesis

if TYPE_CHECKING:
    from raftmq.broker.groups.group import Group
    from raftmq.errors import RaftmqError

BROKER_COUNT = 3
STEP_SECONDS = 0.1  # between checks whether all is settled
NOTICE_SECONDS_MAX = 1.0  # until a broker hears of the end of a connection
LINGER_SECONDS_MAX = 4.0  # for which a proxy keeps a connection open that it has delivered late
NEWS_SECONDS_MAX = 0.2  # until a broker learns that the slot is its own
TOPICS_SECONDS_MAX = 1.0  # until a client hears of partitions


class World:
    """Attributes:
    processes: all that there ever were.
    counts: partitions of each topic.
    is_calm: nothing goes wrong any more.
    touched: members may work on other partitions than before.
    """

    def __init__(self, seed: int, plan: Plan, wanted: tuple[str, ...] = ()) -> None:
        self.seed, self.plan, self._wanted = seed, plan, wanted
        self.timeline, self.is_calm, self.touched = Timeline(), True, False
        self.counts = {"a": plan.partition_count, "b": plan.partition_count - 1}
        self.checks, self.crash_judge = Checks(), CrashJudge(self)
        self.poison = Poison(self, self.chance("poison"))
        self.quorum = Quorum(self, BROKER_COUNT)
        self.brokers = [Broker(self, number) for number in range(BROKER_COUNT)]
        self.processes: list[Process] = []
        self._tenures: list[tuple[Broker, int]] = []
        chance = self.chance("faults")
        members = MemberFaults(self, chance)
        self.connection_faults = ConnectionFaults(self, chance, members)
        self.coordinator_faults = CoordinatorFaults(self, chance)
        self.nemesis = TimelineNemesis(
            self,
            chance,
            members.faults,
            self.connection_faults.faults,
            self.coordinator_faults.faults,
        )
        self._network, self._moves = self.chance("network"), self.chance("moves")
        self._number = 0
        self.heal_seconds = 0.0

    def chance(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def next_number(self) -> int:
        self._number += 1
        return self._number

    @property
    def lines(self) -> list[str]:
        return self.timeline.lines

    @property
    def command(self) -> str:
        """That shows this world once more."""
        faults = f" --kinds {','.join(self._wanted)}" if self._wanted else ""
        seconds = f"--seconds {self.plan.seconds:g}"
        return f"python -m tests.simulation.groups --seed {self.seed} {seconds}{faults}"

    # -- chance ----------------------------------------------------------------------------

    def delay(self) -> float:
        return self.plan.delay_seconds_max * self._network.random()

    def news_seconds(self, chance: Random) -> float:
        """Until a client hears how many partitions there are."""
        return TOPICS_SECONDS_MAX * chance.random() ** 2

    def notice_seconds(self) -> float:
        """Until a broker hears of the end of a connection."""
        return NOTICE_SECONDS_MAX * self._network.random() ** 2

    def linger_seconds(self) -> float:
        """For which a proxy keeps a connection open when it has delivered what was late."""
        return LINGER_SECONDS_MAX * self._network.random()

    def save_seconds(self) -> float:
        factor = self.coordinator_faults.save_factor
        return self.plan.save_seconds_max * self._network.random() * factor

    def refuses_saves(self) -> bool:
        return self._network.random() < self.coordinator_faults.refuse_share

    # -- members ---------------------------------------------------------------------------

    def start(self, instance_id: str | None) -> None:
        name = f"p{len(self.processes)}{f'/{instance_id}' if instance_id else ''}"
        chance = self.chance(f"member {name}")
        wants = self.chance(f"wants of {instance_id or name}")  # the same when it is back
        assignors = wants.choice(self.plan.member.assignors)
        options = self._options(instance_id, assignors, self._filter_of(name))
        topics = wants.choice(SUBSCRIPTIONS)
        process = Process(self, name, options, topics, chance)
        self.processes.append(process)
        self.connection_faults.on_start(process)
        process.start()

    def _filter_of(self, name: str) -> str:
        """Of a process; at last of all that come: who is refused would not settle."""
        filters, chance = self.plan.filters, self.chance(f"filter of {name}")
        is_other = chance.random() < filters.other_share and not self.is_calm
        return filters.other if is_other else filters.usual

    def _options(
        self, instance_id: str | None, assignors: tuple[str, ...], tags: str
    ) -> MemberOptions:
        member = self.plan.member
        return MemberOptions(
            group=GROUP,
            assignor=assignors,
            group_instance_id=instance_id,
            session_timeout_ms=round(member.session_seconds * 1000),
            heartbeat_interval_ms=round(member.heartbeat_seconds * 1000),
            max_poll_interval_ms=round(member.poll_seconds * 1000),
            rebalance_timeout_ms=round(member.rebalance_seconds * 1000),
            tag_filter=parse(tags) if tags else None,
        )

    def running(self) -> list[Process]:
        return [process for process in self.processes if process.is_up]

    def leader(self) -> Process | None:
        group = self.group()
        leader = group.describe().leader if group else ""
        return next(
            (p for p in self.running() if leader and p.membership.member_id == leader), None
        )

    def set_partitions(self, topic: str, count: int) -> None:
        self.counts[topic] = count
        for process in self.running():
            process.hear_of_topics()

    def on_failed(self, process: Process, error: RaftmqError) -> None:
        """Only for another process of the same instance, which asked to be it not much earlier; for
        its filter, which the checks know; or as a save was refused for good: then it is started
        again.
        """
        if isinstance(error, InconsistentGroupFilter):
            return
        if isinstance(error, InvalidRequest) and "refuse_saves" in self.plan.kinds:
            self.timeline.after(1.0, self.start, process.instance_id)
        else:
            demand(isinstance(error, FencedInstanceId), f"{process} has failed: {error!r}")
            is_right = is_replaced(process, self.processes)
            demand(is_right, f"{process} was fenced, and is the last of its instance")

    # -- coordinators ----------------------------------------------------------------------

    def find_coordinator(self) -> tuple[Broker, int]:
        """A lookup's answer, perhaps from an older image, and the slot epoch."""
        count = 2 if self.coordinator_faults.are_lookups_outdated else 1
        return self._network.choice(self._tenures[-count:])

    def coordinator_broker(self) -> Broker:
        return self.brokers[self.quorum.slot.broker_id]

    def group(self) -> Group | None:
        coordinator = self.coordinator_broker().coordinator
        if coordinator is None or coordinator.slot_epoch != self.quorum.slot.epoch:
            return None
        return coordinator.group

    def move(self, late_seconds: float) -> None:
        """To another broker, or to the same one under another epoch."""
        old = self.coordinator_broker()
        new = self.brokers[self._moves.randrange(BROKER_COUNT)]
        slot_epoch = self.assign(new)
        if old is not new:
            coordinator = old.coordinator
            self.timeline.after(late_seconds, self._depose, old, coordinator)
        news_seconds = self._moves.random() * NEWS_SECONDS_MAX
        self.timeline.after(news_seconds, new.take_office, slot_epoch)

    def assign(self, broker: Broker) -> int:
        """The slot's new epoch."""
        slot_epoch = self.quorum.assign(broker.broker_id)
        self._tenures.append((broker, slot_epoch))
        return slot_epoch

    def _depose(self, old: Broker, coordinator: object) -> None:
        if old.coordinator is coordinator:
            old.abandon()

    # -- the acts --------------------------------------------------------------------------

    def play(self) -> None:
        """
        Raises:
            Violation: a promise was broken; or any error of the code under test.
        """
        first = self.brokers[self.chance("moves").randrange(BROKER_COUNT)]
        first.take_office(self.assign(first))
        for _ in range(self.plan.dynamic_count):
            self.timeline.after(self._network.random() * 2, self.start, None)
        for number in range(self.plan.static_count):
            self.timeline.after(self._network.random() * 2, self.start, f"i{number}")
        self.is_calm = False
        self.nemesis.strike()
        self.run(self.plan.seconds)
        self.heal()

    def run(self, seconds: float) -> None:
        self.timeline.run(seconds, self._after_each)

    def _after_each(self) -> None:
        if self.touched:
            self.touched = False
            self.checks.after_event(self.processes)

    def heal(self) -> None:
        """Every live member has its share, and all partitions have owners."""
        self.timeline.say("-- repair")
        self.is_calm = True
        self.connection_faults.repair()
        self.coordinator_faults.repair()
        self.poison.repair()
        for process in self.processes:
            process.end_silence()
            if process.is_paused:
                process.resume()
        began_at, complaint = self.timeline.now, "not looked yet"
        while complaint:
            late = self.timeline.now - began_at
            demand(late < self.plan.heal_seconds_max, f"not settled: {complaint}")
            if not self._fit():
                self.start(None)  # the others were about to leave, or to be fenced
            self.run(STEP_SECONDS)
            complaint = self.complaint()
        self.heal_seconds = self.timeline.now - began_at
        self.crash_judge.at_last()

    def _fit(self) -> list[Process]:
        running = self.running()
        return [process for process in running if not process.is_hung and not process.is_leaving]

    def complaint(self) -> str:
        group = self.group()
        if group is None or group.state != "Stable":
            return f"the group is {group.describe() if group else 'nowhere'}"
        ids = {member.member_id for member in group.describe().members}
        members = [process for process in self.running() if process.membership.member_id in ids]
        strangers = [process for process in self._fit() if process not in members]
        if strangers or len(members) < len(ids):
            return f"{sorted(ids)} are members, {', '.join(map(str, self.running()))} run"
        for process in members:
            if process.is_leaving:
                return f"{process} has not left"
            is_settled = process.is_settled or process.is_hung
            if not is_settled or process.membership.generation != group.generation:
                return f"{process} is not settled"
            if process.works_on() != self.quorum.part_of(process):
                return f"{process} has something else than the plan gives it"
        held = sorted(key for process in members for key in process.works_on())
        topics = frozenset[str]().union(*[process.membership.topics for process in members])
        wanted = [(topic, each) for topic in sorted(topics) for each in range(self.counts[topic])]
        return "" if held == wanted else f"{held} are read, of {wanted}"

    def __str__(self) -> str:
        plan, checks = self.plan, self.checks
        return (
            f"seed {self.seed}: {len(self.processes)} processes, {plan.member.assignors},"
            f" {len(checks.plans)} generations saved, {checks.handed_out} parts,"
            f" {checks.returns} returns, {checks.filters_refused} filters refused,"
            f" {checks.commits} commits, {checks.ends} ends,"
            f" {len(self.crash_judge.counted)} crashes counted, {self.poison.deaths} by poison,"
            f" {self.nemesis.counts.total()} faults, slot epoch {self.quorum.slot.epoch},"
            f" settled in {self.heal_seconds:.1f} s, {self.timeline.digest[:16]}"
        )


def drawn_world(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> World:
    return World(seed, draw_plan(seed, seconds, kinds), kinds)


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    world = drawn_world(seed, seconds=seconds, kinds=kinds)
    try:
        world.play()
    except Exception as error:
        return f"seed {seed}: {error!r}\nreplay it: {world.command} --trace"
    return None
