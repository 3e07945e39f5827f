"""The reader of a batch on its way to the tasks.

What it reads of real brokers is in tests/cluster/test_spark_io_reading.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition

from spark_io.options.source import source_options
from spark_io.schema import arrow_schema
from spark_io.source import BatchReader
from tests.unit.spark_io.tasks import sent_away

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def test_it_travels() -> None:
    """With options and columns, and nothing else."""
    reader = BatchReader(source_options(NOBODY, is_stream=False), arrow_schema())
    arrived = sent_away(reader)
    assert vars(arrived) == vars(reader)


def test_nothing_is_read_where_nothing_was_planned() -> None:
    """Spark asks once nevertheless, with a partition of its own."""
    reader = BatchReader(source_options(NOBODY, is_stream=False), arrow_schema())
    assert list(reader.read(InputPartition(None))) == []
