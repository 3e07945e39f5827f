"""Disasters that three brokers must survive, one after the other, while clients work.

Owns what happens and to whom, how it is repaired, and how long clients had to wait. The seed
decides whom it hits and when; processes and kernel take their own time. What was lost is for the
ledger of the cluster to say.
"""

from __future__ import annotations

import time
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection

    from tests.cluster.broker_cluster import BrokerCluster

WORK_BEFORE = (20, 300)  # acknowledgements before it happens
DELAY_SECONDS_MAX = 0.05  # ... and then it happens at some moment
RELAPSES = 0.25  # of the damaged are hit again while they start
RELAPSE_SECONDS_MAX = 1.5
SETTLED = 0.7  # of the disasters find all replicas in sync; the others come too early
PAUSE_SECONDS = 20.0


class Verb(StrEnum):
    KILL = "kill"  # kill -9, then start again
    PAUSE = "pause"  # SIGSTOP, then SIGCONT
    STOP = "stop"  # SIGTERM, then start again


class Whom(StrEnum):
    LEADER = "leader"  # of some partition
    FOLLOWER = "follower"  # who leads nothing
    CONTROLLER = "controller"
    TWO = "two"
    ALL = "all"
    EACH = "each"  # one after the other


class Disaster(NamedTuple):
    verb: str
    whom: Whom


class Outcome(NamedTuple):
    """Seconds after the blow if a majority was left standing, else after the repair.

    Attributes:
        leaderless: until every partition was led by one who was well.
        unserved: the longest time without an acknowledgement in some partition.
        stopping: of a clean end.
        errors: that clients were told meanwhile.
    """

    disaster: Disaster
    leaderless: float
    unserved: float
    stopping: float
    errors: Counter[str]
    was_settled: bool  # else the one before was not overcome yet, and the times say nothing


_SOME = (Whom.LEADER, Whom.FOLLOWER, Whom.CONTROLLER, Whom.ALL)
ALL_DISASTERS = [
    *(Disaster(verb, whom) for verb in Verb for whom in _SOME),
    Disaster(Verb.KILL, Whom.TWO),
    Disaster(Verb.KILL, Whom.EACH),
]


class Disasters:
    """`damage`, if given, happens to the victims of a kill while they are dead."""

    def __init__(
        self,
        cluster: BrokerCluster,
        *,
        seed: int,
        pause_seconds: float = PAUSE_SECONDS,
        damage: Callable[[Collection[int]], None] | None = None,
    ) -> None:
        self._cluster, self._pause_seconds, self._damage = cluster, pause_seconds, damage
        self.random = Random(seed)
        self.outcomes: list[Outcome] = []

    def strike(self, disaster: Disaster, *, settled: float = SETTLED) -> Outcome:
        """Under load; over when everybody runs again and every partition serves."""
        cluster = self._cluster
        was_settled = self.random.random() < settled
        if was_settled:
            cluster.wait_whole()
        cluster.work_until(self.random.randint(*WORK_BEFORE))
        time.sleep(self.random.uniform(0.0, DELAY_SECONDS_MAX))
        victims = self._victims(disaster.whom)
        errors = cluster.ledger.errors.copy()
        blows = [[victim] for victim in victims] if disaster.whom is Whom.EACH else [victims]
        seconds = [self._hit_and_repair(disaster.verb, blow) for blow in blows]
        leaderless, unserved, stopping = map(max, zip(*seconds, strict=True))
        told = cluster.ledger.errors - errors
        outcome = Outcome(disaster, leaderless, unserved, stopping, told, was_settled)
        self.outcomes.append(outcome)
        return outcome

    def _victims(self, whom: Whom) -> list[int]:
        view = self._cluster.view()
        leaders, controller = set(view.leaders.values()), view.controller_id
        match whom:
            case Whom.LEADER:  # rather one who is not the controller, too
                candidates = sorted(leaders - {controller}) or [controller]
            case Whom.FOLLOWER:
                candidates = sorted(set(self._cluster.nodes) - leaders)
            case Whom.CONTROLLER:
                candidates = [controller]
            case Whom.TWO:
                return self.random.sample(self._cluster.nodes, 2)
            case Whom.ALL | Whom.EACH:
                return self.random.sample(self._cluster.nodes, len(self._cluster.nodes))
        return [self.random.choice(candidates)]

    def _hit_and_repair(self, verb: str, victims: Collection[int]) -> tuple[float, float, float]:
        """The seconds of an `Outcome`."""
        cluster = self._cluster
        survivors = sorted(set(cluster.nodes) - set(victims))
        happened = time.monotonic()
        self._hit(verb, victims)
        stopping = time.monotonic() - happened if verb == Verb.STOP else 0.0
        since = happened
        is_majority_left = len(survivors) > len(victims)
        if is_majority_left:
            led = cluster.wait_led(survivors, after=happened)
            cluster.wait_served(after=happened)
        repaired = self._repair(verb, victims, happened)
        if not is_majority_left:
            led = cluster.wait_led(cluster.nodes, after=repaired)
            since = repaired
        cluster.wait_served(after=time.monotonic())
        return led - since, cluster.unserved_seconds(since=since), stopping

    def _hit(self, verb: str, victims: Collection[int]) -> None:
        if verb == Verb.PAUSE:
            self._cluster.pause(victims)
        elif verb == Verb.STOP:
            self._cluster.terminate(victims)
        else:
            self._cluster.kill(victims)

    def _repair(self, verb: str, victims: Collection[int], happened: float) -> float:
        """When the victims were let go."""
        if verb == Verb.PAUSE:
            time.sleep(max(0.0, happened + self._pause_seconds - time.monotonic()))
            let_go = time.monotonic()
            self._cluster.resume(victims)
            return let_go
        if self._damage is not None:
            self._damage(victims)
            if self.random.random() < RELAPSES:
                self._relapse(victims, self._damage)
        let_go = time.monotonic()
        self._cluster.start(victims)
        self._cluster.wait_ready(victims)
        return let_go

    def _relapse(self, victims: Collection[int], damage: Callable[[Collection[int]], None]) -> None:
        """Whoever recovers must survive, too."""
        self._cluster.start(victims)
        time.sleep(self.random.uniform(0.0, RELAPSE_SECONDS_MAX))
        self._cluster.kill(victims)
        damage(victims)
