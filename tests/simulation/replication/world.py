"""The world of replication under virtual time: one seed is one replay of leaders and followers.

Owns the acts: brokers start, clients work while faults are injected, then all is repaired and must
heal within HEAL_SECONDS_MAX, and every promise is judged. The rules of leaders and followers, of
the controller and of the metadata are the real ones; disks, network, clock and quorum are
simulated.

    python -m tests.simulation.replication --seed N
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from raftmq.metadata.commands import (
    NO_BROKER,
    SUPPORTED_LEVEL,
    CreateTopic,
    ElectionKind,
    ElectLeader,
    PartitionId,
    RecoveryState,
)
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.checks import Checks
from tests.simulation.replication.clients import Clients
from tests.simulation.replication.faults import DiskFaults, LinkFaults, ProcessFaults, Victims
from tests.simulation.replication.leading import ACKS_ALL, Leading
from tests.simulation.replication.ledger import demand
from tests.simulation.replication.network import Network, Weather
from tests.simulation.replication.plan import SECONDS, Plan, draw_plan
from tests.simulation.replication.quorum import Quorum
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.transactions import Transactions
from tests.simulation.timeline_nemesis import TimelineNemesis

if TYPE_CHECKING:
    from raftmq.metadata.image import PartitionState
    from tests.simulation.replication.process import Role

START_SECONDS_MAX, HEAL_SECONDS_MAX = 5.0, 40.0
TRANSACTIONAL_STRIKE_SECONDS = 1.2
STEP_SECONDS = 0.5  # between checks whether all is healed


class World:
    """Attributes:
    keys: the partitions.
    is_calm: nothing breaks, and the metadata arrives soon.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed, self.plan = seed, plan
        self.timeline, self.is_calm = Timeline(), True
        self.touched: list[Role] = []
        self.keys: list[PartitionId] = []
        self.checks = Checks(self)
        self.network = Network(self.timeline, self.chance("network"), Weather())
        self.quorum = Quorum(self, self.chance("quorum"))
        self.brokers = [
            Broker(self, number, self.chance(f"broker {number}"))
            for number in range(plan.broker_count)
        ]
        self.clients = Clients(self, self.chance("clients"))
        self.transactions = (
            Transactions(self, self.chance("transactions")) if plan.has_transactions else None
        )
        self.nemesis = self._nemesis(self.chance("faults"))
        self._knocks: dict[PartitionId, int] = {}
        self.heal_seconds = 0.0

    def _nemesis(self, chance: Random) -> TimelineNemesis:
        victims = Victims(self, chance)
        processes = ProcessFaults(self, chance, victims)
        return TimelineNemesis(
            self,
            chance,
            processes.faults,
            DiskFaults(self, chance, victims, processes).faults,
            LinkFaults(self, chance, victims).faults,
        )

    def chance(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def run(self, seconds: float) -> None:
        self.timeline.run(seconds, self._after_each)

    def _after_each(self) -> None:
        if self.touched:
            self.checks.after_event(self.touched)
            self.touched.clear()

    def min_isr(self, key: PartitionId) -> int:
        topic = self.plan.topics[key.topic_id[0]]
        return min(topic.min_isr, len(topic.replicas))

    def is_unclean_allowed(self, key: PartitionId) -> bool:
        return self.plan.topics[key.topic_id[0]].is_unclean_allowed

    def state(self, key: PartitionId) -> PartitionState:
        return self.quorum.image.partitions[key]

    # The acts

    def play(self) -> None:
        """
        Raises:
            Violation: a promise was broken; or any error of the code under test.
        """
        self.begin()
        self.network.weather, self.is_calm = self.plan.weather, False
        self.clients.act()
        self.nemesis.strike()
        self.run(self.plan.seconds)
        self.heal()
        self.judge()

    def begin(self) -> None:
        for broker in self.brokers:
            broker.start()
        self.quorum.take_office()
        while not self._is_in_service():
            demand(self.timeline.now < START_SECONDS_MAX, "brokers do not come into service")
            self.run(STEP_SECONDS / 5)
        for number, topic in enumerate(self.plan.topics):
            topic_id = bytes([number]) * 16
            configs = {
                "durability": topic.durability,
                "min.insync.replicas": str(topic.min_isr),
                "unclean.leader.election.enable": str(topic.is_unclean_allowed).lower(),
            }
            self.quorum.commit(CreateTopic(topic_id, topic.name, (topic.replicas,), configs))
            self.keys.append(PartitionId(topic_id, 0))
        self.run(STEP_SECONDS)
        if self.transactions is not None:
            self.transactions.begin()

    def _is_in_service(self) -> bool:
        image = self.quorum.image
        are_active = all(image.is_active(broker.broker_id) for broker in self.brokers)
        return are_active and image.feature_level == SUPPORTED_LEVEL

    def heal(self) -> None:
        """All is in service, new records go through, all replicas are alike."""
        self.repair()
        began_at = self.timeline.now
        complaints = ["not looked yet"]
        while complaints:
            late = self.timeline.now - began_at
            demand(late < HEAL_SECONDS_MAX, f"not healed: {complaints}")
            self._elect_the_lost()
            self._knock()
            self.run(STEP_SECONDS)
            complaints = self.complaints()
        self.heal_seconds = self.timeline.now - began_at

    def repair(self) -> None:
        self.timeline.say("-- repair")
        self.is_calm, self.network.weather, self.clients.is_closing = True, Weather(), True
        if self.transactions is not None:
            self.transactions.is_closing = True
        self.network.cut.clear()
        for broker in self.brokers:
            broker.resume()
            broker.frozen_until = broker.slow_until = 0.0
            broker.start()

    def on_stopped(self, broker: Broker) -> None:
        self.timeline.after(broker.chance.random() * 3.0, broker.start)

    def _elect_the_lost(self) -> None:
        """An operator's unclean election, where no replica may be elected cleanly."""
        for key in self.keys:
            state = self.state(key)
            active = all(map(self.quorum.image.is_active, state.replicas))
            if active and state.leader == NO_BROKER and not (state.isr or state.eligible):
                self.quorum.commit(ElectLeader(*key, ElectionKind.UNCLEAN))

    def _knock(self) -> None:
        """A record for each partition, until the last one is acknowledged."""
        for key in self.keys:
            role = self.leader(key)
            if role is not None and not self._is_answered(key):
                self._knocks[key] = self.clients.produce(role, ACKS_ALL)

    def _is_answered(self, key: PartitionId) -> bool:
        return self._knocks.get(key) in self.checks.ledger(key).acknowledged

    def leader(self, key: PartitionId) -> Leading | None:
        """The one that is elected, if it knows."""
        leader, epoch = self.state(key).leader, self.state(key).leader_epoch
        process = self.brokers[leader].process if leader != NO_BROKER else None
        role = process.roles.get(key) if process else None
        return role if isinstance(role, Leading) and role.leader_epoch == epoch else None

    # Health

    def complaints(self) -> list[str]:
        found = [
            f"{self.quorum.image.brokers[broker.broker_id]} is out of service"
            for broker in self.brokers
            if not self.quorum.image.is_active(broker.broker_id)
        ]
        for key in self.keys:
            state, role = self.state(key), self.leader(key)
            is_full = set(state.isr) == set(state.replicas)
            if role is None or not is_full or state.recovery_state != RecoveryState.RECOVERED:
                found.append(f"{state}")
            else:
                found += self._differences(key, role)
        return found + (self.transactions.complaints() if self.transactions else [])

    def _differences(self, key: PartitionId, role: Leading) -> list[str]:
        found, best = [], role.log
        if not self._is_answered(key):
            found.append(f"no progress in {key}")
        for broker_id in self.state(key).replicas:
            log = self.brokers[broker_id].directory.logs[key]
            start = max(log.start, best.start)  # retention is each replica's own business
            same = log.end == best.end and log.slice(start, log.end) == best.slice(start, log.end)
            if not (same and log.high_watermark == log.held == best.end):
                found.append(
                    f"{broker_id}: {log.start} to {log.end}, hw {log.high_watermark}, held"
                    f" {log.held}, the leader has {best.start} to {best.end}"
                )
        return found

    # The judgement

    def judge(self) -> None:
        """Nothing that was promised is missing."""
        for key in self.keys:
            role = self.leader(key)
            assert role is not None, f"nobody leads {key}"
            self._judge_promises(key, role)
        if self.transactions is not None:
            self.transactions.judge()

    def _judge_promises(self, key: PartitionId, role: Leading) -> None:
        ledger, log = self.checks.ledger(key), role.log
        self.checks.check_start(role)
        there = {record.value: at for at, record in enumerate(log.records, log.start)}
        demand(len(there) == len(log.records), "a value is there twice")
        for value, offset in ledger.acknowledged.items():
            is_there = offset < log.start or there.get(value) == offset
            demand(is_there, f"value {value} was acknowledged at {offset}, and is lost")
        for offset, record in ledger.seen.items():
            is_there = offset < log.start or there.get(record.value) == offset
            demand(is_there, f"{record} was read at {offset}, and is lost")
        undead = self.checks.refused & there.keys()
        demand(not undead, f"values {undead} were refused for certain, and are there")

    # Telling

    def __str__(self) -> str:
        clients, plan = self.clients.outcomes, self.plan
        return (
            f"seed {self.seed}: {plan.broker_count} brokers, {len(plan.topics)} topics,"
            f" {clients['ok']} ok, {clients['failed']} failed, {clients['unknown']} unknown,"
            f" {self.nemesis.counts.total()} faults, {self.checks.elections} elections,"
            f" {self.checks.unclean_elections} unclean, healed in {self.heal_seconds:.1f} s,"
            f" {self.timeline.digest[:16]}"
        )


def drawn_world(
    seed: int,
    *,
    seconds: float = SECONDS,
    kinds: tuple[str, ...] = (),
    has_transactions: bool = False,
) -> World:
    plan = draw_plan(seed, seconds, kinds)
    if has_transactions:  # with more time between faults, or hardly any would be committed
        plan = replace(plan, has_transactions=True, strike_seconds=TRANSACTIONAL_STRIKE_SECONDS)
    return World(seed, plan)


def command_of(
    seed: int, *, seconds: float, kinds: tuple[str, ...], has_transactions: bool = False
) -> str:
    """That shows this world once more."""
    faults = f" --kinds {','.join(kinds)}" if kinds else ""
    faults += " --transactions" if has_transactions else ""
    return f"python -m tests.simulation.replication --seed {seed} --seconds {seconds:g}{faults}"


def failure(
    seed: int,
    *,
    seconds: float = SECONDS,
    kinds: tuple[str, ...] = (),
    has_transactions: bool = False,
) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    try:
        drawn_world(seed, seconds=seconds, kinds=kinds, has_transactions=has_transactions).play()
    except Exception as error:
        again = command_of(seed, seconds=seconds, kinds=kinds, has_transactions=has_transactions)
        return f"seed {seed}: {error!r}\nreplay it: {again} --trace"
    return None
