"""Disasters that a group must survive, one after the other, while it reads what producers write.

Owns what happens to whom and when, and how it is repaired. The seed decides that; processes and
kernel take their own time. What went wrong is for the verdict of the cluster to say.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.group_cluster import SESSION_MS
from tests.cluster.group_ownership import Blow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from tests.cluster.group_cluster import GroupCluster

SPREAD_SECONDS = 1.0  # within which everything begins
SETTLED = 0.7  # of the disasters find the group whole; the others come too early
# A member that was killed is replaced before or after its session is over.
REPLACED_SECONDS = (0.0, 9.0)
# Longer than a session; the group deals anew without it.
STOPPED_SECONDS = (SESSION_MS / 1000 + 0.5, SESSION_MS / 1000 + 4.0)
DOWN_SECONDS = (0.5, 8.0)  # of a broker
COORDINATOR, ANY_BROKER = "coordinator", "any broker"


class Disaster(NamedTuple):
    """Attributes:
    blows: one member each.
    broker: which one is killed, too; empty: none.
    """

    blows: tuple[Blow, ...]
    broker: str = ""

    def __str__(self) -> str:
        return " + ".join([*self.blows, *filter(None, [self.broker])])


_KILLED, _STOPPED, _LEFT = Blow.KILLED, Blow.STOPPED, Blow.LEFT
ALL_DISASTERS = [
    Disaster((_KILLED,)),
    Disaster((_STOPPED,)),
    Disaster((_LEFT,)),
    Disaster((_KILLED, _STOPPED, _LEFT)),
    Disaster((_STOPPED, _STOPPED)),
    Disaster((), COORDINATOR),
    Disaster((), ANY_BROKER),
    Disaster((_KILLED,), COORDINATOR),
    Disaster((_STOPPED,), COORDINATOR),
    Disaster((_LEFT,), COORDINATOR),
    Disaster((_KILLED, _STOPPED), ANY_BROKER),
]


class Outcome(NamedTuple):
    """Attributes:
    healed: seconds after the last repair until the group was whole, and had committed what was
        written since in all partitions.
    """

    disaster: Disaster
    healed: float


class _Step(NamedTuple):
    at: float
    act: Callable[[], None]


class GroupDisasters:
    def __init__(self, cluster: GroupCluster) -> None:
        self._cluster = cluster
        self.random: Random = cluster.random
        self.outcomes: list[Outcome] = []
        self._down_since = 0.0

    def strike(self, disaster: Disaster) -> Outcome:
        """Under load; over when everybody is there again and reads."""
        cluster = self._cluster
        if self.random.random() < SETTLED:
            cluster.wait_whole()
            cluster.wait_progress()
        steps = sorted(self._steps(disaster), key=lambda step: step.at)
        began_at = time.monotonic()
        for step in steps:
            time.sleep(max(0.0, began_at + step.at - time.monotonic()))
            step.act()
        repaired_at = time.monotonic()
        cluster.wait_whole()
        cluster.wait_progress()
        outcome = Outcome(disaster, time.monotonic() - repaired_at)
        self.outcomes.append(outcome)
        return outcome

    def _steps(self, disaster: Disaster) -> Iterator[_Step]:
        victims = self.random.sample(self._cluster.members.running, len(disaster.blows))
        for blow, victim in zip(disaster.blows, victims, strict=True):
            yield from self._member_steps(blow, victim)
        if disaster.broker:
            node_id = self._broker(disaster.broker)
            at = self._draw((0.0, SPREAD_SECONDS))
            yield _Step(at, partial(self._kill_broker, node_id))
            yield _Step(at + self._draw(DOWN_SECONDS), partial(self._restart_broker, node_id))

    def _member_steps(self, blow: Blow, victim: int) -> Iterator[_Step]:
        members, at = self._cluster.members, self._draw((0.0, SPREAD_SECONDS))
        if blow is Blow.KILLED:
            yield _Step(at, partial(members.strike_down, victim))
            yield _Step(at + self._draw(REPLACED_SECONDS), self._replace)
        elif blow is Blow.STOPPED:
            yield _Step(at, partial(members.stop, victim))
            yield _Step(at + self._draw(STOPPED_SECONDS), partial(members.go_on, victim))
        else:
            yield _Step(at, partial(members.leave, [victim]))
            yield _Step(at, self._replace)

    def _replace(self) -> None:
        self._cluster.start_member()

    def _broker(self, which: str) -> int:
        if which == COORDINATOR:
            return self._cluster.coordinator()
        return self.random.choice(self._cluster.brokers.nodes)

    def _kill_broker(self, node_id: int) -> None:
        self._down_since = self._cluster.kill_broker(node_id)

    def _restart_broker(self, node_id: int) -> None:
        self._cluster.restart_broker(node_id, down_since=self._down_since)

    def _draw(self, between: Sequence[float]) -> float:
        return self.random.uniform(*between)
