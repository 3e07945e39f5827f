"""What a task that has written tells the driver.

What it writes is in tests/cluster/test_spark_io_writing.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import WriterCommitMessage

from spark_io.names import Name
from spark_io.writing import Written, counted
from tests.unit.spark_io.tasks import sent_away


def test_rows_of_all_tasks() -> None:
    messages = [Written(Name("q/0", 1), 10, 4), Written(Name("q/1", 1), 5, 0), Written(None, 3, 0)]
    assert counted(messages) == (18, 4)
    assert counted([]) == (0, 0)


def test_tasks_that_have_failed_say_nothing() -> None:
    """Spark puts None in their place."""
    assert counted([None, Written(None, 3, 0), WriterCommitMessage()]) == (3, 0)


def test_the_message_travels() -> None:
    written = Written(Name("q/0", 1), 10, 4)
    assert sent_away(written) == written
