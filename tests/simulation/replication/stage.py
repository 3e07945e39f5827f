"""A world for one script: only the script injects faults, and every check runs.

Owns the steps that scripts share. One partition: its replicas are brokers 0, 1 and 2, unless the
script says otherwise, and 0 leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.commands import FenceBroker, ReassignPartition, UnfenceBroker
from tests.simulation.replication.leading import ACKS_ALL, Leading
from tests.simulation.replication.network import CONTROLLER
from tests.simulation.replication.plan import Plan, Topic
from tests.simulation.replication.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.image import PartitionState
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.ledger import Ledger


class Stage:
    def __init__(
        self,
        *,
        min_isr: int = 2,
        durability: str = "fsync",
        is_unclean_allowed: bool = False,
        replicas: tuple[int, ...] = (0, 1, 2),
    ) -> None:
        topic = Topic("orders", replicas, durability, min_isr, is_unclean_allowed)
        self.world = World(0, Plan(topics=(topic,)))
        self.world.begin()
        self.key = self.world.keys[0]

    @property
    def state(self) -> PartitionState:
        return self.world.state(self.key)

    @property
    def ledger(self) -> Ledger:
        return self.world.checks.ledger(self.key)

    def broker(self, broker_id: int) -> Broker:
        return self.world.brokers[broker_id]

    def leading(self, broker_id: int) -> Leading:
        """Its role: it believes to lead, rightly or not."""
        process = self.broker(broker_id).process
        role = process.roles.get(self.key) if process else None
        assert isinstance(role, Leading), f"{broker_id} does not lead"
        return role

    def produce(self, broker_id: int, acks: int = ACKS_ALL, *, seconds: float = 0.7) -> int:
        value = self.world.clients.produce(self.leading(broker_id), acks)
        self.run(seconds)
        return value

    def is_committed(self, value: int) -> bool:
        return any(record.value == value for record in self.ledger.records)

    def has(self, broker_id: int, value: int) -> bool:
        log = self.broker(broker_id).directory.logs[self.key]
        return any(record.value == value for record in log.records)

    # What breaks, and time

    def run(self, seconds: float) -> None:
        self.world.run(seconds)

    def run_until(self, is_so: Callable[[], bool], *, seconds_max: float = 15.0) -> None:
        end = self.world.timeline.now + seconds_max
        while not is_so():
            assert self.world.timeline.now < end, f"not within {seconds_max} s: {self.state}"
            self.run(0.05)

    def kill(self, broker_id: int) -> None:
        """And the controller hears of it."""
        self.broker(broker_id).kill()
        self.world.quorum.reset_connection(broker_id)
        self.run(1.0)

    def cut(self, one: int, *others: int) -> None:
        for other in others:
            self.world.network.cut.update({(one, other), (other, one)})

    def cut_from_controller(self, broker_id: int) -> None:
        self.cut(broker_id, CONTROLLER)

    def mend(self) -> None:
        self.world.network.cut.clear()

    def fence(self, broker_id: int) -> None:
        epoch = self.world.quorum.image.brokers[broker_id].broker_epoch
        self.world.quorum.commit(FenceBroker(broker_id, epoch))

    def unfence(self, broker_id: int) -> None:
        epoch = self.world.quorum.image.brokers[broker_id].broker_epoch
        self.world.quorum.commit(UnfenceBroker(broker_id, epoch))

    def move(self, *replicas: int) -> None:
        self.world.quorum.commit(ReassignPartition(*self.key, self.state.partition_epoch, replicas))

    def finish(self) -> None:
        """All that is broken is mended; all heals, and every promise is judged."""
        self.world.heal()
        self.world.judge()
