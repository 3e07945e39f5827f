"""The load, in the environment of Spark, on clusters that run already: one session for both sides.

    PYTHON -P -m benchmarks.spark_peers.load '{"raftmq": [[ADDRESS, ...], [PROCESS ID, ...]], ...}'

Writes its rounds to the file that the job names.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peers.environment import CHECKOUT
from benchmarks.peers.peer import HOST
from benchmarks.peers.servers import machine_cpu_seconds, tree_cpu_seconds
from benchmarks.spark_parts.around import new_session
from benchmarks.spark_peers import cases
from benchmarks.spark_peers.cases import World
from benchmarks.spark_peers.sides import KafkaSide, RaftmqSide, unknown_deliveries
from raftmq import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.spark_peers.cases import Round

    Run = Callable[[], list[Round]]

SIZES = (100, 1024)
SECTIONS: dict[str, Callable[[World, int, int], list[Round]]] = {
    "sink": cases.sink,
    "source": cases.source,
    "copy": cases.copy,
}
LATENCIES: dict[str, Callable[[World], list[Round]]] = {"few": cases.few, "empty": cases.empty}
CONNECT_MS = 90_000
REASON_SHOWN = 400  # characters


class Job(NamedTuple):
    """Attributes:
    raftmq, kafka: where clients connect, and the ids of the servers' processes.
    jars: of the connector.
    folder: for files of Spark.
    outcome: the file for what was found.
    rows: of a turn.
    """

    raftmq: tuple[Sequence[str], Sequence[int]]
    kafka: tuple[Sequence[str], Sequence[int]]
    jars: Sequence[str]
    folder: str
    outcome: str
    sections: Sequence[str]
    rounds: int
    rows: int


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(CHECKOUT), SPARK_LOCAL_IP=HOST)
    spark = new_session(Path(job.folder), job.jars)
    with sync.connect(job.raftmq[0], connect_timeout_ms=CONNECT_MS) as client:
        sides = [RaftmqSide(spark, *job.raftmq, client), KafkaSide(spark, *job.kafka)]
        process_id = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        world = World(spark, sides, process_id, Path(job.folder), job.rounds, tell)
        began, used = time.monotonic(), others_seconds(world)
        sections, failed = run_all(chosen(job, world))
        others = (others_seconds(world) - used) / (time.monotonic() - began)
    found = {
        "sections": sections,
        "failed": failed,
        "others_cores": others,
        "unknown": unknown_deliveries(),
    }
    Path(job.outcome).write_text(json.dumps(found))
    spark.stop()


def run_all(runs: dict[str, Run]) -> tuple[dict[str, list[Round]], dict[str, str]]:
    """Rounds, and what was wrong with those that have none, by section."""
    sections: dict[str, list[Round]] = {}
    failed: dict[str, str] = {}
    for name, run in runs.items():
        tell(name)
        try:
            sections[name] = run()
        except Exception as error:  # the other sections go on, and the page says so
            traceback.print_exc()
            failed[name] = f"{error!r:.{REASON_SHOWN}}"
    return sections, failed


def others_seconds(world: World) -> float:
    """CPU seconds of all processes that are no part of this, so far."""
    own = time.process_time() + tree_cpu_seconds(world.process_id)
    return machine_cpu_seconds() - own - sum(side.cpu_seconds() for side in world.sides)


def chosen(job: Job, world: World) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name in job.sections:
        if name in LATENCIES:
            runs[name] = partial(LATENCIES[name], world)
        else:
            for size in SIZES:
                runs[f"{name} {size}"] = partial(SECTIONS[name], world, size, job.rows)
    return runs


def tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
