"""What the demonstration has found: the numbers that it shows in the end, and its verdict.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .totals import compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .totals import Cell, Row, Total

TITLES = ("delays added up by", "rows", "flights that left", "minutes", "difference")
LARGEST_TITLES = ("hour", "carrier", "flights", "mean delay in minutes")
LARGEST = 5


class Interruption(NamedTuple):
    """A microbatch that was killed before its end.

    Attributes:
        rows: of it, that stood in the topic already.
        is_repeated: it was run again.
    """

    batch: int
    rows: int
    is_repeated: bool = False


class Result(NamedTuple):
    """Attributes:
    interruption: None: the streaming program ended before it could be killed.
    """

    expected: Mapping[Cell, Total]
    topic: Sequence[Row]
    parquet: Sequence[Row]
    batches: int
    interruption: Interruption | None

    @property
    def faults(self) -> list[str]:
        """None if all is as it should be."""
        found = []
        for place, rows in (("the topic", self.topic), ("Parquet", self.parquet)):
            if differences := str(compare(self.expected, rows)):
                found.append(f"rows in {place}: {differences}")
        if not (self.interruption and self.interruption.is_repeated):
            found.append("no microbatch was interrupted and run again")
        return found

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """For a table."""
        return [
            ("plain Python", *_sums(self.expected.values()), "-"),
            ("Spark, in the topic", *_sums(self.topic), self._difference(self.topic)),
            ("Spark, in Parquet", *_sums(self.parquet), self._difference(self.parquet)),
        ]

    @property
    def largest(self) -> list[tuple[object, ...]]:
        """Mean delays, for a table."""
        ordered = sorted(self.topic, key=lambda row: row.mean_minutes, reverse=True)
        return [
            (row.hour, row.carrier, row.flights, f"{row.mean_minutes:,.1f}")
            for row in ordered[:LARGEST]
        ]

    @property
    def interrupted(self) -> str:
        if self.interruption is None:
            return "none was interrupted"
        batch, rows, is_repeated = self.interruption
        of_all = sum(row.batch == batch for row in self.topic)
        again = (
            f"added {of_all - rows:,} to the {rows:,} rows that stood there"
            if is_repeated
            else "never came"
        )
        return f"number {batch} was interrupted; its second run {again}"

    @property
    def verdict(self) -> str:
        if self.faults:
            return f"This is not what was promised: {'; '.join(self.faults)}."
        return f"All {len(self.expected):,} totals are equal, each is there once in either place."

    def _difference(self, rows: Iterable[Row]) -> str:
        return str(compare(self.expected, rows)) or "none"


def _sums(totals: Iterable[Total | Row]) -> tuple[int, int, int]:
    found = [(total.flights, total.minutes) for total in totals]
    return len(found), sum(flights for flights, _ in found), sum(minutes for _, minutes in found)
