"""Rows of Parquet as a replay sends them: the same ones in the same tasks and order in each run.

Invariant: which task sends a row, and behind which other one, follows from the row and its place in
the files alone. Rows of a partition are sent by one task, by offset; where there are no offsets, by
file and place in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from spark_io.jobs.causes import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

SENT = ("key", "value", "headers", "tags")
_TASK, _FILE, _PATH, _ROW = "_task", "_file", "_path", "_row"
_TOPIC = re.compile(r"/topic=([^/]+)/")


def rows_to_replay(
    frame: DataFrame, *, keep_partitions: bool | None, keep_timestamps: bool, tasks: int
) -> DataFrame:
    """
    Args:
        frame: of `spark.read.parquet`.
        keep_partitions: each row goes to the partition in its column; else its key says where.
            None: where there is such a column.

    Raises:
        JobError: a column is missing that this needs.
    """
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
    """
    Raises:
        JobError: the folder holds exports of several.
    """
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
    """Which one sends a row, modulo their number."""
    if "partition" in columns:
        return sql.col("partition").cast("int")
    return sql.hash(sql.col("_metadata.file_name"))
