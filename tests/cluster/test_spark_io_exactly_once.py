"""Microbatches and jobs as versions of shared transactions: each of their ends, and who is refused.

Rows stand in the topic once the driver has committed; `values` are those that readers get.

A14.3.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from raftmq import sync, testing
from raftmq.errors import (
    InvalidTransaction,
    InvalidTransactionTimeout,
    MessageTooLarge,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
    TransactionAborted,
)

pytest.importorskip("pyspark")

from tests.cluster.data_here import wait_until
from tests.cluster.spark_io_here import all_rows, batch_reader, source, write
from tests.unit.spark_io.tasks import frame, sent_away, struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from raftmq.testing.server import Server
    from spark_io.source import BatchWriter, StreamWriter

pytestmark = pytest.mark.cluster

ROWS = [b"%d" % number for number in range(100)]
KEYS = [b"k%d" % (number % 7) for number in range(100)]
EXACTLY = {"delivery": "exactly_once"}


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
    """Each call gives a new writer of the query "q", as each microbatch and each attempt have one.
    Its transactions bear the name of the test.
    """

    def new_writer(**options: str) -> StreamWriter:
        given = {"topic": topic, "transactionalId": topic, **EXACTLY, **options}
        writer = source(server, **given).streamWriter(struct("key", "value"), overwrite=False)
        return sent_away(writer)

    return new_writer


@pytest.fixture
def values(server: Server, topic: str) -> Callable[[], list[bytes]]:
    """Those that readers get: what is committed can be read by then."""
    return lambda: sorted((row[0] for row in all_rows(batch_reader(server, topic))), key=int)


def batch_writer(server: Server, **options: str) -> BatchWriter:
    given = {**EXACTLY, **options}
    return sent_away(source(server, **given).writer(struct("key", "value"), overwrite=False))


def rows(start: int = 0, end: int = 100) -> pa.RecordBatch:
    return frame(key=KEYS[start:end], value=ROWS[start:end])


# -- What counts ----------------------------------------------------------------------------------


def test_nothing_counts_before_the_driver_commits(values: Any, stream: Any) -> None:
    """The one that commits is another writer."""
    written = [write(stream(), rows(at, at + 50), batch=0, partition=at // 50) for at in (0, 50)]
    assert values() == []
    stream().commit(written, 0)
    assert values() == ROWS


def test_attempts_that_do_not_count(values: Any, stream: Any) -> None:
    """In any order and at any time: before the one that counts, beside it, and after the commit."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(20, 60)
        raise OSError("the executor is lost")

    with pytest.raises(OSError, match="the executor is lost"):
        write(stream(), *failing(), batch=0)
    write(stream(), rows(0, 30), batch=0)
    counts = write(stream(), frame(key=KEYS[::-1], value=ROWS[::-1]), batch=0)
    write(stream(), rows(), batch=0)
    stream().commit([counts], 0)
    late = write(stream(), rows(), batch=0)
    assert (late.record_count, late.skipped_count) == (100, 100)
    assert values() == ROWS


def test_a_driver_that_died_before_its_commit(values: Any, stream: Any) -> None:
    """What runs again may have other tasks and other rows."""
    for partition in range(4):
        write(stream(), rows(), batch=0, partition=partition)
    again = [write(stream(), rows(at, at + 30), batch=0, partition=at) for at in (0, 30)]
    stream().commit(again, 0)
    assert values() == ROWS[:60]


def test_a_driver_that_died_after_its_commit(values: Any, stream: Any) -> None:
    """All of it is counted, and nothing is sent."""
    stream().commit([write(stream(), rows(), batch=0)], 0)
    again = [write(stream(), rows(at, at + 50), batch=0, partition=at // 50) for at in (0, 50)]
    assert [each.skipped_count for each in again] == [50, 50]
    stream().commit(again, 0)
    stream().commit([write(stream(), rows(0, 10), batch=1)], 1)
    assert values() == sorted([*ROWS, *ROWS[:10]], key=int)


def test_tasks_without_rows(values: Any, stream: Any) -> None:
    """They join nothing; a microbatch of only such tasks ends what was open of it."""
    nothing = write(stream(), rows(0, 0), batch=0, partition=1)
    assert nothing.receipt is None
    write(stream(), rows(), batch=0)
    stream().commit([nothing, write(stream(), batch=0)], 0)
    assert values() == []
    some = write(stream(), rows(0, 10), batch=1)
    stream().commit([write(stream(), batch=1, partition=1), some], 1)
    assert values() == ROWS[:10]


def test_a_query_without_an_id_of_its_own(server: Server, client: sync.Client, topic: str) -> None:
    writer = source(server, topic=topic, **EXACTLY).streamWriter(struct("value"), overwrite=False)
    writer.commit([write(writer, frame(value=[b"1"]), batch=0)], 0)
    assert client.admin.describe_transaction("q").last_version == 0


def test_several_topics(server: Server, client: sync.Client) -> None:
    names = ["exactly-a", "exactly-b"]
    for name in names:
        client.admin.create_topic(name, partitions=2)
    mixed = frame(value=ROWS, topic=[names[number % 2] for number in range(100)])
    writer = source(server, **EXACTLY).writer(struct("value", "topic"), overwrite=False)
    writer.commit([write(writer, mixed)])
    found = [sorted(row[0] for row in all_rows(batch_reader(server, name))) for name in names]
    assert found == [sorted(ROWS[::2]), sorted(ROWS[1::2])]


# -- Jobs -----------------------------------------------------------------------------------------


def test_a_job(server: Server, topic: str, values: Any) -> None:
    """It can be read as soon as it is done, and the same one once more is another."""
    for times in (1, 2):
        writer = batch_writer(server, topic=topic)
        written = [write(writer, rows(at, at + 50), partition=at // 50) for at in (0, 50)]
        writer.commit([*written])
        assert len(all_rows(batch_reader(server, topic))) == 100 * times


def test_a_job_that_failed(
    server: Server, client: sync.Client, topic: str, values: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers do not wait for it, nor for a task of it that comes late."""
    writer = batch_writer(server, topic=topic)
    other = batch_writer(server, topic=topic)
    with caplog.at_level(logging.WARNING, "spark_io"):
        writer.abort([write(writer, rows()), None])
        other.commit([write(other, rows(0, 10))])
        other.abort([])  # as after a commit without an answer
    assert [each.rpartition(" ")[2] for each in caplog.messages] == ["aborted", "committed"]
    write(writer, rows(), partition=1)
    assert values() == ROWS[:10]
    assert client.admin.open_transactions(topic) == ()


def test_a_job_that_failed_before_its_first_row(
    server: Server, client: sync.Client, topic: str
) -> None:
    """Nothing remembers it."""
    before = client.admin.list_transactions()
    batch_writer(server, topic=topic).abort([None])
    assert client.admin.list_transactions() == before


def test_a_job_whose_failed_attempt_alone_had_rows(
    server: Server, client: sync.Client, topic: str, values: Any
) -> None:
    """By a plan that makes others each time. Readers do not wait for them."""
    writer = batch_writer(server, topic=topic)
    write(writer, rows())
    writer.commit([write(writer)])
    wait_until(lambda: client.admin.open_transactions(topic) == ())
    assert values() == []


def test_a_job_with_a_name(server: Server, topic: str, values: Any) -> None:
    """A generation counts once."""
    for generation, skipped in (("1", 0), ("1", 10), ("2", 0)):
        given = {"topic": topic, "transactionalId": f"{topic}-job", "generation": generation}
        writer = batch_writer(server, **given)
        written = write(writer, rows(0, 10))
        assert written.skipped_count == skipped
        writer.commit([written])
    assert values() == sorted(ROWS[:10] * 2, key=int)


# -- What is refused ------------------------------------------------------------------------------


def test_a_job_below_the_newest_generation(server: Server, topic: str, values: Any) -> None:
    """Whether it was committed is not known any more: its rows must not be passed over unsaid."""

    def job(generation: int) -> BatchWriter:
        return batch_writer(
            server, topic=topic, transactionalId="load-below", generation=str(generation)
        )

    for generation in (5, 6):
        writer = job(generation)
        writer.commit([write(writer, rows(0, 10))])
    late = job(3)
    with pytest.raises(ReplayMismatch, match="below the newest one: 10 rows") as failed:
        late.commit([write(late, rows(10, 20))])
    assert "take a higher generation" in told(failed.value)
    job(4).commit([])


def told(error: RaftmqError) -> str:
    """The error, and the way out at its end."""
    return "\n".join([str(error), *error.__notes__])


def test_a_microbatch_with_other_rows_than_were_committed(
    values: Any, stream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a checkpoint that comes from an older copy; equal numbers are not noticed."""
    stream().commit([write(stream(), rows(), batch=0)], 0)
    with pytest.raises(ReplayMismatch, match="100") as caught:
        stream().commit([write(stream(), rows(0, 99), batch=0)], 0)
    assert "checkpoint comes from an older copy" in told(caught.value)
    again = stream(failOnReplayMismatch="false")
    with caplog.at_level(logging.WARNING, "spark_io"):
        again.commit([write(again, rows(0, 99), batch=0)], 0)
    assert "rows are passed over: " in caplog.text
    assert values() == ROWS


def test_a_microbatch_below_the_newest(values: Any, stream: Any) -> None:
    """As of a checkpoint that is an older copy: its rows may be others, and are not passed over
    unsaid."""
    for batch in range(3):
        at = 10 * batch
        stream().commit([write(stream(), rows(at, at + 10), batch=batch)], batch)
    again = write(stream(), rows(30, 40), batch=1)
    with pytest.raises(ReplayMismatch, match="below the newest one: 10 rows"):
        stream().commit([again], 1)
    stream(failOnReplayMismatch="false").commit([again], 1)
    assert values() == ROWS[:30]


def test_another_checkpoint_with_the_same_id(
    values: Any, stream: Any, server: Server, topic: str
) -> None:
    """Before the first row is sent."""
    stream().commit([write(stream(), rows(), batch=0)], 0)
    with pytest.raises(InvalidTransaction) as caught:
        write(stream(), rows(), batch=0, query="r")
    assert f"raftmq transaction forget {topic}" in told(caught.value)
    job = batch_writer(server, topic=topic, transactionalId=topic, generation="0")
    with pytest.raises(InvalidTransaction, match="lineage") as caught:
        write(job, rows())
    assert "say another transactionalId" in told(caught.value)
    assert values() == ROWS


def test_a_later_microbatch_has_begun(values: Any, stream: Any) -> None:
    """By another driver with the same checkpoint."""
    write(stream(), rows(), batch=5)
    with pytest.raises(ProducerFenced) as caught:
        write(stream(), rows(), batch=4)
    assert "another driver runs a later microbatch" in told(caught.value)
    stream().abort([write(stream(), rows(), batch=5)], 5)
    assert values() == []


def test_a_microbatch_of_which_no_task_has_ended(
    client: sync.Client, stream: Any, topic: str, tmp_path: Path
) -> None:
    """The checkpoint says whose it is, where it can be read; else time ends it."""

    def open_here() -> int:
        return len(client.admin.open_transactions(topic))

    write(stream(), rows(), batch=0)  # and the driver does not hear of it
    stream(checkpointLocation=str(tmp_path)).abort([None], 0)
    assert open_here() > 0
    tmp_path.joinpath("metadata").write_text('{"id":"q"}')
    stream(checkpointLocation=tmp_path.as_uri()).abort([None], 0)
    wait_until(lambda: open_here() == 0)


def test_a_microbatch_that_was_aborted_meanwhile(
    client: sync.Client, values: Any, stream: Any, topic: str
) -> None:
    """By hand, by time or by another driver: all of it runs again."""
    first = write(stream(), rows(0, 50), batch=0)
    client.admin.abort_transaction(topic)
    second = write(stream(), rows(50), batch=0, partition=1)
    with pytest.raises(TransactionAborted) as caught:
        stream().commit([first, second], 0)
    assert "start the query again, with the same checkpoint" in told(caught.value)
    assert "maxOffsetsPerTrigger" in told(caught.value)
    again = [write(stream(), rows(at, at + 50), batch=0, partition=at // 50) for at in (0, 50)]
    stream().commit(again, 0)
    assert values() == ROWS


def test_a_microbatch_that_takes_too_long(values: Any, stream: Any) -> None:
    written = write(stream(transactionTimeoutMs="1000"), rows(), batch=0)
    time.sleep(2.5)
    with pytest.raises(TransactionAborted) as caught:
        stream(transactionTimeoutMs="1000").commit([written], 0)
    assert "longer than transactionTimeoutMs = 1000" in told(caught.value)
    assert values() == []


def test_a_timeout_that_is_not_allowed(stream: Any) -> None:
    with pytest.raises(InvalidTransactionTimeout, match="timeout_ms_max") as caught:
        write(stream(transactionTimeoutMs="900001"), rows(), batch=0)
    assert 'say .option("transactionTimeoutMs"' in told(caught.value)


def test_a_row_that_is_too_large(values: Any, stream: Any) -> None:
    with pytest.raises(RaftmqError) as caught:
        write(stream(), frame(key=[b"k"], value=[b"x" * (2 << 20)]), batch=0)
    assert MessageTooLarge in (type(caught.value), type(caught.value.__cause__))
    assert '"kafka.max.request.size", BYTES' in told(caught.value)
    assert "maxOffsetsPerTrigger" not in told(caught.value)
