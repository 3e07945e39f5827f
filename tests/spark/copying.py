"""One topic copied to another by a stream, from where the run before it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.functions import rand

from tests.spark.frames import stream, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.faults import Fault

SHUFFLED_TASKS = 3


@dataclass(frozen=True)
class Copy:
    """Attributes:
    folder: of its checkpoint.
    delivery: that of the sink.
    value: what becomes of a value.
    transactional_id: of the sink; empty: it has none.
    is_shuffled: rows come to other tasks, and in another order, each time.
    """

    bootstrap: str
    source: str
    target: str
    folder: str
    delivery: str = "idempotent"
    value: str = "value"
    transactional_id: str = ""
    is_shuffled: bool = False

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint"

    def start(
        self, spark: SparkSession, *, fault: Fault | None = None, **options: str
    ) -> StreamingQuery:
        """`options` are those of the source. A task for each partition, unless they say more."""
        given = {"minRecordsPerPartition": "1", **options}
        found = stream(spark, self.bootstrap, self.source, **given)
        rows = found.selectExpr("key", self.value)
        if self.is_shuffled:
            rows = rows.repartition(SHUFFLED_TASKS, rand())
        sink = {"delivery": self.delivery, **({} if fault is None else {"fault": str(fault)})}
        if self.transactional_id:
            sink["transactionalId"] = self.transactional_id
        writer = write_stream(
            rows,
            self.bootstrap,
            self.target,
            self.checkpoint,
            sink="raftmq" if fault is None else "raftmq_faulty",
            **sink,
        )
        return writer.start()

    def run(self, spark: SparkSession, *, fault: Fault | None = None, **options: str) -> list[int]:
        """How many records each microbatch had."""
        query = self.start(spark, fault=fault, **options)
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]
