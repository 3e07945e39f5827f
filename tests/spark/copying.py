"""One topic copied to another by a stream, from where the run before it stopped; and what a plain
consumer finds in the copy.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.functions import rand

from tests.spark.faults import wait_for_fault
from tests.spark.frames import expected, stream, values, write_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from raftmq import sync
    from raftmq.testing.server import Server
    from tests.spark.faults import Fault

COUNT = 400  # records of the source
SHUFFLED_TASKS = 3
RUN_SECONDS_MAX = 240  # longer means stuck


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
        wait_for_end(query)
        return [progress.numInputRows for progress in query.recentProgress]


def wait_for_end(query: StreamingQuery) -> None:
    """Raises StreamingQueryException: it has failed."""
    ended = query.awaitTermination(RUN_SECONDS_MAX)
    assert ended, f"it runs for {RUN_SECONDS_MAX} s: {query.status}, {query.lastProgress}"


@contextmanager
def without_node(
    spark: SparkSession, server: Server, copy: Copy, fault: Fault, **options: str
) -> Iterator[Callable[[int], None]]:
    """The block runs while the copy waits at the fault, and kills a node with what it gets. Then
    the copy goes on to its end without that node, which is started again afterwards.
    """
    killed: list[int] = []

    def kill(node: int) -> None:
        server.kill_node(node)
        killed.append(node)

    query = copy.start(spark, fault=fault, **options)
    try:
        wait_for_fault(query, fault.folder)
        try:
            yield kill
        finally:
            (Path(fault.folder) / "go-on").touch()
        wait_for_end(query)
    finally:
        for node in killed:
            server.start_node(node)


def check(client: sync.Client, copy: Copy, *, may_be_exact: bool = False) -> None:
    """The copy is exact; but with at_least_once some records are there twice."""
    found = sorted(values(client, copy.target))
    assert sorted(set(found)) == expected(range(COUNT))
    if copy.delivery == "at_least_once":
        assert len(found) > COUNT or may_be_exact
    else:
        assert len(found) == COUNT


def coordinator_of(client: sync.Client, copy: Copy) -> int:
    """Of its transaction: that of a group of the same name."""
    with client.consumer(copy.source, group=copy.transactional_id) as member:
        next(member.batches(timeout=0), None)
        return client.admin.describe_group(copy.transactional_id).coordinator
