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
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.copying import Copy
from tests.spark.faults import Fault, FaultyDataSource, Point, wait_for_fault
from tests.spark.frames import expected, fill, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from pyspark.sql import SparkSession

    from raftmq import sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

COUNT, COUNT_OF_BATCH, ROWS_OF_ARROW_BATCH = 400, 200, 20
DELIVERIES = ("idempotent", "at_least_once", "exactly_once")
all_deliveries = pytest.mark.parametrize("delivery", DELIVERIES)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Of each task some rows stand in the topic while others are still to come."""
    spark.dataSource.register(FaultyDataSource)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, str(ROWS_OF_ARROW_BATCH))
    yield
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def source(client: sync.Client) -> str:
    client.admin.create_topic("source-of-faults", partitions=2, replication_factor=3)
    fill(client, "source-of-faults", range(COUNT))
    return "source-of-faults"


@pytest.fixture
def make_copy(
    server: Server, client: sync.Client, source: str, topic: str, tmp_path: Path
) -> Callable[[str], Copy]:
    def make(delivery: str, name: str = "copy") -> Copy:
        target, folder = f"{topic}-{name}-{delivery}", tmp_path / f"{name}-{delivery}"
        client.admin.create_topic(target, partitions=3, replication_factor=3)
        folder.mkdir()
        return Copy(server.bootstrap, source, target, str(folder), delivery)

    return make


def run(spark: SparkSession, copy: Copy, fault: Fault | None = None) -> None:
    copy.run(spark, fault=fault, maxOffsetsPerTrigger=str(COUNT_OF_BATCH))


def check(client: sync.Client, copy: Copy, *, may_be_exact: bool = False) -> None:
    """The copy is exact; but with at_least_once some records are there twice."""
    found = sorted(values(client, copy.target))
    assert sorted(set(found)) == expected(range(COUNT))
    if copy.delivery == "at_least_once":
        assert len(found) > COUNT or may_be_exact
    else:
        assert len(found) == COUNT


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
    with waiting(spark, copy, "writing"):
        leader = server.leader_of(copy.target, 0)
        assert leader is not None
        server.kill_node(leader)
    try:
        check(client, copy, may_be_exact=True)
    finally:
        server.start_node(leader)


def test_a_coordinator_that_is_killed(
    spark: SparkSession, server: Server, client: sync.Client, make_copy: Callable[[str], Copy]
) -> None:
    """While the driver is about to commit: the next coordinator commits."""
    copy = replace(make_copy("exactly_once"), transactional_id="of-a-coordinator")
    with waiting(spark, copy, "commit"):
        # That of an id is that of a group of the same name.
        with client.consumer(copy.source, group=copy.transactional_id) as member:
            next(member.batches(timeout=0), None)
            coordinator = client.admin.describe_group(copy.transactional_id).coordinator
        server.kill_node(coordinator)
    try:
        check(client, copy)
    finally:
        server.start_node(coordinator)


@contextmanager
def waiting(spark: SparkSession, copy: Copy, point: Point) -> Iterator[None]:
    """The block runs while the copy waits in its second microbatch; then it goes on to its end."""
    fault = Fault(point, "wait", copy.folder)
    query = copy.start(spark, fault=fault, maxOffsetsPerTrigger=str(COUNT_OF_BATCH))
    wait_for_fault(query, copy.folder)
    yield
    (Path(copy.folder) / "go-on").touch()
    query.awaitTermination()


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
