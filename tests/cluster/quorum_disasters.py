"""Disasters that a quorum of three must survive, one after the other, while clients work.

Owns what happens and to whom, how it is repaired, and how long nobody was served. The seed decides
whom it hits and when; processes and kernel take their own time. What was lost is for the ledger of
the cluster to say.
"""

from __future__ import annotations

import time
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.cluster.quorum_cluster import QuorumCluster

WORK_BEFORE = (20, 300)  # acknowledgements before it happens
DELAY_SECONDS_MAX = 0.05  # ... and then it happens at some moment
SETTLED = 0.7  # of the disasters find three nodes that are well; the others come too early
PAUSE_SECONDS = 2.5  # longer than any election timeout


class Verb(StrEnum):
    KILL = "kill"  # kill -9, then start again
    PAUSE = "pause"  # SIGSTOP, long enough for an election, then SIGCONT
    RESTART = "restart"  # a clean end, then start again


class Whom(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"
    TWO = "two"
    ALL = "all"
    EACH = "each"  # one after the other


class Disaster(NamedTuple):
    verb: str
    whom: Whom


class Outcome(NamedTuple):
    """Seconds until the first acknowledgement: after the blow if a majority was left standing,
    else after the repair."""

    disaster: Disaster
    seconds: float
    was_settled: bool  # else the one before was not overcome yet, and the time says nothing


ALL_DISASTERS = [Disaster(verb, whom) for verb in Verb for whom in Whom]


class Disasters:
    """`damage`, if given, happens to each victim of a kill while it is dead."""

    def __init__(
        self,
        cluster: QuorumCluster,
        *,
        seed: int,
        damage: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cluster, self._damage = cluster, damage
        self.random = Random(seed)
        self.outcomes: list[Outcome] = []

    def strike(self, disaster: Disaster) -> None:
        """Under load; over when everybody runs again and somebody is served."""
        was_settled = self.random.random() < SETTLED
        if was_settled:
            self._cluster.wait_settled()
        self._cluster.work_until(self.random.randint(*WORK_BEFORE))
        time.sleep(self.random.uniform(0.0, DELAY_SECONDS_MAX))
        victims = self._victims(disaster.whom)
        if disaster.whom is Whom.EACH:
            seconds = max(self._hit_and_repair(disaster.verb, [victim]) for victim in victims)
        else:
            seconds = self._hit_and_repair(disaster.verb, victims)
        self.outcomes.append(Outcome(disaster, seconds, was_settled))

    def _hit_and_repair(self, verb: str, victims: Collection[int]) -> float:
        """Seconds as in `Outcome`."""
        cluster = self._cluster
        survivors = sorted(set(cluster.nodes) - set(victims))
        happened = time.monotonic()
        self._hit(verb, victims)
        if len(survivors) > len(victims):
            served = cluster.wait_acknowledged(by=survivors, after=happened)
            self._repair(verb, victims, happened)
            return served - happened
        repaired = self._repair(verb, victims, happened)
        return cluster.wait_acknowledged(by=cluster.nodes, after=repaired) - repaired

    def _victims(self, whom: Whom) -> list[int]:
        nodes, leader = self._cluster.nodes, self._cluster.wait_leader()
        if whom is Whom.LEADER:
            return [leader]
        if whom is Whom.FOLLOWER:
            return [self.random.choice([node for node in nodes if node != leader])]
        if whom is Whom.TWO:
            return self.random.sample(nodes, 2)
        return self.random.sample(nodes, len(nodes))

    def _hit(self, verb: str, victims: Collection[int]) -> None:
        if verb == Verb.PAUSE:
            self._cluster.pause(victims)
        elif verb == Verb.RESTART:
            self._cluster.stop(victims)
        else:
            self._cluster.kill(victims)

    def _repair(self, verb: str, victims: Collection[int], happened: float) -> float:
        """When the victims were let go."""
        if verb == Verb.PAUSE:
            time.sleep(max(0.0, happened + PAUSE_SECONDS - time.monotonic()))
            let_go = time.monotonic()
            self._cluster.resume(victims)
            return let_go
        for node_id in victims:
            self._damage(node_id)
        let_go = time.monotonic()
        self._cluster.start(victims)
        self._cluster.wait_open(victims)
        return let_go
