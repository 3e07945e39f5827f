"""Faults and users' requests in `controller_world`, each a method that picks its target by chance.

None checks whether it is a good moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import InvalidReplicationFactor
from raftmq.metadata.commands import (
    AlterTopicConfig,
    CancelMove,
    DeleteTopic,
    ElectLeader,
    FeatureLevel,
    PartitionId,
    PlanMove,
    ReassignPartition,
)
from raftmq.metadata.placement import creation, growth, hosts_of, place
from tests.simulation.fault_table import by_name, composed
from tests.unit.metadata.states import seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.metadata.apply.assignments import Assignments
    from raftmq.metadata.commands import AnyCommand
    from tests.simulation.controller_broker import SimulatedBroker
    from tests.simulation.controller_world import World

TOPICS_MAX = 6  # of a world, so that brokers have several roles each
PLANS_MAX = 8  # at once: more than may be under way


class ControllerNemesis:
    """One fault or request after the other, until the world is calm."""

    def __init__(self, world: World, *families: Mapping[str, Callable[[], None]]) -> None:
        self._world, self._random = world, world.random
        self._faults = list(composed(*families).values())  # a seed draws by its place

    def begin(self) -> None:
        self._world.after(self._random.uniform(0.1, 2.0), self._strike)

    def _strike(self) -> None:
        if not self._world.is_calm:
            self._random.choice(self._faults)()
            self.begin()


class BrokerFaults:
    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.random
        self.faults = by_name(
            self.kill, self.restart, self.pause, self.freeze, self.shut_down, self.lose_power,
            self.lose_disk, self.reset, self.stick, self.report_damage,
        )  # fmt: skip

    def _victim(self) -> SimulatedBroker:
        return self._random.choice(self._world.brokers)

    def _say(self, what: str, broker: SimulatedBroker) -> None:
        self._world.say(f"{what}: broker {broker.broker_id}")

    def kill(self) -> None:
        """The process dies; the controller usually sees its connection break."""
        victim = self._victim()
        self._say("kill", victim)
        victim.kill()
        self._after_death(victim, seconds_max=12.0)

    def restart(self) -> None:
        """It dies and is back before its session has expired."""
        victim = self._victim()
        self._say("restart", victim)
        victim.kill()
        self._after_death(victim, seconds_max=0.3)

    def lose_power(self) -> None:
        """One machine, or all of them at once."""
        everybody = self._random.random() < 0.2
        for victim in self._world.brokers if everybody else [self._victim()]:
            self._say("power cut", victim)
            victim.lose_power()
            self._world.after(self._random.uniform(0.1, 12.0), victim.start)

    def lose_disk(self) -> None:
        victim = self._world.brokers[0]
        self._say("new disk", victim)
        victim.lose_disk()
        self._after_death(victim, seconds_max=12.0)

    def _after_death(self, victim: SimulatedBroker, *, seconds_max: float) -> None:
        if self._random.random() < 0.8:
            self._world.reset_connection(victim.broker_id)
        self._world.after(self._random.uniform(0.01, seconds_max), victim.start)

    def pause(self) -> None:
        """Of all its threads: it is silent, yet its port accepts connections."""
        victim = self._victim()
        self._say("pause", victim)
        victim.pause(self._random.uniform(0.5, 15.0))

    def freeze(self) -> None:
        victim = self._victim()
        self._say("frozen disk", victim)
        victim.frozen_since = self._world.now
        life = victim.life

        def thaw() -> None:
            if victim.life == life:
                victim.frozen_since = None

        self._world.after(self._random.uniform(0.5, 10.0), thaw)

    def shut_down(self) -> None:
        victim = self._victim()
        self._say("controlled shutdown", victim)
        victim.wants_shutdown = True

    def reset(self) -> None:
        """A connection breaks, though its broker lives."""
        self._world.reset_connection(self._victim().broker_id)

    def stick(self) -> None:
        """It lives, and does not learn any more what is committed."""
        victim = self._victim()
        self._say("its metadata stands still", victim)
        victim.stuck_until = self._world.now + self._random.uniform(0.5, 20.0)

    def report_damage(self) -> None:
        victim = self._victim()
        self._say("damage is found", victim)
        victim.report_damage()


class ControllerFaults:
    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.random
        self.faults = by_name(self.depose, self.pause_controller)

    def depose(self) -> None:
        self._world.leave_office()
        self._world.after(self._random.uniform(0.0, 2.0), self._world.take_office)

    def pause_controller(self) -> None:
        self._world.say("the controller pauses")
        self._world.controller_paused_until = self._world.now + self._random.uniform(0.5, 15.0)


class UserRequests:
    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.random
        self._names = 0
        self.faults = by_name(
            self.create_topic,
            self.delete_topic,
            self.grow_topic,
            self.alter_topic,
            self.reassign,
            self.plan_moves,
            self.cancel_moves,
            self.elect_preferred,
        )

    def create_topics(self) -> None:
        for _ in range(3):
            self.create_topic()

    def create_topic(self) -> None:
        world = self._world
        if len(world.image.topics) >= TOPICS_MAX:
            return
        self._names += 1
        topic_id, partition_count = self._random.randbytes(16), self._random.randint(1, 4)
        replication_factor = self._random.randint(1, min(3, len(world.brokers)))
        configs = self._configs()
        assignments = self._place(partition_count, replication_factor)
        if assignments:
            self._propose_in_turn(creation(topic_id, f"topic-{self._names}", assignments, configs))

    def _place(self, partition_count: int, replication_factor: int) -> Assignments:
        """Nothing where too few brokers are active."""
        try:
            return place(
                hosts_of(self._world.image),
                partition_count=partition_count,
                replication_factor=replication_factor,
                chance=self._random,
            )
        except InvalidReplicationFactor as error:
            self._world.say(str(error))
            return ()

    def _propose_in_turn(self, commands: tuple[AnyCommand, ...]) -> None:
        for command in commands:
            self._world.propose(command)

    def _configs(self) -> dict[str, str]:
        return {
            "durability": self._random.choice(["fsync", "fsync", "page_cache"]),
            "min.insync.replicas": self._random.choice(["1", "2", "2", "3"]),
            "unclean.leader.election.enable": self._random.choice(["false", "false", "true"]),
        }

    def _topic(self) -> bytes | None:
        topics = sorted(self._world.image.topics)
        return self._random.choice(topics) if topics else None

    def delete_topic(self) -> None:
        topic = self._topic()
        if topic and self._random.random() < 0.3:
            self._world.propose(DeleteTopic(topic))

    def grow_topic(self) -> None:
        topic, image = self._topic(), self._world.image
        if topic is None:
            return
        first = image.partitions[PartitionId(topic, 0)]
        assignments = self._place(1, len(first.replicas))
        if assignments:
            count = image.topics[topic].partition_count
            self._propose_in_turn(growth(topic, assignments, first=count))

    def alter_topic(self) -> None:
        topic = self._topic()
        if topic:
            self._world.propose(AlterTopicConfig(topic, dict(self._configs())))

    def reassign(self) -> None:
        image = self._world.image
        if not image.partitions:
            return
        keys = sorted(image.moves) if self._random.random() < 0.5 else []  # planned otherwise
        key = self._random.choice(keys or sorted(image.partitions))
        epoch = image.partitions[key].partition_epoch
        self._world.propose(ReassignPartition(*key, epoch, self._replicas()))

    def _replicas(self) -> tuple[int, ...]:
        brokers = sorted(self._world.image.brokers)
        return tuple(self._random.sample(brokers, self._random.randint(1, min(3, len(brokers)))))

    def plan_moves(self) -> None:
        """As the request does, nothing before all know moves."""
        image = self._world.image
        if image.feature_level >= FeatureLevel.MOVES:
            keys = sorted(image.partitions)
            count = min(len(keys), self._random.randint(1, PLANS_MAX))
            for key in self._random.sample(keys, count):
                self._world.propose(PlanMove(*key, self._replicas(), *seen(image, key)))
            if self._random.random() < 0.5:  # somebody thinks better of it, maybe at once
                later = self._random.choice((0.2, 2.0))
                self._world.after(self._random.uniform(0.0, later), self.cancel_moves)

    def cancel_moves(self) -> None:
        """Planned or under way."""
        image = self._world.image
        for key in sorted({*image.moves, *image.moving}):
            if self._random.random() < 0.5:
                self._world.propose(CancelMove(*key, *seen(image, key)))

    def elect_preferred(self) -> None:
        image = self._world.image
        if image.partitions:
            self._world.propose(ElectLeader(*self._random.choice(sorted(image.partitions))))
