"""Under which names Spark's tasks write: as named producers, or in a version that they share. Pure.

A task that runs again has the name and generation of before, on any machine and in any attempt, so
that brokers recognise the rows that were written already (decision 0022). With exactly_once all
tasks of a microbatch or job write into one version of a shared transaction, whose commit says which
attempts count (decision 0039).
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

QUERY_ID = "sql.streaming.queryId"  # properties that Spark sets for the tasks of a microbatch
BATCH_ID = "streaming.sql.batchId"


class Name(NamedTuple):
    """The arguments `name` and `generation` of `client.producer`."""

    name: str
    generation: int


class Version(NamedTuple):
    """A version of a shared transaction: all rows of one microbatch, or of one job.

    Attributes:
        lineage: whose versions these are; numbers of another lineage mean other rows.
    """

    transaction_id: str
    lineage: str
    number: int


def name_of_stream_task(
    query_id: str | None, batch_id: str | None, partition: int, *, transactional_id: str | None
) -> Name:
    """The query and the task's number are the name, the microbatch is the generation.

    Raises:
        RuntimeError: this Spark does not tell its tasks which microbatch is theirs.
    """
    query, batch = _microbatch(query_id, batch_id)
    return Name(f"{transactional_id or query}/{partition}", batch)


def version_of_microbatch(
    query_id: str | None, batch_id: str | None, *, transactional_id: str | None
) -> Version:
    """The query is the lineage: another checkpoint counts from 0 again.

    Raises:
        RuntimeError: see `name_of_stream_task`.
    """
    query, batch = _microbatch(query_id, batch_id)
    return Version(transactional_id or query, query, batch)


def version_of_job(job: str, generation: int) -> Version:
    """Args:
    job: see `name_of_batch_task`.
    """
    return Version(job, "", generation)


def _microbatch(query_id: str | None, batch_id: str | None) -> tuple[str, int]:
    if not query_id or batch_id is None:
        raise RuntimeError(
            f"this version of Spark does not set {QUERY_ID} and {BATCH_ID} for its tasks, without "
            'which rows cannot be told from repeated ones: use .option("delivery", "at_least_once")'
        )
    return query_id, int(batch_id)


def name_of_batch_task(job: str, partition: int, generation: int) -> Name:
    """The job and the task's number are the name.

    Args:
        job: its `transactionalId`, or a `new_job`.
    """
    return Name(f"{job}/{partition}", generation)


def next_task(name: Name, partition: int) -> Name:
    """The name of another task of the same job and generation."""
    return name._replace(name=f"{name.name.rpartition('/')[0]}/{partition}")


def new_job() -> str:
    """For a job without a name: unique, so that only retries of its own tasks are recognised."""
    return f"spark-{uuid4().hex}"
