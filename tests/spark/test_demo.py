"""The demonstration with Spark shows what it says and tidies up: run as people do, with a share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.data import FlightsMissingError, find_file
from examples.spark.result import Interruption, Result
from examples.spark.totals import Row, Total
from tests.spark.conftest import require_java

DEMO = Path(__file__).parents[2] / "examples" / "spark_demo.py"

pytestmark = pytest.mark.spark

EIGHT, NINE = "2013-01-01T08:00:00Z", "2013-01-01T09:00:00Z"
TOTALS = {(EIGHT, "AA"): Total(2, 7, 3.5), (NINE, "UA"): Total(1, -4, -4.0)}
ROWS = [Row(EIGHT, "AA", 2, 7, 3.5, batch=5), Row(NINE, "UA", 1, -4, -4.0, batch=6)]


def result(topic: list[Row], parquet: list[Row], *, is_repeated: bool = True) -> Result:
    interruption = Interruption(batch=5, rows=1, is_repeated=is_repeated)
    return Result(TOTALS, topic, parquet, batches=7, interruption=interruption)


def test_a_killed_stream_writes_nothing_twice(tmp_path: Path) -> None:
    """Fill, stream, kill, start again, compare: exit code 0, and nothing is left."""
    require_java()
    try:
        find_file()
    except FlightsMissingError as error:
        pytest.skip(str(error))
    command = [sys.executable, str(DEMO), "--flights", "20000", "--directory", str(tmp_path)]
    demo = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    for words in (
        "20,001 records, one of them to close the last hours, in 4 partitions",
        "kill -9 of the streaming program in microbatch",
        "was interrupted; its second run added 0 to the",
        "All 3,800 totals are equal",
    ):
        assert words in demo.stdout, demo.stdout
    assert list(tmp_path.iterdir()) == []


def test_equal_totals_are_what_was_promised() -> None:
    """In whichever order the rows come."""
    found = result(ROWS, ROWS[::-1])
    assert found.faults == []
    assert found.verdict.startswith("All 2 totals are equal")
    assert (
        found.interrupted
        == "number 5 was interrupted; its second run added 0 to the 1 rows that stood there"
    )


def test_whatever_differs_is_told() -> None:
    """A row twice, none, and another one; and a microbatch that was not run again."""
    other = ROWS[0]._replace(minutes=8)
    found = result([*ROWS, ROWS[0]], [other], is_repeated=False)
    assert found.faults == [
        "rows in the topic: 1 doubled",
        "rows in Parquet: 1 missing, 1 unequal",
        "no microbatch was interrupted and run again",
    ]
    assert found.verdict.startswith("This is not what was promised: rows in the topic")
    assert [row[-1] for row in found.rows] == ["-", "1 doubled", "1 missing, 1 unequal"]
