"""A program of Spark on a cluster: `python -m tests.spark.cluster_driver JSON`.

It writes once for each scene. What happens there is up to the scenes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.broker_process import die_with_parent
from tests.spark.cluster_nodes import JAVA_OPTIONS
from tests.spark.cluster_scenes import (
    ROWS_OF_ARROW_BATCH,
    ROWS_OF_TASK,
    TASKS,
    Scene,
    SceneDataSource,
)
from tests.spark.frames import BOOTSTRAP, numbers, write
from tests.spark.session import ROOT, new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.cores.max": str(TASKS),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    # A copy of a task as soon as it has run for longer than the one that is done.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_ARROW_BATCH),
}


def main() -> None:
    die_with_parent()
    given = json.loads(sys.argv[1])
    start = time.monotonic()
    spark = new_session(Path(given["folder"]), master=given["url"], settings=SETTINGS)
    tell("session", start)
    spark.dataSource.register(SceneDataSource)
    start = time.monotonic()
    write(numbers(spark, TASKS), given["bootstrap"], given["warm"])  # slow, as all begins with it
    tell("first write", start)
    for scene in given["scenes"]:
        play(spark, given["bootstrap"], Scene(**scene))
    spark.stop()


def play(spark: SparkSession, bootstrap: str, scene: Scene) -> None:
    start = time.monotonic()
    rows = numbers(spark, TASKS * ROWS_OF_TASK)
    options = {BOOTSTRAP: bootstrap, "topic": scene.topic, "delivery": scene.delivery}
    writer = rows.write.format("raftmq_scene").options(**options, scene=str(scene))
    writer.mode("append").save()
    tell(scene.topic, start)


def tell(what: str, start: float) -> None:
    print(f"{what}: {time.monotonic() - start:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
