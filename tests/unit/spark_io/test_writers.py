"""Writers on their way to tasks, and the names under which a task writes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from spark_io.names import Name
from spark_io.options.sink import sink_options
from spark_io.source import BatchWriter, StreamWriter, query_id_in
from spark_io.writing import Written
from tests.unit.spark_io.tasks import sent_away, task

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
NAMED, AGAIN = {"delivery": "idempotent"}, {"delivery": "at_least_once"}
MESSAGES = [Written(Name("q/0", 1), 10, 4), None]


def of_batch(**given: str) -> BatchWriter:
    return BatchWriter(sink_options({**NOBODY, **given}, is_stream=False))


def of_stream(**given: str) -> StreamWriter:
    return StreamWriter(sink_options({**NOBODY, **given}, is_stream=True))


def test_all_tasks_and_attempts_of_a_job_know_its_name() -> None:
    """It is made once, in the driver."""
    writer = of_batch()
    with task(3):
        name = writer._name()
        assert sent_away(writer)._name() == sent_away(writer)._name() == name
    with task(4):
        other = writer._name()
    assert name
    assert other
    assert (name.name, other.name) == (f"{writer._job}/3", f"{writer._job}/4")
    assert name.generation == other.generation == 0


def test_jobs_without_a_name_have_different_ones() -> None:
    with task():
        assert of_batch()._name() != of_batch()._name()


def test_a_job_with_a_name() -> None:
    with task(2):
        name = of_batch(transactionalid="nightly", generation="20261122")._name()
    assert name == Name("nightly/2", 20261122)


def test_a_task_of_a_microbatch() -> None:
    with task(2, query="q-1", batch="17"):
        assert sent_away(of_stream(**NAMED))._name() == Name("q-1/2", 17)
        assert of_stream(**NAMED, transactionalid="etl")._name() == Name("etl/2", 17)


@pytest.mark.parametrize("properties", [{}, {"query": "q-1"}, {"batch": "17"}])
def test_a_spark_that_does_not_say_which_microbatch(properties: dict[str, str]) -> None:
    """Before anything is sent; who may have rows twice needs none of it."""
    with task(2, **properties):
        with pytest.raises(RuntimeError, match=r"does not set sql\.streaming\.queryId and"):
            of_stream().write(iter(()))
        assert of_stream(**AGAIN)._name() is None


def test_at_least_once_has_no_names() -> None:
    with task(2, query="q-1", batch="17"):
        assert of_batch(**AGAIN)._name() is None
        assert of_stream(**AGAIN)._name() is None


def test_the_driver_counts(caplog: pytest.LogCaptureFixture) -> None:
    """By the writer that has made nothing but itself: a stream's is another object each time."""
    with caplog.at_level(logging.INFO, "spark_io"):
        writer = of_batch()
        writer.commit([*MESSAGES])
        writer.abort([*MESSAGES])
        sent_away(of_stream()).commit([*MESSAGES], 17)
        sent_away(of_stream()).abort([*MESSAGES], 17)
    assert caplog.messages == [
        f"written: job={writer._job} records=10 skipped=4",
        f"failed: job={writer._job} records=10 stay",
        "written: batch=17 records=10 skipped=4",
        "failed: batch=17 records=10 stay",
    ]


def test_the_query_by_its_checkpoint(tmp_path: Path) -> None:
    """A folder of this machine, as Spark leaves it; a file system of Hadoop is none."""
    tmp_path.joinpath("metadata").write_text('{"id":"0-1-2"}')
    assert query_id_in(str(tmp_path)) == query_id_in(f"file:{tmp_path}") == "0-1-2"
    assert query_id_in(tmp_path.as_uri()) == "0-1-2"
    for other in (None, "", "s3a://bucket/path", str(tmp_path / "none")):
        assert query_id_in(other) is None
    tmp_path.joinpath("metadata").write_text("{}")
    assert query_id_in(str(tmp_path)) is None
