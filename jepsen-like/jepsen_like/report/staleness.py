"""Staleness of readers: a lower bound of the age of records that a poll did not bring. Pure.

A record counts from the first answer to any client that shows its existence; a reader is behind
when records at or after its position were known before it asked, and its poll brought none of them.
A reader that begins anew owes nothing older than that moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from jepsen_like.history.event import Type
from jepsen_like.report.operations import (
    ASSIGN,
    POLL,
    acknowledged_offsets,
    is_full_send,
    polled_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jepsen_like.report.operations import Operation


class KnownEnd:
    """The end of one key's log, as far as answers gave it away, over time."""

    def __init__(self) -> None:
        self.ends: list[int] = [0]
        self.times: list[float] = [0.0]

    def learn(self, end: int, time: float) -> None:
        if end > self.ends[-1]:
            self.ends.append(end)
            self.times.append(time)

    def known_after(self, place: int) -> float | None:
        """Since when it is known that a record lies at or after `place`."""
        later = bisect_right(self.ends, place)
        return self.times[later] if later < len(self.ends) else None


class Reader:
    """The position of one process in each of its keys, and since when it owes records there."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.since = 0.0

    def assign(self, operation: Operation, ends: dict[str, KnownEnd]) -> None:
        asked = operation.asked or {}
        keys = asked.get("keys") or ()
        from_end = asked.get("from") == "end"
        self.places = {key: ends[key].ends[-1] if from_end else 0 for key in keys}
        self.since = operation.end

    def move(self, key: str, offsets: list[int]) -> None:
        if offsets:
            self.places[key] = max(offsets) + 1

    def lag(self, ends: dict[str, KnownEnd], asked_at: float) -> float:
        worst = 0.0
        for key, place in self.places.items():
            if ends[key].ends[-1] > place and (known := ends[key].known_after(place)) is not None:
                worst = max(worst, asked_at - max(known, self.since))
        return worst


def lags(operations: Iterable[Operation]) -> list[tuple[float, float]]:
    """(time of the invocation, seconds behind at least) of each ok poll; by completion."""
    ends: dict[str, KnownEnd] = defaultdict(KnownEnd)
    readers: dict[int, Reader] = defaultdict(Reader)
    found = []
    for operation in operations:
        if operation.f == ASSIGN and operation.outcome is Type.OK:
            readers[operation.process].assign(operation, ends)
        elif operation.f == POLL and operation.outcome is Type.OK:
            reader = readers[operation.process]
            for key, offsets in polled_records(operation):
                reader.move(key, offsets)
            found.append((operation.begin, reader.lag(ends, operation.begin)))
        _learn(ends, operation)
    return found


def _learn(ends: dict[str, KnownEnd], operation: Operation) -> None:
    if is_full_send(operation):  # others may be lost, and then no poll can bring them
        for offset in acknowledged_offsets(operation):
            ends[operation.asked["key"]].learn(offset + 1, operation.end)
    for key, offsets in polled_records(operation):
        if offsets:
            ends[key].learn(max(offsets) + 1, operation.end)
    if operation.f == POLL and operation.outcome is Type.OK and operation.value:
        for key, high_watermark in operation.value.get("high_watermarks") or ():
            ends[key].learn(high_watermark, operation.end)
