"""Spark's Python processes: the interpreter that they run, and how their errors reach the driver.

Spark finds the format `raftmq` by asking an interpreter of its choice, and hands the errors of
tasks and planners to the driver as text. Neither is decided here but by variables that it reads.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from pyspark import SparkContext

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("spark_io")

# The interpreter of tasks and planners; unset: python3.
PYTHON, DEFAULT_PYTHON = "PYSPARK_PYTHON", "python3"
# That of the driver, which planners prefer.
DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit: the port of its JVM
# Set: Spark hands on what an error says, without the lines of code that it came through.
BRIEF = "SPARK_HIDE_TRACEBACK"

IMPORT = "import pyspark_raftmq before the session is made"
REGISTER = "spark.dataSource.register(pyspark_raftmq.DefaultSource)"


def use_this_interpreter() -> None:
    """Let Spark run this interpreter, which has raftmq; one that the user has named stays.

    The JVM reads the variable when it starts. Where that has happened, and the interpreter is not
    in this environment, a warning says what to do.
    """
    if PYTHON in os.environ:
        return
    # Tasks still get it, where the session comes later.
    os.environ[PYTHON] = sys.executable
    has_session = SparkContext._gateway is not None
    if not (has_session or SUBMITTED in os.environ):
        return
    started_with = os.environ.get(DRIVER_PYTHON, DEFAULT_PYTHON)
    if not _is_here(which(started_with)):
        logger.warning(
            "Spark was started with %s, which may not have raftmq: set %s=%s before it, or %s",
            started_with, PYTHON, sys.executable, IMPORT if has_session else REGISTER,
        )  # fmt: skip


def _is_here(python: str | None) -> bool:
    """Whether an interpreter belongs to this environment: each has a folder of its own."""
    here = Path(sys.executable).parent.resolve()
    return python is not None and Path(python).parent.resolve() == here


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Errors that a user can mend arrive as one line; bugs keep their lines of code.

    A process of Spark ends after an error, so that the variable reaches no other.
    """
    try:
        yield
    except RaftmqError:
        if _is_of_spark():
            os.environ[BRIEF] = "1"
        raise


def _is_of_spark() -> bool:
    """Whether Spark has started this process, by `python -m pyspark.daemon` or the like."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
