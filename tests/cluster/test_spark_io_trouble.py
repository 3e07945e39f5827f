"""Spark's tasks and driver while partitions change their leader, or have none."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from raftmq import sync, testing
from raftmq.errors import (
    DeliveryTimedOut,
    LeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
    Unreachable,
)

pytest.importorskip("pyspark")

from spark_io.planning import Split
from spark_io.ranges import OffsetRange
from tests.cluster.spark_io_here import (
    batch_reader,
    fill,
    ranges_of,
    rows_in,
    rows_of,
    source,
    stream_reader,
    write,
)
from tests.unit.spark_io.tasks import frame, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

HASTE = {"retryTimeoutMs": "1000"}
# One batch at a time, so that there is something left to fetch.
ONE_BY_ONE = {
    "kafka.max.partition.fetch.bytes": "1",
    "kafka.prefetch.bytes": "1",
    "kafka.max.poll.records": "10",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sync.Client]:
    with sync.connect(server.bootstrap) as client:
        yield client


@pytest.fixture(autouse=True)
def whole(server: Server) -> Iterator[None]:
    """For the next test."""
    yield
    for node_id in set(server.nodes) - set(server.running):
        server.start_node(node_id)


def new_topic(client: sync.Client, request: pytest.FixtureRequest, *, replicas: int) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    client.admin.create_topic(name, partitions=1, replication_factor=replicas)
    return name


def kill_leader(server: Server, topic: str) -> None:
    leader = server.leader_of(topic)
    assert leader is not None
    server.kill_node(leader)


def stop_leader(server: Server, topic: str) -> None:
    """It has no other replica; the others have heard of it."""
    server.stop_node(server.leader_of(topic) or 0)
    while server.leader_of(topic) is not None:
        time.sleep(0.01)


def test_the_leader_dies_while_a_task_reads(
    server: Server, client: sync.Client, request: pytest.FixtureRequest
) -> None:
    """Each record comes once, in order."""
    topic = new_topic(client, request, replicas=3)
    fill(client, topic, *[10] * 30)
    reader = batch_reader(server, topic, **ONE_BY_ONE)
    batches = iter(reader.read(Split((OffsetRange(topic, 0, 5, 295),))))
    found = rows_of([next(batches)])
    kill_leader(server, topic)
    found += rows_of(batches)
    assert found == [(b"%d" % number, 0, number) for number in range(5, 295)]


def test_the_leader_dies_between_two_microbatches(
    server: Server, client: sync.Client, request: pytest.FixtureRequest
) -> None:
    """A broker that has gone does not end a query: the driver asks again."""
    topic = new_topic(client, request, replicas=3)
    fill(client, topic, 10)
    reader = stream_reader(server, topic)
    start = reader.initialOffset()
    kill_leader(server, topic)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {topic: {"0": 10}}
    assert ranges_of(reader.partitions(start, end)) == [f"{topic}-0[0:10]"]
    reader.stop()


def test_the_leader_dies_while_a_task_writes(
    server: Server, client: sync.Client, request: pytest.FixtureRequest
) -> None:
    """What it had acknowledged is there, and nothing stands there twice."""
    topic = new_topic(client, request, replicas=3)
    rows = [frame(value=[b"%d" % at for at in range(start, start + 100)]) for start in (0, 100)]

    def given() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        kill_leader(server, topic)
        yield rows[1]

    writer = source(server, topic=topic).writer(struct("value"), overwrite=False)
    assert write(writer, *given()).record_count == 200
    assert write(writer, *rows).skipped_count == 200
    with client.consumer(topic, start="earliest") as consumer:
        values = [next(consumer.records(timeout=30)).value for _ in range(200)]
    assert values == [b"%d" % at for at in range(200)]


def test_no_broker_answers() -> None:
    """A task that begins then waits as long as any other, and says how long that was."""
    with testing.broker() as server, sync.connect(server.bootstrap) as client:
        client.admin.create_topic("t", partitions=1)
        fill(client, "t", 10)
        server.kill_node(1)
        asked = OffsetRange("t", 0, 0, 10)
        with pytest.raises(Unreachable) as caught:
            rows_in(batch_reader(server, "t", **HASTE), asked)
        assert caught.value.__notes__ == ["tried for 1 s (retryTimeoutMs)"]
        start = threading.Timer(0.3, server.start_node, [1])
        start.start()
        assert len(rows_in(batch_reader(server, "t"), asked)) == 10
        start.join()


def test_nobody_leads(server: Server, client: sync.Client, request: pytest.FixtureRequest) -> None:
    """All tell what is the matter with which partition, once their time is over."""
    topic = new_topic(client, request, replicas=1)
    fill(client, topic, 10)
    asked = OffsetRange(topic, 0, 0, 10)
    stop_leader(server, topic)
    with pytest.raises(LeaderNotAvailable, match=f"{topic}-0: no leader") as caught:
        batch_reader(server, topic, **HASTE).partitions()
    assert caught.value.__notes__ == ["tried for 1 s (retryTimeoutMs)"]
    with pytest.raises(RequestTimedOut, match=f"{topic}-0: nothing has come.*: no leader"):
        rows_in(batch_reader(server, topic, **HASTE), asked)
    for delivery in ("idempotent", "at_least_once"):
        given = {"kafka.delivery.timeout.ms": "1000", "delivery": delivery, "topic": topic}
        writer = source(server, **given).writer(struct("value"), overwrite=False)
        with pytest.raises(DeliveryTimedOut, match=f"{topic}-0: .*no leader"):
            write(writer, frame(value=[b"v"]))


def test_a_topic_that_there_is_not(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A write to it is refused while it is planned, in a batch and in a stream."""
    given = source(server, topic="nowhere")
    with pytest.raises(UnknownTopicOrPartition, match="raftmq topic create nowhere"):
        given.writer(struct("value"), overwrite=False)
    with pytest.raises(UnknownTopicOrPartition, match="raftmq topic create nowhere"):
        given.streamWriter(struct("value"), overwrite=False)
    assert caplog.messages == []


def test_no_broker_answers_while_a_write_is_planned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is refused, as the address may be wrong, which the error names. Of a stream that is
    left to the tasks, which ask for longer: planning says so."""
    monkeypatch.setattr("spark_io.lookup.BATCH_SECONDS", 1.0)
    with testing.broker() as server:
        server.kill_node(1)
        with pytest.raises(Unreachable, match=f"no broker has answered: {server.bootstrap}: ") as e:
            source(server, topic="t").writer(struct("value"), overwrite=False)
        assert e.value.__notes__ == ["tried for 1 s"]
        with caplog.at_level(logging.WARNING, "spark_io"):
            source(server, topic="t").streamWriter(struct("value"), overwrite=False)
    [told] = [text for text in caplog.messages if "looked for by the tasks" in text]
    assert told.startswith("topic t is looked for by the tasks: ")
