"""One session of real Spark for all of these tests, and brokers in this process."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq import sync, testing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from raftmq.testing.server import Server
    from tests.spark.copying import Copy

ROOT = Path(__file__).parents[2]
ROWS_OF_ARROW_BATCH = 20
SOURCE = "source-of-"  # topics of a whole module
HANG_SECONDS = 180.0  # then the JVM says where it is; Python workers do so by themselves


@pytest.fixture(autouse=True)
def stacks_of_a_hang() -> Iterator[None]:
    """Of the JVM, into the output of the test: where a query hangs, Python only waits for it."""
    timer = threading.Timer(HANG_SECONDS, _tell_stacks)
    timer.start()
    yield
    timer.cancel()
    timer.join()


@pytest.fixture(autouse=True)
def tidied(request: pytest.FixtureRequest) -> Iterator[None]:
    """A query that a red test has left would take its part of the session from all tests behind.
    And topics go: brokers in this process hold their files open, and py4j waits for callbacks with
    select(), whose thread ends at descriptor 1024. Then a query with a listener never starts.
    """
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
    if "client" in request.fixturenames:
        admin = request.getfixturevalue("client").admin
        for topic in admin.list_topics():
            if not topic.name.startswith(SOURCE):
                admin.delete_topic(topic.name)


def _tell_stacks() -> None:
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            os.kill(int(pid), signal.SIGQUIT)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_java()
    from tests.spark.session import new_session

    session = new_session(tmp_path_factory.mktemp("spark"), master="local[2,3]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[sync.Client]:
    with sync.connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: sync.Client, request: pytest.FixtureRequest) -> str:
    """Three partitions on three brokers, of this test alone."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    client.admin.create_topic(name, partitions=3, replication_factor=3)
    return name


@pytest.fixture(scope="module")
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Of each task some rows stand in the topic while others are still to come."""
    from tests.spark.faults import FaultyDataSource

    spark.dataSource.register(FaultyDataSource)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, str(ROWS_OF_ARROW_BATCH))
    yield
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def source(client: sync.Client, request: pytest.FixtureRequest) -> str:
    """400 records in two partitions."""
    from tests.spark.copying import COUNT
    from tests.spark.frames import fill

    name = f"{SOURCE}{request.module.__name__.rpartition('.')[2]}"
    client.admin.create_topic(name, partitions=2, replication_factor=3)
    fill(client, name, range(COUNT))
    return name


@pytest.fixture
def make_copy(
    server: Server, client: sync.Client, source: str, topic: str, tmp_path: Path
) -> Callable[[str], Copy]:
    from tests.spark.copying import Copy

    def make(delivery: str, name: str = "copy") -> Copy:
        target, folder = f"{topic}-{name}-{delivery}", tmp_path / f"{name}-{delivery}"
        client.admin.create_topic(target, partitions=3, replication_factor=3)
        folder.mkdir()
        return Copy(server.bootstrap, source, target, str(folder), delivery)

    return make


def require_java() -> None:
    if shutil.which("java") is None:
        pytest.skip("no java: Spark needs Java 17")
