"""A session of Spark that starts quickly: without a web page, with what is installed here.

Python workers import pyspark from SPARK_HOME's pyspark.zip, which holds no compiled files, and take
four times as long to start; a home without it lets them use what is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.log.level": "ERROR",
    "spark.python.worker.tracebackDumpIntervalSeconds": "150",  # of a task or plan that hangs
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",  # else a query that does not stop is waited for
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def new_session(
    folder: Path, *, master: str, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """`folder`: for all that it writes."""
    os.environ.update(environment(folder))
    builder = SparkSession.builder.master(master).appName("raftmq tests")
    places = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in {**SETTINGS, **places, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def environment(folder: Path) -> dict[str, str]:
    installed, home = Path(pyspark.__file__).parent, folder / "home"
    home.mkdir(exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        if not (home / name).exists():
            (home / name).symlink_to(installed / name)
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
