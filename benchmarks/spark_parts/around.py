"""What both sections need: brokers, a session of Spark, rows, and a stopwatch."""

from __future__ import annotations

import os
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from benchmarks.broker_parts.cluster import open_brokers
from benchmarks.spark_parts.discard import DiscardSource
from benchmarks.spark_parts.made_up import MadeUpSource
from raftmq import sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

ROOT = Path(__file__).parents[2]
PARTITIONS, SLOTS = 12, 2
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True)
class Bench:
    """Attributes:
    folder: for files of Spark.
    """

    spark: SparkSession
    bootstrap: str
    client: sync.Client
    folder: Path
    numbers: Iterator[int]

    @contextmanager
    def topic(self, partitions: int = PARTITIONS) -> Iterator[str]:
        """One of its own, deleted afterwards, so that its bytes are in nobody's way."""
        name = f"bench-{next(self.numbers)}"
        config = {"durability": "page_cache", "min.insync.replicas": 2}
        self.client.admin.create_topic(
            name, partitions=partitions, replication_factor=3, config=config
        )
        yield name
        self.client.admin.delete_topic(name)

    def rows(self, size: int, number: int) -> AbstractContextManager[DataFrame]:
        return cached_rows(self.spark, size, number)


@contextmanager
def cached_rows(spark: SparkSession, size: int, number: int) -> Iterator[DataFrame]:
    """With columns `key`, of 8 digits, and `value`, in Spark's memory."""
    digests = ", ".join(f"sha2(cast(id + {each} as string), 256)" for each in range(2))
    repeats = -(-size // 128)
    value = f"cast(substring(repeat(concat({digests}), {repeats}), 1, {size}) as binary)"
    frame = spark.range(0, number, 1, SLOTS).selectExpr(
        "encode(lpad(cast(id as string), 8, '0'), 'utf-8') as key", f"{value} as value"
    )
    frame = frame.cache()
    frame.write.format("noop").mode("overwrite").save()
    try:
        yield frame
    finally:
        frame.unpersist(blocking=True)


@asynccontextmanager
async def open_bench(root: Path) -> AsyncIterator[Bench]:
    os.environ.update(
        PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT), SPARK_LOCAL_IP="127.0.0.1"
    )
    async with open_brokers(root) as brokers:
        bootstrap = ",".join(map(str, brokers.addresses()))
        with TemporaryDirectory(dir=root) as folder, sync.connect(bootstrap) as client:
            spark = new_session(Path(folder))
            try:
                yield Bench(spark, bootstrap, client, Path(folder), count())
            finally:
                spark.stop()


def new_session(folder: Path, jars: Sequence[str] = ()) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("raftmq benchmark")
    settings = {**SETTINGS, "spark.local.dir": str(folder / "local"), "spark.jars": ",".join(jars)}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(DiscardSource)
    spark.dataSource.register(MadeUpSource)
    return spark


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def activate(spark: SparkSession) -> None:
    """In a thread of our own Spark does not find the formats that are written in Python."""
    session = spark._jvm.org.apache.spark.sql.SparkSession  # type: ignore[union-attr]
    session.setActiveSession(spark._jsparkSession)
