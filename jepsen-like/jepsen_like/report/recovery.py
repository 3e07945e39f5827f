"""Recovery times of each fault: until acknowledged again, longest gap, until all in sync. Pure.

Owns how these three times of a fault are measured.

    begin          first acknowledgement            end (healed)          all in sync
      |----- ack_seconds ----->|                      |----- whole_seconds ----->|
      |------- gap_seconds: the longest silence ------|

A key takes part when it was acknowledged shortly before the fault, and its writers were at it: a
send was in flight at the begin or followed soon, or the first to follow had to wait. A client that
asks late and is answered at once says nothing about the time between. Silence counts for keys that
were written to steadily. Only sends that waited for all in-sync replicas count, and only those that
were invoked after the begin: sends in flight may have been appended already. The times of a fault
are about that fault only when nothing else was broken: others are not clean.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.history.event import WATCH, Type
from jepsen_like.report.operations import acknowledged_offsets, is_full_send, operations_of
from jepsen_like.report.spans import faults_of, is_run_to_its_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.event import Event
    from jepsen_like.report.operations import Operation
    from jepsen_like.report.spans import Fault

NEVER = math.inf
BEFORE_SECONDS = 5.0  # a key that was acknowledged within this time before a fault was well
SOON_SECONDS = 0.25  # an active writer sends, and is answered, within that
STEADY_SECONDS, STEADY_COUNT = 1.0, 5  # so many acknowledgements just before: each silence tells
WRITERS_MAX = 64  # of one key at the same time


class Recovery(msgspec.Struct, frozen=True):
    """Attributes:
    ack_seconds: until the slowest key took a record again; `NEVER`; None when no key can tell.
    gap_seconds: the longest silence of a key between begin and end; None likewise.
    whole_seconds: from the end until all replicas were in sync; `NEVER`; None when the next
        fault, or the end of the history, came first.
    is_clean: it took effect, no other fault was active, and none was being recovered from.
    """

    kind: str
    whom: str
    nodes: tuple[int, ...]
    begin: float
    end: float
    ack_seconds: float | None
    gap_seconds: float | None
    whole_seconds: float | None
    is_clean: bool


class Sends:
    """Attributes:
    tried: (begin, end) of all sends of a key, by begin.
    acked: (end, begin) of those that were acknowledged, by end.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.tried: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.acked: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for operation in filter(is_full_send, operations):
            key = operation.asked["key"]
            self.tried[key].append((operation.begin, operation.end))
            if acknowledged_offsets(operation):
                self.acked[key].append((operation.end, operation.begin))
        for times in self.tried.values():
            times.sort()

    def ack_seconds(self, fault: Fault) -> float | None:
        """Until the slowest of the keys that take part was acknowledged."""
        waits = (self._wait(key, fault) for key in self._keys_before(fault, BEFORE_SECONDS))
        return max((wait for wait in waits if wait is not None), default=None)

    def gap_seconds(self, fault: Fault) -> float | None:
        steady = self._keys_before(fault, STEADY_SECONDS, STEADY_COUNT)
        return max((self._gap(key, fault) for key in steady), default=None)

    def _keys_before(self, fault: Fault, seconds: float, count: int = 1) -> list[str]:
        return [
            key
            for key, acked in self.acked.items()
            if self._count(acked, fault.begin - seconds, fault.begin) >= count
        ]

    def _wait(self, key: str, fault: Fault) -> float | None:
        begin, tried = fault.begin, self.tried[key]
        place = bisect_right(tried, (begin, math.inf))
        if place == len(tried):
            return None
        acked_at = self._acked_at(key, begin)
        is_under_way = any(end > begin for _, end in tried[max(0, place - WRITERS_MAX) : place])
        first = tried[place][0]
        is_telling = is_under_way or first - begin <= SOON_SECONDS
        # A send from after the fault that had to wait was held up by something else.
        had_to_wait = first <= fault.end and acked_at - first > SOON_SECONDS
        return acked_at - begin if is_telling or had_to_wait else None

    def _acked_at(self, key: str, begin: float) -> float:
        acked = self.acked[key]
        later = range(bisect_right(acked, (begin, math.inf)), len(acked))
        return next((acked[place][0] for place in later if acked[place][1] > begin), NEVER)

    def _gap(self, key: str, fault: Fault) -> float:
        acked, tried = self.acked[key], self.tried[key]
        first = bisect_right(acked, (fault.begin, math.inf))
        last = bisect_left(acked, (fault.end, -math.inf))
        times = [fault.begin, *(end for end, _ in acked[first:last])]
        place = bisect_right(tried, (times[-1], math.inf))
        under_way = tried[max(0, place - WRITERS_MAX) : place + 1]
        if any(end > times[-1] and begin < fault.end for begin, end in under_way):
            times.append(fault.end)  # else no send was waiting in the rest of the time
        return max((later - former for former, later in pairwise(times)), default=0.0)

    @staticmethod
    def _count(acked: list[tuple[float, float]], begin: float, end: float) -> int:
        return bisect_right(acked, (end, math.inf)) - bisect_left(acked, (begin, -math.inf))


class Wholeness:
    """When all replicas of all partitions were in sync, as the watcher saw it."""

    def __init__(self, history: Sequence[Event]) -> None:
        seen = [
            event
            for event in history
            if event.process == WATCH and event.f == "isr" and event.type is Type.OK
        ]
        self.is_watched = bool(seen)
        self.times = [event.time for event in seen if _is_whole(event)]

    def first_from(self, time: float) -> float:
        """`NEVER` if it was not; at once where no watcher ran."""
        if not self.is_watched:
            return time
        place = bisect_left(self.times, time)
        return self.times[place] if place < len(self.times) else NEVER


def _is_whole(event: Event) -> bool:
    return bool(event.value["whole"] == event.value["partitions"])


def recoveries_of(history: Sequence[Event]) -> list[Recovery]:
    """Of each fault, by begin."""
    faults = faults_of(history)
    sends, wholeness = Sends(operations_of(history)), Wholeness(history)
    whole_at = [wholeness.first_from(fault.end) for fault in faults]
    is_complete = is_run_to_its_end(history)
    return [
        _recovery(
            fault,
            sends,
            whole_seconds=(
                _whole_seconds(place, faults, whole_at, is_complete=is_complete)
                if wholeness.is_watched
                else None
            ),
            is_clean=fault.is_felt and not _is_disturbed(place, faults, whole_at),
        )
        for place, fault in enumerate(faults)
    ]


def _recovery(
    fault: Fault, sends: Sends, *, whole_seconds: float | None, is_clean: bool
) -> Recovery:
    return Recovery(
        kind=fault.kind,
        whom=fault.whom,
        nodes=fault.nodes,
        begin=fault.begin,
        end=fault.end,
        ack_seconds=sends.ack_seconds(fault),
        gap_seconds=sends.gap_seconds(fault),
        whole_seconds=whole_seconds,
        is_clean=is_clean,
    )


def _whole_seconds(
    place: int, faults: list[Fault], whole_at: list[float], *, is_complete: bool
) -> float | None:
    fault, whole = faults[place], whole_at[place]
    others = (other for other in faults if other is not fault)
    if not fault.is_over or any(other.begin < whole and other.end > fault.end for other in others):
        return None
    return None if whole == NEVER and not is_complete else whole - fault.end


def _is_disturbed(place: int, faults: list[Fault], whole_at: list[float]) -> bool:
    """Another was on at the same time, or the cluster was not whole again after another."""
    fault = faults[place]
    return any(
        other is not fault and (other.is_during(fault) or other.end <= fault.begin < whole)
        for other, whole in zip(faults, whole_at, strict=True)
    )
