"""Wall clocks that are wrong by two weeks, in whole clusters: nothing that was acknowledged goes.

One broker's clock is wrong while it follows, and while it leads and stamps what comes, and right
again; then all clocks jump together, and what is old by then goes everywhere. Topics keep their
records for the usual fourteen days.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from jepsen_like.planted import brokers
from tests.simulation.brokers.clients import Program, send
from tests.simulation.brokers.ledger import ACKS_ALL, Outcome
from tests.simulation.brokers.plan import TopicPlan
from tests.simulation.brokers.world import World
from tests.simulation.planting import demand_called, planted
from tests.simulation.raft.checks import Violation, demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.planting import Patch

DAY_MS = 86_400_000
ROUNDS_SECONDS = 10.0  # the logs are looked at every three
RECORDS = 40
TOPIC = TopicPlan(
    partition_count=6,
    replication_factor=3,
    configs={
        "durability": "fsync",
        "min.insync.replicas": "2",
        "segment.bytes": "1024",
        "index.interval.bytes": "0",
        "record.format": "columns",
        "retention.ms": str(14 * DAY_MS),
        "message.timestamp.type": "LogAppendTime",
    },
)


class WrongClocks:
    """Three brokers, and the clock of one of them is wrong."""

    def __init__(self, seed: int, *, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        world = self.world = World(seed, scenario=self._inject)
        world.tasks = []
        world.plan = world.plan._replace(
            topics=(TOPIC,), broker_count=3, voter_count=3, lag_seconds=5.0, ends_dark=False
        )
        world.hosts = world.hosts[:3]
        self.victim = world.hosts[seed % 3]

    async def _inject(self) -> None:
        *others, fresh = sorted(self.world.spots(), key=self._is_led_by_victim)
        demand(sum(map(self._is_led_by_victim, self.world.spots())) > 1, "it leads too little")
        await Filler(self.world, "p0", others).run()
        self.world.trace(f"the clock of {self.victim.name} is {self._ahead_ms} ms ahead")
        self.victim.clock_ahead_ms = self._ahead_ms
        await self._keep("one clock is wrong")
        await Filler(self.world, "p1", [fresh]).run()
        self._judge_alarms({self.victim.node_id})
        await self._depose_others()
        await self._keep("it leads more")
        self._judge_alarms({self.victim.node_id})
        self.victim.clock_ahead_ms = 0
        await self._keep("its clock is right again")
        self._judge_alarms(set())
        for host in self.world.hosts:
            host.clock_ahead_ms = 15 * DAY_MS
        self.world.trace("all clocks are two weeks ahead, and agree")
        await trio.sleep(2 * ROUNDS_SECONDS)
        self._judge_alarms(set())
        demand(all(start > 0 for start in self._starts().values()), f"kept: {self._starts()}")
        self.world.repair()
        await self.world.wait_whole("after the repairs")
        self.world.is_closing = True

    async def _keep(self, when: str) -> None:
        await trio.sleep(ROUNDS_SECONDS)
        gone = {name: start for name, start in self._starts().items() if start}
        demand(not gone, f"retired while {when}: {gone}")

    def _starts(self) -> dict[str, int]:
        return {
            f"{host.name}/{replica.log.name}": replica.log.log_start_offset
            for host in self.world.hosts
            if host.broker is not None
            for replica in host.broker.replicas.all()
        }

    def _judge_alarms(self, wrong: set[int]) -> None:
        for host in self.world.hosts:
            assert host.broker is not None, "all are there"
            told = {one.broker_id for one in host.broker.clock.wrong}
            demand(told == wrong, f"{host.name} says that the clocks of {told} are wrong")

    def _is_led_by_victim(self, spot: Spot) -> bool:
        state = self.world.state_of(spot)
        return state is not None and state.leader == self.victim.node_id

    async def _depose_others(self) -> None:
        """One after the other; some of what they have led is led by the victim for a while."""
        for host in self.world.hosts:
            if host is not self.victim:
                host.crash(power_lost=False)
                await host.wait_dead()
                await self._keep(f"{host.name} is dead")
                host.start()
                await self.world.wait_whole("after a kill")


class Filler(Program):
    """Sends enough to close a few segments of each of these partitions."""

    def __init__(self, world: World, name: str, spots: Sequence[Spot]) -> None:
        super().__init__(world, name)
        self._spots = spots

    async def run(self) -> None:
        async with self._cluster() as cluster:
            for spot in self._spots:
                for number in range(RECORDS):
                    values = (f"{self.name}/{spot.partition}/{number}".encode() * 8,)
                    sent = await send(self.world, cluster, spot, values, acks=ACKS_ALL, seconds=5.0)
                    demand(sent.outcome is Outcome.OK, f"{spot} takes nothing: {sent}")


@pytest.mark.parametrize(("seed", "ahead_ms"), [(1, 15 * DAY_MS), (2, -15 * DAY_MS)])
def test_one_wrong_clock_deletes_nothing(seed: int, ahead_ms: int) -> None:
    """It follows, and it leads: all replicas keep all they have, and every broker raises the
    alarm.
    """
    WrongClocks(seed, ahead_ms=ahead_ms).world.play()


def test_a_follower_that_retires_by_its_own_clock_is_noticed() -> None:
    """Planted: followers retire what is committed, and nobody asks whether the clock is right."""
    with noticed(brokers.followers_retire, "retired while one clock is wrong"):
        WrongClocks(1, ahead_ms=15 * DAY_MS).world.play()


def test_a_leader_that_stamps_by_its_own_clock_is_noticed() -> None:
    """Planted: what it took while its clock was behind looks old to whoever has the right time."""
    with noticed(brokers.stamp_by_the_own_clock, "retired while its clock is right again"):
        WrongClocks(2, ahead_ms=-15 * DAY_MS).world.play()


def test_a_leader_that_asks_nobody_is_noticed() -> None:
    """Planted: the leader alone retires, and believes its own clock."""
    with noticed(brokers.believe_the_own_clock, "retired while one clock is wrong"):
        WrongClocks(1, ahead_ms=15 * DAY_MS).world.play()


@contextmanager
def noticed(bug: Callable[[Patch], None], complaint: str) -> Iterator[None]:
    with planted(bug) as calls, pytest.raises(Violation, match=complaint):
        yield
    demand_called(bug.__name__, calls)
