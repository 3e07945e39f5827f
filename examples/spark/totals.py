"""Delays of each carrier and hour: what plain Python makes of the flights, and what others differ.

Pure. Knows nothing of Spark: what it adds up is what Spark has to come to.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from examples.flights.data import Flight

DELAY, CARRIER, HOUR = 5, 9, 18  # columns of a line
CANCELLED = "NA"  # in place of a delay

Cell: TypeAlias = tuple[str, str]  # hour, carrier


class Total(NamedTuple):
    """Of one carrier in one hour.

    Attributes:
        minutes: of delay, altogether; less than 0 for those that left early.
    """

    flights: int
    minutes: int
    mean_minutes: float


class Row(NamedTuple):
    """A total as Spark has written it.

    Attributes:
        hour: in which the flights were to leave, in UTC as the flights have it.
        batch: the number of the microbatch.
    """

    hour: str
    carrier: str
    flights: int
    minutes: int
    mean_minutes: float
    batch: int

    @property
    def cell(self) -> Cell:
        return self.hour, self.carrier

    @property
    def total(self) -> Total:
        return Total(self.flights, self.minutes, self.mean_minutes)


class Differences(NamedTuple):
    """Numbers of rows that are wrong.

    Attributes:
        doubled: second copies.
        unequal: other numbers than expected, or for nothing that ever left.
    """

    missing: int
    doubled: int
    unequal: int

    def __str__(self) -> str:
        """Those that there are."""
        return ", ".join(f"{count:,} {name}" for name, count in self._asdict().items() if count)


def hour_of(flight: Flight) -> bytes:
    """Texts of hours are in the order of time."""
    return flight.line.rpartition(b",")[2]


def add_up(flights: Iterable[Flight]) -> dict[Cell, Total]:
    """Of those that left."""
    delays: defaultdict[Cell, list[int]] = defaultdict(list)
    for row in csv.reader(flight.line.decode() for flight in flights):
        if row[DELAY] != CANCELLED:
            delays[row[HOUR], row[CARRIER]].append(int(row[DELAY]))
    return {
        cell: Total(len(found), sum(found), sum(found) / len(found))
        for cell, found in delays.items()
    }


def compare(expected: Mapping[Cell, Total], rows: Iterable[Row]) -> Differences:
    found: defaultdict[Cell, list[Total]] = defaultdict(list)
    for row in rows:
        found[row.cell].append(row.total)
    return Differences(
        missing=len(expected.keys() - found.keys()),
        doubled=sum(len(totals) - 1 for totals in found.values()),
        unequal=sum(
            total != expected.get(cell) for cell, totals in found.items() for total in totals
        ),
    )
