"""A cluster of Spark: two attempts of one task at a time, and executors that are killed.

Both happen to one task while half of its rows stand in the topic; then a plain consumer reads
what is there.

A14.3.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from spark_io.options.sink import DELIVERIES
from tests.spark.cluster_nodes import SparkCluster
from tests.spark.cluster_scenes import ROWS_OF_TASK, TASKS, Scene
from tests.spark.conftest import require_java
from tests.spark.frames import expected, values
from tests.spark.session import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq import sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

COUNT = TASKS * ROWS_OF_TASK
DRIVER_SECONDS_MAX = 400.0  # longer means stuck


def test_copies_of_tasks_and_lost_executors(
    server: Server, client: sync.Client, tmp_path: Path
) -> None:
    require_java()
    scenes = [
        Scene(action, delivery, f"cluster-{action}-{delivery}", str(tmp_path / action / delivery))
        for action in ("copy", "loss")
        for delivery in DELIVERIES
    ]
    for topic in ("cluster-warm", *(scene.topic for scene in scenes)):
        client.admin.create_topic(topic, partitions=3, replication_factor=3)
    for scene in scenes:
        (tmp_path / scene.action / scene.delivery).mkdir(parents=True)
    with SparkCluster(tmp_path, workers=TASKS) as cluster:
        run(cluster, server, scenes, tmp_path)
    for scene in scenes:
        check(client, scene)


def run(cluster: SparkCluster, server: Server, scenes: list[Scene], folder: Path) -> None:
    given = {
        "url": cluster.url,
        "bootstrap": server.bootstrap,
        "folder": str(folder),
        "warm": "cluster-warm",
        "scenes": [asdict(scene) for scene in scenes],
    }
    program = [sys.executable, "-m", "tests.spark.cluster_driver", json.dumps(given)]
    subprocess.run(
        program, cwd=ROOT, start_new_session=True, check=True, timeout=DRIVER_SECONDS_MAX
    )


def check(client: sync.Client, scene: Scene) -> None:
    """Each row is there once, unless that is not asked for, and no attempt counts as failed by its
    copy.
    """
    found = sorted(values(client, scene.topic))
    begun, fenced = scene.noted("begun"), scene.noted("fenced")
    print(  # noqa: T201
        f"{scene.topic}: {len(found)} appended, {len(set(found))} unique, {begun} attempts, "
        f"{fenced} of them told that they were fenced"
    )
    assert sorted(set(found)) == expected(range(COUNT))
    assert begun >= 2
    assert fenced == 0
    if scene.delivery == "at_least_once":
        assert len(found) > COUNT
    else:
        assert len(found) == COUNT
