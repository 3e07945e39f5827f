"""The figures of a run: operations, outcomes, rates, errors, faults. Pure.

Rates and the worst lag are those under load; the final reads, which run after everything, count
only in the totals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.history.event import Type
from jepsen_like.report.operations import (
    acknowledged_offsets,
    operations_of,
    polled_count,
)
from jepsen_like.report.spans import end_of, faults_of, load_span, skipped_faults
from jepsen_like.report.staleness import lags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.event import Event
    from jepsen_like.report.operations import Operation


class Tally(msgspec.Struct, frozen=True):
    """How operations ended."""

    ok: int = 0
    fail: int = 0
    info: int = 0


class Figures(msgspec.Struct, frozen=True):
    """Attributes:
    seconds, load_seconds: of the whole run; of it with clients at work.
    tallies: by f, of clients.
    acked, polled: records, in the whole run.
    asked: operations that clients requested of brokers, without those of the watcher.
    share_ok: of these; 0 where there was none.
    worst_lag_seconds: by how much the reader that was furthest behind was behind, at least.
    errors: of clients, by name, the most frequent first.
    """

    seconds: float
    load_seconds: float
    tallies: dict[str, Tally]
    acked: int
    polled: int
    acked_per_second: float
    polled_per_second: float
    asked: int
    share_ok: float
    worst_lag_seconds: float
    faults: dict[str, int]
    skipped: dict[str, int]
    errors: dict[str, int]

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())


def figures_of(history: Sequence[Event]) -> Figures:
    operations = operations_of(history)
    asked = [operation for operation in operations if not operation.is_by_the_way]
    begin, end = load_span(history)
    load = [operation for operation in operations if begin <= operation.end <= end]
    load_seconds = end - begin
    return Figures(
        seconds=end_of(history),
        load_seconds=load_seconds,
        tallies=_tallies(operations),
        acked=_acked(operations),
        polled=sum(map(polled_count, operations)),
        acked_per_second=_acked(load) / load_seconds if load_seconds else 0.0,
        polled_per_second=sum(map(polled_count, load)) / load_seconds if load_seconds else 0.0,
        asked=len(asked),
        share_ok=sum(one.is_answered for one in asked) / len(asked) if asked else 0.0,
        worst_lag_seconds=max((lag for _, lag in lags(load)), default=0.0),
        faults=_by_count(Counter(fault.kind for fault in faults_of(history))),
        skipped=_by_count(skipped_faults(history)),
        errors=_by_count(Counter(map(error_name, asked))),
    )


def error_name(operation: Operation) -> str:
    """The first word of the client's error; empty where there is none."""
    return (operation.error or "").split(":")[0].strip()


def _tallies(operations: Sequence[Operation]) -> dict[str, Tally]:
    counts: dict[str, Counter[Type]] = defaultdict(Counter)
    for operation in operations:
        counts[operation.f][operation.outcome] += 1
    return {
        f: Tally(ok=found[Type.OK], fail=found[Type.FAIL], info=found[Type.INFO])
        for f, found in sorted(counts.items())
    }


def _acked(operations: Sequence[Operation]) -> int:
    return sum(len(acknowledged_offsets(operation)) for operation in operations)


def _by_count(counts: Counter[str]) -> dict[str, int]:
    return {name: n for name, n in sorted(counts.items(), key=_most_first) if name}


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
