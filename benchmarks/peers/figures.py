"""The table: which figures there are, medians of rounds, ratios, and which rows raftmq loses.

Pure. A figure is named as the load names it, `synced_` in front of those with a sync before the
acknowledgement.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN = "raftmq"
SYNCED = "synced_"

Figures = dict[str, float]


class Figure(NamedTuple):
    """`is_more_better`: None where there is nothing to win."""

    key: str
    title: str
    is_more_better: bool | None


def _of_records(prefix: str, suffix: str) -> list[Figure]:
    figures = []
    for key, title in (("alone", "one alone"), ("rate_100", "100/s"), ("rate_1000", "1,000/s")):
        for percentile in ("p50", "p99"):
            name = f"{prefix}{key}_{percentile}_ms"
            figures.append(Figure(name, f"{title}{suffix}: {percentile}, ms", False))
    figures.append(Figure(f"{prefix}produce_s", f"produce{suffix}, records/s", True))
    return figures


FIGURES = [
    *_of_records("", ""),
    Figure("consume_s", "consume, records/s", True),
    *_of_records(SYNCED, ", synced"),
    Figure("rate_1000_cpu_ms", "1,000/s: CPU of servers, ms a record", False),
    Figure("servers_mib", "memory of servers, MiB", False),
]
CONDITIONS = [
    Figure("late_100_p50_ms", "100/s: sent late, p50, ms", None),
    Figure("late_100_p99_ms", "100/s: sent late, p99, ms", None),
    Figure("late_1000_p50_ms", "1,000/s: sent late, p50, ms", None),
    Figure("late_1000_p99_ms", "1,000/s: sent late, p99, ms", None),
    Figure("waited_share", "waited for a core, of the time that they wanted one", None),
    Figure("others_cores", "cores that all other processes took", None),
    Figure("load_average", "load average before", None),
]


class Row(NamedTuple):
    """Attributes:
    values: by peer, medians.
    ratios: raftmq's value through the peer's.
    behind: how many times raftmq is worse than the best peer; below 1 it is the best.
    """

    figure: Figure
    values: dict[str, float]
    ratios: dict[str, float]
    behind: float | None


def medians(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """By peer, of the rounds in which it has the figure."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for peer, figures in one.items():
            for key, value in figures.items():
                found.setdefault(peer, {}).setdefault(key, []).append(value)
    return {
        peer: {key: median(values) for key, values in figures.items()}
        for peer, figures in found.items()
    }


def rows(figures: Sequence[Figure], by_peer: Mapping[str, Figures]) -> list[Row]:
    """The lost ones first, the worst of them on top; those that nobody has are left out."""
    made = [row(figure, by_peer) for figure in figures]
    return sorted((one for one in made if one.values), key=lambda one: -max(one.behind or 1, 1))


def row(figure: Figure, by_peer: Mapping[str, Figures]) -> Row:
    values = {peer: found[figure.key] for peer, found in by_peer.items() if figure.key in found}
    own = values.get(OWN)
    ratios = {peer: own / value for peer, value in values.items() if peer != OWN and own and value}
    worse = [1 / one if figure.is_more_better else one for one in ratios.values()]
    behind = max(worse) if worse and figure.is_more_better is not None else None
    return Row(figure, values, ratios, behind)


def is_lost(one: Row) -> bool:
    return one.behind is not None and one.behind > 1


def shown(value: float | None) -> str:
    """Three digits or more."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
