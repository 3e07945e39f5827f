"""A job's rows written to a topic by Spark tasks, as named producers of the job and generation.

A second run of a generation adds nothing if its rows come in the same order, task by task:
`rows_to_replay` and `in_order` (bulk_load) take care of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click
from pyspark.sql import Observation
from pyspark.sql import functions as sql

from spark_io.jobs.causes import JobError
from spark_io.jobs.command import shown_progress
from spark_io.lookup import count_partitions
from spark_io.options.source import LABEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame


class SinkTarget(NamedTuple):
    """The topic, and the name of the job that writes to it."""

    bootstrap: str
    topic: str
    job_id: str
    generation: int

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SinkTarget:
        """Out of the values of `sending_options`."""
        return cls(**{name: given[name] for name in cls._fields})


def check_target(target: SinkTarget, partition_max: int | None = None) -> None:
    """Whether the topic is there, and has the partitions that rows name, before any is sent.

    Args:
        partition_max: the highest that a row names; None: keys decide.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
        JobError: it has fewer partitions.
    """
    count = count_partitions(target.bootstrap.split(","), target.topic, LABEL)
    if partition_max is not None and partition_max >= count:
        raise JobError(
            f"rows name partitions up to {partition_max}, and topic {target.topic!r} has {count}:"
            f" raftmq topic alter {target.topic} --partitions {partition_max + 1}, or --by-key"
        )


def send(rows: DataFrame, target: SinkTarget) -> None:
    """Returns once every row is acknowledged by all in-sync replicas, and prints their number.

    Raises:
        PySparkException: with the text of a RaftmqError in it.
    """
    counted = Observation()
    writer = rows.observe(counted, sql.count(sql.lit(1)).alias("rows")).write.format("raftmq")
    options = {
        "bootstrap.servers": target.bootstrap,
        "topic": target.topic,
        "transactionalId": target.job_id,
        "generation": str(target.generation),
    }
    with shown_progress(rows.sparkSession):
        writer.options(**options).mode("append").save()
    click.echo(
        f"{counted.get['rows']} rows of {target.job_id!r}, generation {target.generation}, stand "
        f"in {target.topic}"
    )
