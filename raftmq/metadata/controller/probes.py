"""Fast failure detection: probes a broker's port to tell a dead process from a silent machine.

Owns the verdict "dead": a connection was reset, and then refused twice, 50 ms apart. Only the
kernel of a running machine answers so, for a process that has ended. A dead machine or network does
not answer, and is left to the session timeout. A kernel that tears down a process closes its
connections one by one and may close the listening socket last, so the first probe is delayed, too.
A new controller received no resets (connections ended at its predecessor), and so probes every
broker as if it had.

    reset -> 50 ms -> probe -> REFUSED -> 50 ms -> probe -> REFUSED -> dead
                        any other outcome: back to the beginning

A reset during a series, or too soon after one, begins another as soon as one is allowed: the
process may have died after it answered, and would otherwise be noticed only by its session timeout.
Outcomes about a former registration of the broker are ignored.

Invariants: for one broker epoch at most one series is in progress, and none begins within 1 s of
another. At most one series of each broker is kept, and none for long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.controller.effects import ProbeBroker, ProbeOutcome, ResumableScan
from raftmq.metadata.election import min_isr_of
from raftmq.topic_config import min_isr_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.controller.effects import ScanBudget
    from raftmq.metadata.image import BrokerState, MetadataImage


# Delay before each probe: long enough for a kernel to close the sockets of a dead process, short
# against the fail-over that waits for it.
PROBE_PAUSE_SECONDS = 0.05
# At most one series for each broker epoch in this time: a link that resets connections all the time
# must not make the controller connect all the time.
PROBE_SERIES_SECONDS = 1.0


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
        """A connection of this broker was reset: begin a series, now or as soon as allowed."""
        self._series = {key: it for key, it in self._series.items() if it.is_recent(now)}
        last = self._series.get(broker.broker_id)
        # No recent series, or of a former process.
        if last is None or last.broker_epoch != broker.broker_epoch:
            return self._begin(broker.broker_id, broker.broker_epoch, at=now)
        if last.awaited:  # decide when the outcome of the running series is known
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
        """The next probe, a verdict, or None."""
        series = self._series.get(probe.broker_id)
        if series is None or series.awaited != probe:  # of a series that was replaced since
            return None
        series.awaited = None
        if outcome is not ProbeOutcome.REFUSED:  # a listening process, or silence: not dead
            again = series.is_outdated
            return self._begin_again(probe.broker_id, series, now=now) if again else None
        if series.is_second:
            return Death(probe.broker_id, probe.broker_epoch)
        series.is_second = True
        series.awaited = probe._replace(not_before=now + PROBE_PAUSE_SECONDS)
        return series.awaited


# -- Unfit ----------------------------------------------------------------------------------------
# Brokers that are alive but unfit to lead: the disk is frozen, or the metadata does not advance.
#
# Owns which of them are fenced. For frozen disks it is one broker at a time, and none without which
# a partition that it hosts would fall below min ISR: two slow disks of three are better than one
# disk. (`Controller._unfit` also requires another broker that is fit.)
#
# A partition whose only in-sync replica is on the broker does not count: it is stuck either way.


# A broker that has not applied what was committed so long ago is stuck. Longer than the 6 s
# session: a node that was suspended, or installs a metadata snapshot, is behind for seconds.
BEHIND_SECONDS = 10.0


class Versions:
    """Which version of the metadata every broker should have applied by now."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when a version was the newest, in order
        self._expected = -1

    def note(self, version: int, *, now: float) -> None:
        """To be called at each tick, with the newest version."""
        # Versions that were the newest BEHIND_SECONDS ago.
        while self._seen and self._seen[0][0] <= now - BEHIND_SECONDS:
            self._expected = self._seen.popleft()[1]
        self._seen.append((now, version))

    def on_pause(self, seconds: float) -> None:
        """The controller itself did not run for so long: brokers could not report versions."""
        self._seen = deque((when + seconds, version) for when, version in self._seen)

    @property
    def expected(self) -> int:
        """-1 until this controller has been active for BEHIND_SECONDS."""
        return self._expected


class FrozenDisks:
    """Chooses which broker with a frozen disk may be fenced."""

    def __init__(self) -> None:
        self._checks: dict[int, _Check] = {}

    def choose(self, image: MetadataImage, frozen: Iterable[int], looks: ScanBudget) -> int | None:
        """The first one without which no partition falls below min ISR; None: none, or the check
        needs more calls.
        """
        frozen = sorted(frozen)
        self._checks = {
            broker_id: self._checks.get(broker_id) or _Check(image, broker_id)
            for broker_id in frozen
        }
        for broker_id in frozen:
            is_needed = self._checks[broker_id].is_needed(image, looks)
            if is_needed is None:  # the budget of this call is used up
                return None
            if not is_needed:  # no partition needs it: fence this one
                del self._checks[broker_id]
                return broker_id
        return None


class _Check:
    """A walk over the partitions that a broker hosts, in the order of their ids; it stops at one
    that needs the broker, and begins anew when that one does not need it any more.
    """

    def __init__(self, image: MetadataImage, broker_id: int) -> None:
        self._broker_id, self._walk = broker_id, _walk_of(image, broker_id)
        self._stopped_at: PartitionId | None = None

    def is_needed(self, image: MetadataImage, looks: ScanBudget) -> bool | None:
        """Whether a partition would fall below min ISR without it; None: not known yet."""
        if self._stopped_at is not None:
            # Cheap at each tick: the partition that needed it before probably still does.
            if self._is_needed_for(image, self._stopped_at):
                return True
            # Minutes later: partitions where the walk has been, and new ones, may need it now.
            self._stopped_at, self._walk = None, _walk_of(image, self._broker_id)
        for key in self._walk.go(looks):
            if self._is_needed_for(image, key):
                self._stopped_at = key
                return True
        return False if self._walk.is_over else None

    def _is_needed_for(self, image: MetadataImage, key: PartitionId) -> bool:
        partition = image.partitions.get(key)
        # It does not count there anyway.
        if partition is None or self._broker_id not in partition.isr:
            return False
        # Fenced and stopping brokers leave the ISR soon, and do not count.
        others = sum(image.is_active(b) for b in partition.isr if b != self._broker_id)
        topic = image.topics.get(key.topic_id)
        configured = min_isr_in(topic.configs if topic else {})
        min_isr = min_isr_of(partition, configured, image.feature_level)
        return others > 0 and others + 1 == min_isr


def _walk_of(image: MetadataImage, broker_id: int) -> ResumableScan[PartitionId]:
    """Sorted: the order of the map itself is another one in each process."""
    heap = list(image.hosted_by(broker_id))
    heapify(heap)  # sorting 100,000 ids at once would block the event loop
    return ResumableScan(heappop(heap) for _ in range(len(heap)))
