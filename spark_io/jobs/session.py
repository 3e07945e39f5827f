"""The session of Spark that a job works in: the one that is there, or that spark-submit has set up.

A session that was not there before is stopped at the end. Without spark-submit the process is a
command like others: Spark's own log would bury what the job has to say, so it keeps silent unless
`spark.log.level` is set.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from spark_io.source import RaftmqDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit tells Python by it where Spark is
PYTHON = "PYSPARK_PYTHON"  # with which tasks run
LOG_LEVEL = "spark.log.level"


@contextmanager
def open_session(name: str) -> Iterator[SparkSession]:
    """`name`: for Spark's pages, unless spark-submit has one."""
    is_new = SparkSession.getActiveSession() is None
    is_alone = is_new and SUBMITTED not in os.environ
    session = _new_session(name) if is_alone else SparkSession.builder.getOrCreate()
    try:
        session.dataSource.register(RaftmqDataSource)
        yield session
    finally:
        if is_new:
            session.stop()


def _new_session(name: str) -> SparkSession:
    os.environ.setdefault(PYTHON, sys.executable)  # has what is needed; another python3 may not
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    if session.conf.get(LOG_LEVEL, "") == "":
        session.sparkContext.setLogLevel("OFF")
    return session
