"""Fast fencing: a process that died is told from one that is silent.

Owns the verdict: a connection was reset, and then refused twice, 50 ms apart. The kernel of a
machine that lives answers so for a process that is gone; a machine or a network that is gone
answers nothing, and that is left to the session. A kernel that buries a process ends its
connections one by one and may get to the listening socket last, so the first probe waits, too. A
controller that takes office saw no reset, because connections ended at its predecessor: it probes
every broker as if it had.

    reset -> 50 ms -> probe -> REFUSED -> 50 ms -> probe -> REFUSED -> dead
                        any other outcome: back to the beginning

Invariant: for one broker at most one series is under way, and none begins within 10 s of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.controller.effects import ProbeBroker, ProbeOutcome

if TYPE_CHECKING:
    from raftmq.metadata.image import BrokerState

PROBE_PAUSE_SECONDS = 0.05
PROBE_SERIES_SECONDS = 10.0  # at most one series for each broker in this time


class Death(NamedTuple):
    """The verdict: this incarnation does not run any more."""

    broker_id: int
    broker_epoch: int


@dataclass(slots=True)
class _Series:
    began_at: float
    awaited: ProbeBroker | None  # None: the series is over
    is_second: bool = False


class Probes:
    """The series of all brokers."""

    def __init__(self) -> None:
        self._series: dict[int, _Series] = {}

    def on_suspicion(self, broker: BrokerState, *, now: float) -> ProbeBroker | None:
        """A connection of this broker was reset: begin a series, unless one began just now."""
        last = self._series.get(broker.broker_id)
        if last and (last.awaited or now - last.began_at < PROBE_SERIES_SECONDS):
            return None
        not_before = now + PROBE_PAUSE_SECONDS
        probe = ProbeBroker(broker.broker_id, broker.broker_epoch, not_before)
        self._series[broker.broker_id] = _Series(now, probe)
        return probe

    def on_probe(
        self, probe: ProbeBroker, outcome: ProbeOutcome, *, now: float
    ) -> ProbeBroker | Death | None:
        """What follows from it: the next probe, a verdict, or nothing."""
        series = self._series.get(probe.broker_id)
        if series is None or series.awaited != probe:
            return None
        series.awaited = None
        if outcome is not ProbeOutcome.REFUSED:
            return None
        if series.is_second:
            return Death(probe.broker_id, probe.broker_epoch)
        series.is_second = True
        series.awaited = probe._replace(not_before=now + PROBE_PAUSE_SECONDS)
        return series.awaited
