"""Names of tasks: the same for an attempt that runs again, and for nobody else."""

from __future__ import annotations

import re

import pytest

from spark_io.names import (
    Name,
    Version,
    name_of_batch_task,
    name_of_stream_task,
    new_job,
    version_of_job,
    version_of_microbatch,
)


def test_a_task_of_a_stream() -> None:
    """The query and the task are the name, the microbatch is the generation."""
    assert name_of_stream_task("q-1", "7", 3, transactional_id=None) == Name("q-1/3", 7)
    assert name_of_stream_task("q-1", "0", 0, transactional_id=None) == Name("q-1/0", 0)


def test_a_name_of_its_own_is_used_in_place_of_the_query() -> None:
    assert name_of_stream_task("q-1", "7", 3, transactional_id="etl") == Name("etl/3", 7)


@pytest.mark.parametrize(("query", "batch"), [(None, "7"), ("", "7"), ("q-1", None), (None, None)])
@pytest.mark.parametrize("own", [None, "etl"])
def test_a_spark_that_does_not_tell(query: str | None, batch: str | None, own: str | None) -> None:
    """Rows would be taken for repeated ones, or written twice: neither is guessed."""
    with pytest.raises(RuntimeError) as caught:
        name_of_stream_task(query, batch, 0, transactional_id=own)
    told = str(caught.value)
    with pytest.raises(RuntimeError, match=re.escape(told)):
        version_of_microbatch(query, batch, transactional_id=own)
    assert "sql.streaming.queryId" in told
    assert "streaming.sql.batchId" in told
    assert '.option("delivery", "at_least_once")' in told


def test_a_task_of_a_batch() -> None:
    assert name_of_batch_task("nightly", 3, 20261122) == Name("nightly/3", 20261122)


def test_the_version_of_a_microbatch() -> None:
    """Its numbers are those of the query's checkpoint, whatever the id is."""
    assert version_of_microbatch("q-1", "7", transactional_id=None) == Version("q-1", "q-1", 7)
    assert version_of_microbatch("q-1", "0", transactional_id="etl") == Version("etl", "q-1", 0)


def test_the_version_of_a_job() -> None:
    assert version_of_job("nightly", 20261122) == Version("nightly", "", 20261122)


def test_jobs_without_a_name_share_none() -> None:
    jobs = {new_job() for _ in range(100)}
    assert len(jobs) == 100
    assert all(job.startswith("spark-") for job in jobs)


def test_what_the_producer_takes() -> None:
    assert Name("q/0", 1)._asdict() == {"name": "q/0", "generation": 1}
