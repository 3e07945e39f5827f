"""`python -m spark_io.jobs.replay`: send Parquet files (of an export) to a topic, idempotently.

Owns the command, and the task and order of each row. Invariant: a second run of the same generation
sends the same rows in the same order and tasks, so that brokers skip them.
"""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import rich_click as click

from spark_io.jobs.causes import JobError
from spark_io.jobs.command import (
    CONTEXT,
    EXIT_CODES,
    dry_run_option,
    run,
    sending_options,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame


# -- Rows in order --------------------------------------------------------------------------------
# Rows of Parquet as a replay sends them: the same ones in the same tasks and order in each run.
#
# Invariant: the task that sends a row, and the row before it, follow from the row and its place in
# the files alone. Rows of a partition are sent by one task, by offset; where there are no offsets,
# by file and place in it.


SENT = ("key", "value", "headers", "tags")  # columns that are sent wherever the files have them
_TASK, _FILE, _PATH, _ROW = "_task", "_file", "_path", "_row"
_TOPIC = re.compile(r"/topic=([^/]+)/")


def rows_to_replay(
    frame: DataFrame, *, keep_partitions: bool | None, keep_timestamps: bool, tasks: int
) -> DataFrame:
    """The columns that are sent, each row in its task, sorted.

    Args:
        frame: of `spark.read.parquet`.
        keep_partitions: each row goes to the partition in its column; else its key decides.
            None: as the column, where there is one.

    Raises:
        JobError: a column is missing that this needs.
    """
    from pyspark.sql import functions as sql

    names = _columns_sent(frame.columns, keep_partitions, keep_timestamps)
    order = [name for name in ("partition", "offset") if name in frame.columns]
    placed = frame.select(
        *dict.fromkeys([*names, *order]),
        _task(frame.columns).alias(_TASK),
        sql.col("_metadata.file_name").alias(_FILE),
        sql.col("_metadata.file_path").alias(_PATH),
        sql.col("_metadata.row_index").alias(_ROW),
    )
    placed = placed.repartitionById(tasks, _TASK)
    return placed.sortWithinPartitions(*order, _FILE, _PATH, _ROW).select(*names)


def check_one_topic(files: Iterable[str]) -> None:
    """Raises: JobError: the folder holds exports of several topics."""
    topics = sorted({found[1] for file in files for found in _TOPIC.finditer(file)})
    if len(topics) > 1:
        raise JobError(
            f"the folder holds the topics {', '.join(topics)}: replay them one by one, from "
            f".../topic={topics[0]}"
        )


def _columns_sent(
    columns: list[str], keep_partitions: bool | None, keep_timestamps: bool
) -> list[str]:
    wanted = {"value": True, "partition": bool(keep_partitions), "timestamp": keep_timestamps}
    missing = [name for name, is_wanted in wanted.items() if is_wanted and name not in columns]
    if missing:
        raise JobError(f"there is no column {' or '.join(missing)} among {', '.join(columns)}")
    names = [name for name in SENT if name in columns]
    if keep_partitions or (keep_partitions is None and "partition" in columns):
        names.append("partition")
    return [*names, "timestamp"] if keep_timestamps else names


def _task(columns: list[str]) -> Column:
    """The number of the task that sends a row, modulo the number of tasks."""
    from pyspark.sql import functions as sql

    if "partition" in columns:
        return sql.col("partition").cast("int")
    return sql.hash(sql.col("_metadata.file_name"))


# -- Replay ---------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    return run(replay, "spark_io.jobs.replay", argv)


@click.command(
    context_settings=CONTEXT,
    epilog=cleandoc(f"""
    Examples:

    python -m spark_io.jobs.replay /mnt/exports/topic=orders --to orders-copy --id copy
    --generation 1 --keep-timestamps

    python -m spark_io.jobs.replay s3a://bucket/orders --to orders --id restore
    --generation 20261122 --by-key --dry-run

    {EXIT_CODES}
    """),
)
@click.argument("folder", metavar="FOLDER")
@sending_options
@click.option(
    "--keep-partitions/--by-key",
    "keep_partitions",
    default=None,
    help="Each record goes to the partition that its column says, or to that of its key; else the"
    " former, where there is such a column.",
)
@click.option(
    "--keep-timestamps", is_flag=True, help="As they are in the files; else the time of now."
)
@dry_run_option("Count what would be sent, and send nothing; brokers are asked about the topic.")
def replay(folder: str, **given: Any) -> int:  # noqa: ANN401  # click's
    """Send the rows of the files in FOLDER to a topic, in the order of their offsets.

    FOLDER is that of a topic that was exported, or any with a column value, and perhaps key,
    headers, tags, timestamp, partition and offset. A second run adds nothing.
    """
    from spark_io.jobs.command import open_session
    from spark_io.jobs.sending import SinkTarget, check_target, send

    target = SinkTarget.of(given)
    with open_session("raftmq replay") as session:
        frame = session.read.parquet(folder)
        check_one_topic(frame.inputFiles())
        rows = rows_to_replay(
            frame,
            keep_partitions=given["keep_partitions"],
            keep_timestamps=given["keep_timestamps"],
            tasks=given["tasks"],
        )
        check_target(target, _partition_max(frame) if "partition" in rows.columns else None)
        if given["is_dry"]:
            _show_counts(frame)
        else:
            send(rows, target)
    return 0


def _partition_max(frame: DataFrame) -> int | None:
    """The highest partition of a row; None: there are no rows. It reads that column alone."""
    from pyspark.sql import functions as sql

    # The highest of a column of text would be text; the sink refuses that type by its name.
    partition = sql.col("partition").cast("int")
    found: int | None = frame.agg(sql.max(partition)).collect()[0][0]
    return found


def _show_counts(frame: DataFrame) -> None:
    """By partition, where there is such a column."""
    from pyspark.sql import functions as sql

    numbers = [sql.count(sql.lit(1)).alias("rows")]
    if "offset" in frame.columns:
        numbers += [sql.min("offset").alias("first"), sql.max("offset").alias("last")]
    groups = [name for name in ("partition",) if name in frame.columns]
    counts = frame.groupBy(*groups).agg(*numbers).orderBy(*groups)
    write_table(counts.columns, counts.collect())


if __name__ == "__main__":
    sys.exit(main())
