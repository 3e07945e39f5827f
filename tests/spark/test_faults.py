"""Whatever dies while a stream writes: nothing is lost, and, unless that is wanted, nothing is
there twice.

A topic of 400 records is copied in two microbatches. Something goes wrong in the second one; then
a plain consumer reads what stands in the copy.

A14.3.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.copying import COUNT, Copy, check, coordinator_of, without_node
from tests.spark.faults import Fault
from tests.spark.frames import expected, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from pyspark.sql import SparkSession

    from raftmq import sync
    from raftmq.testing.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("small_batches")]

COUNT_OF_BATCH = 200
DRIVER_SECONDS_MAX = 400.0  # longer means stuck
DELIVERIES = ("idempotent", "at_least_once", "exactly_once")
all_deliveries = pytest.mark.parametrize("delivery", DELIVERIES)
ROOT = Path(__file__).parents[2]


def run(spark: SparkSession, copy: Copy, fault: Fault | None = None) -> None:
    copy.run(spark, fault=fault, maxOffsetsPerTrigger=str(COUNT_OF_BATCH))


@all_deliveries
@pytest.mark.parametrize(
    ("point", "action"),
    [("writing", "raise"), ("writing", "kill_worker"), ("written", "raise")],
)
def test_a_task_that_fails(
    spark: SparkSession,
    client: sync.Client,
    make_copy: Callable[[str], Copy],
    delivery: str,
    point: Literal["writing", "written"],
    action: Literal["raise", "kill_worker"],
) -> None:
    """Spark runs it again, and the query goes on."""
    copy = make_copy(delivery)
    run(spark, copy, Fault(point, action, copy.folder))
    check(client, copy)


def test_a_task_of_several_partitions_that_fails(
    spark: SparkSession, client: sync.Client, make_copy: Callable[[str], Copy]
) -> None:
    """It has the same rows in the same order when it runs again: none is there twice."""
    copy = make_copy("idempotent")
    fault = Fault("writing", "kill_worker", copy.folder)
    limits = {"maxOffsetsPerTrigger": str(COUNT_OF_BATCH), "minRecordsPerPartition": "1000"}
    copy.run(spark, fault=fault, **limits)
    check(client, copy)


@all_deliveries
def test_a_commit_that_fails(
    spark: SparkSession, client: sync.Client, make_copy: Callable[[str], Copy], delivery: str
) -> None:
    """The query ends, and is started again."""
    copy = make_copy(delivery)
    with pytest.raises(StreamingQueryException, match="at the point commit"):
        run(spark, copy, Fault("commit", "raise", copy.folder))
    run(spark, copy)
    check(client, copy)


def test_a_driver_that_is_killed(
    spark: SparkSession,
    client: sync.Client,
    make_copy: Callable[[str, str], Copy],
    tmp_path: Path,
) -> None:
    """Before the sink's commit and after it, in any case before Spark's own note of it."""
    points = {
        point: [make_copy(delivery, point) for delivery in DELIVERIES]
        for point in ("commit", "committed")
    }
    copies = [copy for each in points.values() for copy in each]
    faults = [(point, copy.folder) for point, each in points.items() for copy in each]
    given = {
        "folder": str(tmp_path),
        "copies": [asdict(copy) for copy in copies],
        "faults": faults,
        "records_of_batch": str(COUNT_OF_BATCH),
    }
    driver = subprocess.run(
        [sys.executable, "-m", "tests.spark.driver", json.dumps(given)],
        cwd=ROOT,
        start_new_session=True,
        check=False,
        timeout=DRIVER_SECONDS_MAX,
    )
    assert driver.returncode == -signal.SIGKILL
    for copy in copies:
        run(spark, copy)
        check(client, copy)


@all_deliveries
def test_a_leader_that_is_killed(
    spark: SparkSession,
    server: Server,
    client: sync.Client,
    make_copy: Callable[[str], Copy],
    delivery: str,
) -> None:
    """While a task is writing. Nothing has to be run again: the sink waits for the next leader."""
    copy = make_copy(delivery)
    fault = Fault("writing", "wait", copy.folder)
    limit = str(COUNT_OF_BATCH)
    with without_node(spark, server, copy, fault, maxOffsetsPerTrigger=limit) as kill:
        leader = server.leader_of(copy.target, 0)
        assert leader is not None
        kill(leader)
    check(client, copy, may_be_exact=True)


def test_a_coordinator_that_is_killed(
    spark: SparkSession, server: Server, client: sync.Client, make_copy: Callable[[str], Copy]
) -> None:
    """While the driver is about to commit: the next coordinator commits."""
    copy = replace(make_copy("exactly_once"), transactional_id="of-a-coordinator")
    fault = Fault("commit", "wait", copy.folder)
    limit = str(COUNT_OF_BATCH)
    with without_node(spark, server, copy, fault, maxOffsetsPerTrigger=limit) as kill:
        kill(coordinator_of(client, copy))
    check(client, copy)


def test_rows_that_come_in_another_order(
    spark: SparkSession, client: sync.Client, make_copy: Callable[[str, str], Copy]
) -> None:
    """Behind a shuffle by random numbers each attempt of a task has other rows."""
    of_task = replace(make_copy("exactly_once", "task"), is_shuffled=True)
    run(spark, of_task, Fault("written", "kill_worker", of_task.folder))
    check(client, of_task)
    of_batch = replace(make_copy("exactly_once", "batch"), is_shuffled=True)
    with pytest.raises(StreamingQueryException, match="at the point commit"):
        run(spark, of_batch, Fault("commit", "raise", of_batch.folder))
    run(spark, of_batch)
    check(client, of_batch)


def test_a_checkpoint_that_is_lost_or_rolled_back(
    spark: SparkSession, client: sync.Client, make_copy: Callable[[str], Copy]
) -> None:
    """Both are told, and nothing is added."""
    copy = replace(make_copy("exactly_once"), transactional_id="of-a-checkpoint")
    run(spark, copy)
    for log in ("offsets", "commits"):
        for file in (copy.checkpoint / log).glob("*1*"):
            file.unlink()
    with pytest.raises(StreamingQueryException) as caught:  # the microbatch is another one now
        copy.run(spark, maxOffsetsPerTrigger=str(COUNT_OF_BATCH // 2))
    assert "ReplayMismatch: version 1 of transaction 'of-a-checkpoint'" in str(caught.value)
    assert "the checkpoint comes from an older copy" in str(caught.value)
    shutil.rmtree(copy.checkpoint)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, copy)
    assert "InvalidTransaction" in str(caught.value)
    assert "raftmq transaction forget of-a-checkpoint" in str(caught.value)
    check(client, copy)


def test_other_rows_are_told(
    spark: SparkSession, client: sync.Client, make_copy: Callable[[str], Copy]
) -> None:
    """Where a query was changed while a microbatch was not done."""
    copy = make_copy("idempotent")
    with pytest.raises(StreamingQueryException, match="at the point commit"):
        run(spark, copy, Fault("commit", "raise", copy.folder))
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, replace(copy, value="upper(cast(value as string)) as value"))
    assert "ReplayMismatch" in str(caught.value)
    assert sorted(values(client, copy.target)) == expected(range(COUNT))
