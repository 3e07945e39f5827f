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

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from raftmq.config import min_isr_in
from raftmq.metadata.controller.effects import ProbeBroker, ProbeOutcome, Walk
from raftmq.metadata.election import min_isr_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.controller.effects import Looks
    from raftmq.metadata.image import BrokerState, MetadataImage


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


# -- Unfit ----------------------------------------------------------------------------------------
# Brokers that live and must not rule: their disk is frozen, or their metadata stands still.
#
# Owns who is fenced for that. It takes somebody else who is fit: else all would stop. For frozen
# disks it is one broker at a time, and none without which a partition that it hosts would be below
# min ISR: two slow disks of three are better than one disk.
#
# A partition that the broker holds alone does not count: it is stuck either way.


BEHIND_SECONDS = 10.0  # a broker that does not know what was committed by then stands still


class Versions:
    """Which version of the metadata everybody should know by now."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when a version was the newest, in order
        self._expected = -1

    def note(self, version: int, *, now: float) -> None:
        """Called at each tick, with the newest version."""
        while self._seen and self._seen[0][0] <= now - BEHIND_SECONDS:
            self._expected = self._seen.popleft()[1]
        self._seen.append((now, version))

    def on_pause(self, seconds: float) -> None:
        """The controller did not listen for so long: nobody could tell what he knows."""
        self._seen = deque((when + seconds, version) for when, version in self._seen)

    @property
    def expected(self) -> int:
        """-1 before the controller is long enough in office."""
        return self._expected


class FrozenDisks:
    """Which one of the brokers whose disks are frozen may be fenced."""

    def __init__(self) -> None:
        self._checks: dict[int, _Check] = {}

    def choose(self, image: MetadataImage, frozen: Iterable[int], looks: Looks) -> int | None:
        """The first without which no partition is below min ISR; None: nobody, or not known yet."""
        frozen = sorted(frozen)
        self._checks = {
            broker_id: self._checks.get(broker_id) or _Check(image, broker_id)
            for broker_id in frozen
        }
        for broker_id in frozen:
            is_needed = self._checks[broker_id].is_needed(image, looks)
            if is_needed is None:
                return None
            if not is_needed:
                del self._checks[broker_id]
                return broker_id
        return None


class _Check:
    """A walk through what a broker hosts, which stops where the broker is needed."""

    def __init__(self, image: MetadataImage, broker_id: int) -> None:
        self._broker_id = broker_id
        self._walk: Walk[PartitionId] = Walk(image.hosted_by(broker_id))
        self._stopped_at: PartitionId | None = None

    def is_needed(self, image: MetadataImage, looks: Looks) -> bool | None:
        """Whether a partition would be below min ISR without it; None: not known yet."""
        if self._stopped_at is not None and self._is_needed_for(image, self._stopped_at):
            return True
        self._stopped_at = None
        for key in self._walk.go(looks):
            if self._is_needed_for(image, key):
                self._stopped_at = key
                return True
        return False if self._walk.is_over else None

    def _is_needed_for(self, image: MetadataImage, key: PartitionId) -> bool:
        partition = image.partitions.get(key)
        if partition is None or self._broker_id not in partition.isr:
            return False
        # Who is fenced or stops leaves the ISR soon.
        others = sum(image.is_active(b) for b in partition.isr if b != self._broker_id)
        topic = image.topics.get(key.topic_id)
        min_isr = min_isr_of(partition, min_isr_in(topic.configs if topic else {}))
        return others > 0 and others + 1 == min_isr
