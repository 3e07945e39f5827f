"""Members of a group in virtual time: whole consumers, on the coordinators of a broker.

Logs are lists that keep everything; requests cross a simulated network. Tests take
`autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.checkers.verdict import judge
from jepsen_like.history.event import RUN, WATCH, Type
from jepsen_like.history.recorder import Recorder
from jepsen_like.workloads.group_bench import GroupBench
from jepsen_like.workloads.group_member import MemberLife
from jepsen_like.workloads.group_plan import End, Fate, GroupPlan
from jepsen_like.workloads.witness import Notes
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.group.grouped import GROUP, Grouped, grouped, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jepsen_like.checkers.verdict import Verdict
    from jepsen_like.history.event import Event

PARTITIONS = 4
KEYS = [f"orders-{number}" for number in range(PARTITIONS)]
LONG = Fate(1_000.0, End.LEAVE)


class GroupRun:
    """Attributes:
    here: the cluster.
    stop: told to all members.
    """

    def __init__(self, here: Grouped, plan: GroupPlan, seed: int) -> None:
        self.here, self.plan, self.stop = here, plan, trio.Event()
        self.recorder = Recorder(trio.current_time)
        names = {here.world.topics["orders"].topic_id: "orders"}
        addresses = [str(broker.address) for broker in here.world.brokers.values()]
        self.bench = GroupBench(
            bootstrap=addresses,
            recorder=self.recorder,
            random=Random(seed),
            notes=Notes(self.recorder, names, {plan.name: KEYS}),
            network=lambda name: ClientNetwork(here.world.network.node(name)),
        )
        self._ends = dict.fromkeys(KEYS, 0)
        told = {"group": plan.name, "keys": KEYS, "commit": plan.commit}
        self.recorder.record(WATCH, Type.OK, "group", told)
        for number, key in enumerate(KEYS):
            for node in (1, 2, 3):
                led = {"key": key, "epoch": 1}
                if node == number % 3 + 1:
                    self.recorder.record("node", Type.INFO, "leads", led, node=node)

    @property
    def events(self) -> list[Event]:
        return self.recorder.events

    def append(self, partition: int, count: int = 1) -> None:
        """Values that rise, as if somebody had sent them."""
        key = KEYS[partition]
        values = list(range(self._ends[key], self._ends[key] + count))
        self._ends[key] += count
        asked = {"key": key, "acks": -1, "values": values, "is_idempotent": True}
        self.recorder.invoke(partition, "send", asked)
        self.here.append(partition, *map(str, values))
        self.recorder.record(partition, Type.OK, "send", {**asked, "offsets": values})

    def begin(self, name: str, fate: Fate = LONG) -> None:
        life = MemberLife(self.bench, self.plan, name)
        self.here.nursery.start_soon(life.run, self.stop, fate)

    def of(self, f: str, kind: Type = Type.INFO, *, process: str = "") -> list[Event]:
        return [
            event
            for event in self.events
            if event.f == f and event.type is kind and process in ("", event.process)
        ]

    def taken(self) -> int:
        return sum(len(event.value["offsets"]) for event in self.of("take", Type.OK))

    async def finish(self) -> Verdict:
        """All members come to the end; then they leave, and what they did is judged."""
        self.recorder.record(RUN, Type.INFO, "phase", "final")
        await until(lambda: not self.bench.progress.behind(self.plan.name, self._ends))
        self.stop.set()
        await until(lambda: len(self.of("gone") + self.of("crash")) == len(self.of("member")))
        return judge(self.events)


@asynccontextmanager
async def a_group_run(commit: str, *, seed: int = 1) -> AsyncIterator[GroupRun]:
    plan = GroupPlan(GROUP, ("orders",), commit, "cooperative_sticky")
    async with grouped(PARTITIONS) as here:
        yield GroupRun(here, plan, seed)
