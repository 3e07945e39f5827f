"""What the demonstration has found: the numbers that it shows in the end, and its verdict.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .comparison import Comparison

MB = 1e6
SENT_AGAIN = """\
Some batches were on their way when the broker died, and nobody could know what had become of
them, so the producer has sent them again. """
THERE_TWICE = """\
Some of the first attempts had survived, and
their flights are there twice. Only an idempotent producer can prevent that: there is none yet."""
THERE_ONCE = """\
None of the first attempts had survived;
else its flights would be there twice. Only an idempotent producer can prevent that: there is none
yet."""


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
    repeated: records of batches that were sent again, as nobody knew what had become of them.
    impaired: partitions that had no leader, or not all replicas in sync, in the end.
    leaderless_seconds: the longest of the partitions that the killed broker had led; None: none of
        them was written to afterwards.
    """

    flights: int
    acknowledged: int
    read: int
    counted: int
    repeated: int
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
            "doubled without cause": self.comparison.doubled,
            "out of order for their aircraft": self.comparison.out_of_order,
            "not at the offset that was acknowledged": self.comparison.misplaced,
            "read, but never acknowledged": self.comparison.unknown,
            "in batches that were sent again": self.repeated,
            "of these, there twice": self.comparison.copies,
        }
        return [(name, f"{number:,}") for name, number in numbers.items()]

    @property
    def verdict(self) -> str:
        if self.faults:
            return f"This is not what was promised: {', '.join(self.faults)}."
        if not self.comparison.copies:
            return f"All {self.acknowledged:,} flights are there, once, in order for each aircraft."
        return (
            f"All {self.acknowledged:,} flights are there, in order for each aircraft;"
            f" {self.comparison.copies:,} of them twice."
        )

    @property
    def why_copies(self) -> str:
        """Empty where there is nothing to explain."""
        if not self.repeated:
            return ""
        return SENT_AGAIN + (THERE_TWICE if self.comparison.copies else THERE_ONCE)
