"""What the demonstration has found: the numbers that it shows in the end, and its verdict.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .comparison import Comparison

MB = 1e6


class Rate(NamedTuple):
    """So much in so long."""

    records: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.records / seconds:,.0f} records/s, {self.bytes / MB / seconds:.1f} MB/s"
            f" ({self.records:,} records, {self.bytes / MB:.1f} MB, {self.seconds:.1f} s)"
        )


class Result(NamedTuple):
    """Attributes:
    acknowledged, read: records.
    counted: records, by the consumer that read along.
    impaired: partitions that had no leader, or not all replicas in sync, in the end.
    leaderless_seconds: the longest of the partitions that the killed broker had led; None: none of
        them was written to afterwards.
    """

    flights: int
    acknowledged: int
    read: int
    counted: int
    impaired: int
    leaderless_seconds: float | None
    produced: Rate
    consumed: Rate
    comparison: Comparison

    @property
    def faults(self) -> list[str]:
        """Each with its number; none if all is as it should be."""
        numbers = {
            **self.comparison.faults,
            "not acknowledged": self.flights - self.acknowledged,
            "more or fewer counted than read": abs(self.counted - self.read),
            "partitions that are not whole again": self.impaired,
        }
        return [f"{number:,} {name}" for name, number in numbers.items() if number]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """For a table: what, and how much or many."""
        numbers = {
            "acknowledged": self.acknowledged,
            "read back by a fresh consumer": self.read,
            "counted while they were written": self.counted,
            "missing": self.comparison.missing,
            "there twice": self.comparison.doubled,
            "out of order for their aircraft": self.comparison.out_of_order,
            "not at the offset that was acknowledged": self.comparison.misplaced,
            "read, but never acknowledged": self.comparison.unknown,
        }
        return [(name, f"{number:,}") for name, number in numbers.items()]

    @property
    def verdict(self) -> str:
        if self.faults:
            return f"This is not what was promised: {', '.join(self.faults)}."
        return f"All {self.acknowledged:,} flights are there, once, in order for each aircraft."
