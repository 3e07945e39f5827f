"""The format `raftmq_scene`: the sink of `raftmq`, one task of which meets trouble in its middle.

Workers of Spark import this module; what has happened they note as files in the scene's folder.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from raftmq import sync
from raftmq.errors import ProducerFenced
from spark_io.source import BatchWriter, RaftmqDataSource
from tests.spark.faults import wait_until
from tests.spark.frames import values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_io.options.sink import Delivery, SinkOptions
    from spark_io.writing import Written

TASKS = 2
TROUBLED = 1  # the partition of that task
ROWS_OF_TASK, ROWS_OF_ARROW_BATCH = 200, 20
HALF = ROWS_OF_TASK // ROWS_OF_ARROW_BATCH // 2
COPY_SECONDS = 1.5  # that a copy takes at least: the first attempt hears of its fence


@dataclass(frozen=True)
class Scene:
    """Attributes:
    action: what becomes of the first attempt that stands in the middle. "copy": it waits until
        its copy stands there, too, and goes on; "loss": it is killed with its executor.
    folder: of its notes.
    """

    action: Literal["copy", "loss"]
    delivery: Delivery
    topic: str
    folder: str

    def __str__(self) -> str:
        """As an option."""
        return json.dumps(asdict(self))

    def note(self, what: str, *, attempt: int) -> None:
        (Path(self.folder) / f"{what}-{attempt}").touch()

    def noted(self, what: str) -> int:
        """Of how many attempts."""
        return len(list(Path(self.folder).glob(f"{what}-*")))

    def begin(self, partition: int) -> None:
        """Spark makes copies once a task is done; of what is to be killed it shall make none."""
        if self.action == "loss" and partition != TROUBLED:
            wait_until(lambda: self.noted("half") > 0)

    def go_through(self, attempt: int) -> None:
        """The middle of the troubled task."""
        is_first = self.noted("half") == 0
        self.note("half", attempt=attempt)
        if self.action == "loss" and is_first:
            os.kill(_executor(), signal.SIGKILL)  # then Spark's daemon ends this process, too
        wait_until(lambda: self.noted("half") > 1)
        if self.action == "copy" and not is_first:
            time.sleep(COPY_SECONDS)


class SceneDataSource(RaftmqDataSource):
    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._scene = Scene(**json.loads(given.pop("scene")))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "raftmq_scene"

    def writer(self, schema: StructType, overwrite: bool) -> SceneWriter:
        return SceneWriter(self._sink(schema, is_stream=False), self._scene)


class SceneWriter(BatchWriter):
    def __init__(self, options: SinkOptions, scene: Scene) -> None:
        super().__init__(options)
        self._scene = scene

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None
        self._scene.begin(task.partitionId())
        if task.partitionId() != TROUBLED:
            return super().write(iterator)
        attempt = task.attemptNumber()
        self._scene.note("begun", attempt=attempt)
        try:
            return super().write(self._halves(iterator, attempt))
        except ProducerFenced:
            self._scene.note("fenced", attempt=attempt)
            raise

    def _halves(self, iterator: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
        """The second one once the first one stands in the topic, and the scene is over."""
        first = list(islice(iterator, HALF))
        yield from first
        last = first[-1].column("value")[-1].as_py()
        wait_until(lambda: last in self._standing())
        self._scene.go_through(attempt)
        yield from iterator

    def _standing(self) -> list[bytes]:
        with sync.connect(list(self._options.bootstrap)) as client:
            return values(client, self._scene.topic, isolation_level="read_uncommitted")


def _executor() -> int:
    """The JVM: a worker's parent is Spark's daemon for Python, whose parent it is."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    pid = int(status.split("PPid:")[1].split()[0])
    assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_text()
    return pid
