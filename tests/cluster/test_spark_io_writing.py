"""What tasks of Spark write to real brokers: rows that are repeated, others, and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq import sync, testing
from raftmq.errors import (
    InvalidRecord,
    MessageTooLarge,
    RaftmqError,
    ReplayMismatch,
    UnknownTopicOrPartition,
)

pytest.importorskip("pyspark")

from spark_io.names import Name
from spark_io.writing import Written
from tests.cluster.spark_io_here import all_rows, batch_reader, source, write
from tests.unit.spark_io.tasks import frame, sent_away, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from raftmq.testing.server import Server
    from spark_io.source import BatchWriter, StreamWriter

pytestmark = pytest.mark.cluster

AGAIN = {"delivery": "at_least_once"}
ROWS = [b"%d" % number for number in range(100)]
KEYS = [b"k%d" % (number % 7) for number in range(100)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.broker() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sync.Client]:
    with sync.connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: sync.Client, request: pytest.FixtureRequest) -> str:
    """Of this test alone, with two partitions."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    client.admin.create_topic(name, partitions=2)
    return name


@pytest.fixture
def stream(server: Server, topic: str) -> Any:
    """Each call gives a new writer, as each microbatch and each attempt have one."""

    def new_writer(**options: str) -> StreamWriter:
        given = {"topic": topic, "delivery": "idempotent", **options}
        writer = source(server, **given).streamWriter(struct("key", "value"), overwrite=False)
        return sent_away(writer)

    return new_writer


def batch_writer(server: Server, *columns: str, **options: str) -> BatchWriter:
    return source(server, **options).writer(struct(*columns), overwrite=False)


def rows(start: int = 0, end: int = 100) -> pa.RecordBatch:
    return frame(key=KEYS[start:end], value=ROWS[start:end])


def values_in(server: Server, topic: str) -> list[bytes]:
    return sorted((row[0] for row in all_rows(batch_reader(server, topic))), key=int)


def test_a_microbatch_that_runs_twice(server: Server, topic: str, stream: Any) -> None:
    """The second time all is skipped, however the rows are cut into batches."""
    assert write(stream(), rows(), batch=0) == Written(Name("q/0", 0), 100, 0, (topic,))
    again = write(stream(), rows(0, 33), rows(33, 34), rows(34), batch=0)
    assert again == Written(Name("q/0", 0), 100, 100, (topic,))
    assert values_in(server, topic) == ROWS


def test_the_next_microbatch(server: Server, topic: str, stream: Any) -> None:
    """Its rows are new, be they the same."""
    write(stream(), rows(0, 10), batch=0)
    assert write(stream(), rows(0, 10), batch=1).skipped_count == 0
    assert write(stream(), rows(0, 10), batch=1).skipped_count == 10
    assert values_in(server, topic) == sorted(ROWS[:10] * 2, key=int)


def test_tasks_side_by_side(server: Server, topic: str, stream: Any) -> None:
    """Each has a name of its own, so each skips what is its own."""
    write(stream(), rows(0, 50), batch=0, partition=0)
    assert write(stream(), rows(50), batch=0, partition=1).skipped_count == 0
    assert write(stream(), rows(0, 50), batch=0, partition=0).skipped_count == 50
    assert values_in(server, topic) == ROWS


def test_fewer_tasks_than_before(server: Server, topic: str, stream: Any) -> None:
    """The first finds its own rows, and sends those of the others once more: the driver asks."""
    before = [write(stream(), rows(at, at + 50), batch=0, partition=at // 50) for at in (0, 50)]
    stream().commit(before, 0)
    alone = write(stream(), rows(), batch=0)
    assert alone.record_count == 100
    with pytest.raises(ReplayMismatch, match=r"had more tasks: 'q/1', generation 0"):
        stream().commit([alone], 0)
    with pytest.raises(ReplayMismatch, match="had more tasks"):
        source(server, topic=topic, transactionalId="q", generation="0").writer(
            struct("key", "value"), overwrite=False
        ).commit([alone])
    stream().commit([write(stream(), rows(), batch=1)], 1)


def test_other_rows(server: Server, topic: str, stream: Any) -> None:
    """As behind a shuffle: what stands there is not what comes now, and nothing is added."""
    write(stream(), rows(), batch=0)
    shuffled = frame(key=KEYS[::-1], value=ROWS[::-1])
    with pytest.raises(ReplayMismatch, match=topic):
        write(stream(), shuffled, batch=0)
    assert values_in(server, topic) == ROWS


@pytest.mark.parametrize("end", [60, 0])
def test_fewer_rows(server: Server, topic: str, stream: Any, end: int) -> None:
    """Even none: the task says which topic it would have written to."""
    write(stream(), rows(), batch=0)
    with pytest.raises(ReplayMismatch, match=topic):
        write(stream(), *([rows(0, end)] if end else []), batch=0)
    assert values_in(server, topic) == ROWS


def test_more_rows(server: Server, topic: str, stream: Any) -> None:
    """The attempt before has not come so far."""
    write(stream(), rows(0, 60), batch=0)
    assert write(stream(), rows(), batch=0) == Written(Name("q/0", 0), 100, 60, (topic,))
    assert values_in(server, topic) == ROWS


def test_no_rows(server: Server, topic: str, stream: Any) -> None:
    for _ in range(2):
        assert write(stream(), batch=0) == Written(Name("q/0", 0), 0, 0, (topic,))
    assert write(stream(), rows(0, 0), batch=0).record_count == 0
    assert values_in(server, topic) == []


def test_a_microbatch_of_before(topic: str, stream: Any) -> None:
    """Somebody runs with an older checkpoint: it is told, and writes nothing."""
    write(stream(), rows(), batch=5)
    with pytest.raises(RaftmqError, match=topic):
        write(stream(), rows(), batch=4)


def test_a_task_that_dies(server: Server, topic: str, stream: Any) -> None:
    """What it has sent before its rows failed is skipped by the next attempt."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0, 70)
        raise OSError("the executor is lost")

    with pytest.raises(OSError, match="the executor is lost"):
        write(stream(), *failing(), batch=0)
    assert write(stream(), rows(), batch=0).record_count == 100
    assert values_in(server, topic) == ROWS


def test_at_least_once(server: Server, topic: str, stream: Any) -> None:
    for _ in range(2):
        assert write(stream(**AGAIN), rows(0, 10), batch=0) == Written(None, 10, 0, (topic,))
    assert values_in(server, topic) == sorted(ROWS[:10] * 2, key=int)


def test_a_job_that_runs_once(server: Server, topic: str) -> None:
    """Its attempts know each other, and no other job knows them."""
    writer = batch_writer(server, "key", "value", topic=topic)
    assert write(sent_away(writer), rows(0, 10)).skipped_count == 0
    assert write(sent_away(writer), rows(0, 10)).skipped_count == 10
    other = batch_writer(server, "key", "value", topic=topic)
    assert write(sent_away(other), rows(0, 10)).skipped_count == 0
    assert values_in(server, topic) == sorted(ROWS[:10] * 2, key=int)


def test_a_job_with_a_name(server: Server, topic: str) -> None:
    """It may run again as a whole, and has other rows under the next number."""
    skipped = []
    for generation in ("20261121", "20261121", "20261122"):
        given = {"topic": topic, "transactionalId": "nightly", "generation": generation}
        written = write(batch_writer(server, "key", "value", **given), rows(0, 10), partition=3)
        assert written.name == Name("nightly/3", int(generation))
        skipped.append(written.skipped_count)
    assert skipped == [0, 10, 0]
    assert values_in(server, topic) == sorted(ROWS[:10] * 2, key=int)


def test_several_topics(server: Server, client: sync.Client) -> None:
    """Each row says which; what stands in each of them is skipped."""
    names = ["several-a", "several-b"]
    for name in names:
        client.admin.create_topic(name, partitions=2)
    mixed = frame(value=ROWS, topic=[names[number % 2] for number in range(100)])
    writer = batch_writer(server, "value", "topic")
    assert write(writer, mixed).skipped_count == 0
    assert write(writer, mixed.slice(0, 51), mixed.slice(51)).skipped_count == 100
    assert [values_in(server, name) for name in names] == [ROWS[::2], ROWS[1::2]]


def test_partitions_and_order(server: Server, topic: str) -> None:
    """A column says where a row goes; rows of a partition stay in order."""
    chosen = frame(value=ROWS, partition=[number % 3 % 2 for number in range(100)])
    write(batch_writer(server, "value", "partition", topic=topic), chosen)
    found = all_rows(batch_reader(server, topic))
    for partition in (0, 1):
        there = [value for value, at, _ in found if at == partition]
        assert there == [ROWS[number] for number in range(100) if number % 3 % 2 == partition]


@pytest.mark.parametrize("given", [{}, {"kafka.max.request.size": "4194304"}, AGAIN])
def test_the_way_out_of_a_row_that_is_too_large(
    server: Server, topic: str, given: dict[str, str]
) -> None:
    """2 MiB are refused by the producer, and then by the broker: both name option and command."""
    row = frame(value=[b"x" * (2 << 20)])
    with pytest.raises(RaftmqError) as caught:
        write(batch_writer(server, "value", topic=topic, **given), row)
    note = caught.value.__notes__[-1]
    assert '"kafka.max.request.size", BYTES' in note
    assert f"raftmq topic alter {topic} -c max.message.bytes=" in note


def test_a_row_that_is_too_large(server: Server, topic: str) -> None:
    writer = batch_writer(server, "value", topic=topic)
    with pytest.raises(MessageTooLarge):
        write(writer, frame(value=[b"small", b"x" * (2 << 20)]))


def test_a_partition_that_is_not_there(server: Server, topic: str) -> None:
    """The error names it, with the topic."""
    writer = batch_writer(server, "value", "partition", topic=topic)
    with pytest.raises(RaftmqError, match=f"partition 7: topic '{topic}' has the"):
        write(writer, frame(value=[b"v"], partition=[7]))


def test_a_row_without_a_topic(server: Server) -> None:
    writer = batch_writer(server, "value", "topic")
    with pytest.raises(InvalidRecord, match="column topic is null in 1 of 2 rows"):
        write(writer, frame(value=[b"a", b"b"], topic=["anywhere", None]))


def test_a_topic_of_a_row_that_is_not_there(server: Server) -> None:
    """Topics that rows name are met by the tasks; that of an option is refused while planning."""
    writer = batch_writer(server, "value", "topic")
    with pytest.raises(UnknownTopicOrPartition, match="raftmq topic create nowhere"):
        write(writer, frame(value=[b"a"], topic=["nowhere"]))
