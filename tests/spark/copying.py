"""One topic copied to another by a stream, from where the run before it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.frames import stream, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.faults import Fault


@dataclass(frozen=True)
class Copy:
    """Attributes:
    folder: of its checkpoint.
    delivery: that of the sink.
    value: what becomes of a value.
    """

    bootstrap: str
    source: str
    target: str
    folder: str
    delivery: str = "idempotent"
    value: str = "value"

    def start(
        self, spark: SparkSession, *, fault: Fault | None = None, **options: str
    ) -> StreamingQuery:
        """`options` are those of the source."""
        found = stream(spark, self.bootstrap, self.source, **options)
        sink = {"delivery": self.delivery, **({} if fault is None else {"fault": str(fault)})}
        writer = write_stream(
            found.selectExpr("key", self.value),
            self.bootstrap,
            self.target,
            Path(self.folder) / "checkpoint",
            sink="raftmq" if fault is None else "raftmq_faulty",
            **sink,
        )
        return writer.start()

    def run(self, spark: SparkSession, *, fault: Fault | None = None, **options: str) -> list[int]:
        """How many records each microbatch had."""
        query = self.start(spark, fault=fault, **options)
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]
