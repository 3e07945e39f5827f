"""The format `raftmq_faulty`: the sink of `raftmq` with one thing that goes wrong, once.

Invariant: what is wrong is in the option `fault` alone. Workers of Spark import this module; what
has happened they tell each other by files in the fault's folder.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from raftmq import sync
from spark_io.source import RaftmqDataSource, StreamWriter
from tests.spark.frames import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

    from spark_io.options.sink import SinkOptions
    from spark_io.writing import Written

Point: TypeAlias = Literal["writing", "written", "commit", "committed"]

LOOK_SECONDS = 0.02
WAIT_SECONDS_MAX = 240.0


class InjectedError(Exception):
    """What a test has asked for."""


@dataclass(frozen=True)
class Fault:
    """Attributes:
    point: "writing": some rows of a task stand in the topic, others are still to come; "written":
        all of them stand there, and the driver does not know yet; "commit", "committed": in the
        driver, before and after the sink's part of it.
    action: what happens there.
    folder: where it is noted that it has happened; a second time it does not.
    batch: the microbatch in which it happens.
    together: of how many drivers' faults the last one kills, for all.
    victim: the process group that is killed with "kill_driver".
    """

    point: Point
    action: Literal["raise", "kill_worker", "kill_driver", "wait"]
    folder: str
    batch: int = 1
    together: int = 1
    victim: int = field(default_factory=os.getpgrp)

    def __str__(self) -> str:
        """As an option."""
        return json.dumps(asdict(self))

    def happen(self) -> None:
        if not _is_first(Path(self.folder) / "happened"):
            return
        match self.action:
            case "raise":
                raise InjectedError(f"at the point {self.point}")
            case "kill_worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill_driver":
                self._kill_driver()
            case "wait":
                wait_for(Path(self.folder) / "go-on")

    def _kill_driver(self) -> None:
        """With all that it runs in its process group, Spark's JVM among them."""
        others = Path(self.folder).parent
        if len(list(others.glob("*/happened"))) == self.together:
            os.killpg(self.victim, signal.SIGKILL)
        wait_for(others / "never")  # by then this process has lost its JVM


class FaultyDataSource(RaftmqDataSource):
    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._fault = Fault(**json.loads(given.pop("fault")))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "raftmq_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyWriter:
        return FaultyWriter(self._sink(schema, is_stream=True), self._fault)


class FaultyWriter(StreamWriter):
    def __init__(self, options: SinkOptions, fault: Fault) -> None:
        super().__init__(options)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        is_wrong = _batch_id() == self._fault.batch
        if is_wrong and self._fault.point == "writing":
            iterator = self._interrupted(iterator)
        written = super().write(iterator)
        if is_wrong and self._fault.point == "written":
            self._fault.happen()
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if batchId == self._fault.batch and self._fault.point == "commit":
            self._fault.happen()
        super().commit(messages, batchId)
        if batchId == self._fault.batch and self._fault.point == "committed":
            self._fault.happen()

    def _interrupted(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Once what has been handed on stands in the topic."""
        first = next(iterator, None)
        if first is None:
            return
        yield first
        last = first.column("value")[-1].as_py()
        wait_until(lambda: last in self._standing())
        self._fault.happen()
        yield from iterator

    def _standing(self) -> list[bytes]:
        assert self._options.topic is not None
        with sync.connect(list(self._options.bootstrap)) as client:
            return values(client, self._options.topic, isolation_level="read_uncommitted")


def _batch_id() -> int:
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return int(task.getLocalProperty("streaming.sql.batchId") or -1)


def wait_for_fault(query: StreamingQuery, folder: str) -> None:
    """Raises StreamingQueryException: the query has failed before that."""
    happened = Path(folder) / "happened"
    wait_until(lambda: happened.exists() or not query.isActive)
    if not happened.exists():
        query.awaitTermination(WAIT_SECONDS_MAX)
    assert happened.exists(), "the query ended without the fault"


def wait_for(file: Path) -> None:
    wait_until(file.exists)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(LOOK_SECONDS)


def _is_first(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
