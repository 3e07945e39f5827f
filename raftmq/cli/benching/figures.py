"""Figures of a bench: quantiles of latencies, rates, and how they are printed.

A latency is in seconds while it is measured, and in milliseconds where it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.cli.terminal.output import Row, write_json, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

# The median, and tails that show one stall in a hundred, and in a thousand, records.
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999}


def quantiles_of(seconds: Sequence[float]) -> dict[str, float | None]:
    """In milliseconds, by nearest rank; and the largest measurement."""
    if not seconds:
        return dict.fromkeys([*QUANTILES, "max"])
    ordered = sorted(seconds)
    places = {name: _rank(len(ordered), share) for name, share in QUANTILES.items()}
    found = {name: ordered[place] for name, place in places.items()} | {"max": ordered[-1]}
    return {name: round(value * 1000, 3) for name, value in found.items()}


def _rank(count: int, share: float) -> int:
    return max(0, -int(-count * share // 1) - 1)


def rates_of(
    *, records: int, byte_count: int, seconds: float, cpu_seconds: float
) -> dict[str, object]:
    """`byte_count`: of values and keys."""
    seconds = max(seconds, 1e-9)  # an empty topic may take less than the clock resolves
    return {
        "records": records,
        "bytes": byte_count,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds),
        "mb_per_second": round(byte_count / seconds / 1e6, 3),
        "client_cpu_us_per_record": round(cpu_seconds / records * 1e6, 3) if records else None,
    }


def tell(figures: Row, *, as_json: bool) -> None:
    """Print one JSON object, or a line for each figure, and for each entry of a dict."""
    if as_json:
        write_json([figures])
        return
    rows = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += [(f"{name}.{part}", each) for part, each in value.items()]
        else:
            rows.append((name, value))
    write_table(("figure", "value"), rows)
