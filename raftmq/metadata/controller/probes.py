"""Fast fencing: a process that died is told from one that is silent.

Owns the verdict: a connection was reset, and then refused twice, 50 ms apart. The kernel of a
machine that lives answers so for a process that is gone; a machine or a network that is gone
answers nothing, and that is left to the session. A kernel that buries a process ends its
connections one by one and may get to the listening socket last, so the first probe waits, too. A
controller that takes office saw no reset, because connections ended at its predecessor: it probes
every broker as if it had.

    reset -> 50 ms -> probe -> REFUSED -> 50 ms -> probe -> REFUSED -> dead
                        any other outcome: back to the beginning

Who lived a moment ago may be dead now: a reset that comes too soon after a series, or within one,
begins another as soon as there may be one. Otherwise that death would be a matter of the session.
A process that was registered anew is another one: what was asked of its predecessor says nothing.

Invariants: for one broker epoch at most one series is under way, and none begins within 1 s of
another. Of each broker at most one series is remembered, and none for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.controller.effects import ProbeBroker, ProbeOutcome

if TYPE_CHECKING:
    from raftmq.metadata.image import BrokerState

PROBE_PAUSE_SECONDS = 0.05
PROBE_SERIES_SECONDS = 1.0  # at most one series for each broker epoch in this time


class Death(NamedTuple):
    """The verdict: this incarnation does not run any more."""

    broker_id: int
    broker_epoch: int


@dataclass(slots=True)
class _Series:
    broker_epoch: int
    began_at: float
    awaited: ProbeBroker | None  # None: the series is over
    is_second: bool = False
    is_outdated: bool = False  # there was a reset after it began

    def is_recent(self, now: float) -> bool:
        return self.awaited is not None or now - self.began_at < PROBE_SERIES_SECONDS


class Probes:
    """The series of all brokers."""

    def __init__(self) -> None:
        self._series: dict[int, _Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def on_suspicion(self, broker: BrokerState, *, now: float) -> ProbeBroker | None:
        """A connection of this broker was reset: begin a series, now or as soon as one may."""
        self._series = {key: it for key, it in self._series.items() if it.is_recent(now)}
        last = self._series.get(broker.broker_id)
        if last is None or last.broker_epoch != broker.broker_epoch:
            return self._begin(broker.broker_id, broker.broker_epoch, at=now)
        if last.awaited:
            last.is_outdated = True
            return None
        return self._begin_again(broker.broker_id, last, now=now)

    def _begin(self, broker_id: int, broker_epoch: int, *, at: float) -> ProbeBroker:
        probe = ProbeBroker(broker_id, broker_epoch, at + PROBE_PAUSE_SECONDS)
        self._series[broker_id] = _Series(broker_epoch, at, probe)
        return probe

    def _begin_again(self, broker_id: int, last: _Series, *, now: float) -> ProbeBroker:
        at = max(now, last.began_at + PROBE_SERIES_SECONDS)
        return self._begin(broker_id, last.broker_epoch, at=at)

    def on_probe(
        self, probe: ProbeBroker, outcome: ProbeOutcome, *, now: float
    ) -> ProbeBroker | Death | None:
        """What follows from it: the next probe, a verdict, or nothing."""
        series = self._series.get(probe.broker_id)
        if series is None or series.awaited != probe:
            return None
        series.awaited = None
        if outcome is not ProbeOutcome.REFUSED:
            again = series.is_outdated
            return self._begin_again(probe.broker_id, series, now=now) if again else None
        if series.is_second:
            return Death(probe.broker_id, probe.broker_epoch)
        series.is_second = True
        series.awaited = probe._replace(not_before=now + PROBE_PAUSE_SECONDS)
        return series.awaited
