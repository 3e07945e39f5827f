"""The format `raftmq` for Spark, registered by `spark.dataSource.register(RaftmqDataSource)`.

Owns which reader or writer is made of which options. Every problem that can be found in options and
columns alone is reported here, before any task starts.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
)

from raftmq.errors import InvalidConfig
from spark_io.arrow_columns import check_columns
from spark_io.lookup import Lookup, check_topic
from spark_io.names import (
    BATCH_ID,
    QUERY_ID,
    name_of_batch_task,
    name_of_stream_task,
    new_job,
    version_of_job,
    version_of_microbatch,
)
from spark_io.options.reader import passed_over
from spark_io.options.sink import sink_options
from spark_io.options.source import source_options
from spark_io.planning import Split, check_order, plan, within_logs
from spark_io.positions import At, resolve
from spark_io.python_processes import told_in_one_line
from spark_io.reading import read_ranges
from spark_io.schema import arrow_schema, ddl
from spark_io.stream_reader import RefusedReader, StreamReader
from spark_io.writing import (
    abort_version,
    check_dropped_tasks,
    commit_version,
    counted,
    stream_way_out,
    version_of,
    write_member,
    write_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition, WriterCommitMessage
    from pyspark.sql.types import StructType

    from spark_io.names import Name, Version
    from spark_io.options.sink import SinkOptions
    from spark_io.options.source import SourceOptions
    from spark_io.writing import Written


logger = logging.getLogger("spark_io")

STAYS = "stay"  # what becomes of rows without transactions


# -- Batch writer ---------------------------------------------------------------------------------
# `df.write.format("raftmq")`: tasks send rows, and the driver commits them or checks for dropped
# tasks.
#
# Made once in the driver when the job is planned, and pickled for its tasks.


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = options.transactional_id or new_job()

    @told_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self._options.is_transactional:
            return write_member(self._options, self._version, iterator)
        return write_rows(self._options, self._name(), iterator)

    @told_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All rows are acknowledged. A job without an id has no earlier attempts to check."""
        if self._options.is_transactional:
            commit_version(self._options, self._version, messages)
        elif self._options.transactional_id is not None:
            check_dropped_tasks(self._options, messages)
        count, skipped = counted(messages)
        logger.info("written: job=%s records=%d skipped=%d", self._job, count, skipped)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Without transactions acknowledged rows stay in the topic; the same job skips them when
        it is run again.
        """
        fate = STAYS
        if self._options.is_transactional:
            fate = abort_version(self._options, self._version, messages)
        count, _ = counted(messages)
        logger.warning("failed: job=%s records=%d %s", self._job, count, fate)

    @property
    def _version(self) -> Version:
        return version_of_job(self._job, self._options.generation or 0)

    def _name(self) -> Name | None:
        if not self._options.is_named:
            return None
        return name_of_batch_task(self._job, _task().partitionId(), self._options.generation or 0)


# -- Batch reader ---------------------------------------------------------------------------------
# `spark.read.format("raftmq")`: ranges of offsets, fixed when the query is planned.


class BatchReader(DataSourceReader):
    """
    Args:
        schema: the columns that are wanted.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    @told_in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        with Lookup(self._options) as lookup:
            keys = lookup.keys()
            start = resolve(self._options.starting, keys, lookup)
            end = resolve(self._options.ending, keys, lookup)
            # Only offsets that were given can lie beyond the end of a log.
            if isinstance(self._options.ending, At):
                end = within_logs(self._options, lookup, end)
            check_order(start, end)
            return plan(self._options, lookup, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):  # Spark's own, where the plan has no ranges
            return iter(())
        return read_ranges(self._options, partition.ranges, self._schema)


# -- Stream writer --------------------------------------------------------------------------------
# `df.writeStream.format("raftmq")`: each microbatch is a generation of its tasks' names, or a
# version of its query.
#
# The writer that commits is another object than the one that was pickled for tasks: what it needs
# comes with their commit messages.


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @told_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self._options.is_transactional:
            return write_member(self._options, self._version(), iterator)
        with stream_way_out():
            return write_rows(self._options, self._name(), iterator)

    @told_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All rows are acknowledged; with transactions they become visible here."""
        version = version_of(messages)
        if version is not None:
            commit_version(self._options, version, messages)
        else:
            check_dropped_tasks(self._options, messages)
        count, skipped = counted(messages)
        logger.info("written: batch=%d records=%d skipped=%d", batchId, count, skipped)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Without transactions acknowledged rows stay in the topic; the microbatch, run again,
        skips them.
        """
        version = version_of(messages) or self._version_by_checkpoint(batchId)
        fate = STAYS if version is None else abort_version(self._options, version, messages)
        count, _ = counted(messages)
        logger.warning("failed: batch=%d records=%d %s", batchId, count, fate)

    def _version(self) -> Version:
        return version_of_microbatch(
            *_microbatch_of(_task()), transactional_id=self._options.transactional_id
        )

    def _version_by_checkpoint(self, batch: int) -> Version | None:
        """In the driver, which Spark does not tell the query: where no task has ended, nothing else
        says whose rows those are that hold up readers. None: the checkpoint cannot be read here.
        """
        options = self._options
        query_id = query_id_in(options.checkpoint) if options.is_transactional else None
        if query_id is None:
            return None
        return version_of_microbatch(
            query_id, str(batch), transactional_id=options.transactional_id
        )

    def _name(self) -> Name | None:
        if not self._options.is_named:
            return None
        task = _task()
        return name_of_stream_task(
            *_microbatch_of(task),
            task.partitionId(),
            transactional_id=self._options.transactional_id,
        )


def query_id_in(checkpoint: str | None) -> str | None:
    """As Spark has written it there; None: it cannot be read as a file of this machine."""
    try:
        found = urlsplit(checkpoint or "")
        if not found.path or found.scheme not in ("", "file"):
            return None
        path = unquote(found.path) if found.scheme else str(checkpoint)
        return str(json.loads(Path(path, "metadata").read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.debug("checkpoint not read: location=%s error=%s", checkpoint, error)
        return None


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls this in a task"
    return task


def _microbatch_of(task: TaskContext) -> tuple[str | None, str | None]:
    """The ids of the query and the microbatch, as far as Spark tells them."""
    return task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)


# -- Source ---------------------------------------------------------------------------------------


class RaftmqDataSource(DataSource):
    """See docs/SPARK.md for options and guarantees."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        for told in passed_over(options):
            _warn(told)

    @classmethod
    def name(cls) -> str:
        return "raftmq"

    def schema(self) -> str:
        return ddl(
            include_headers=self._is_on("includeheaders"), include_tags=self._is_on("includetags")
        )

    @told_in_one_line()
    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(source_options(self.options, is_stream=False), _arrow(schema))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        try:
            return StreamReader(source_options(self.options, is_stream=True), _arrow(schema))
        except InvalidConfig as error:
            return RefusedReader(error)

    @told_in_one_line()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise InvalidConfig(['mode "overwrite": a topic can only be added to; say "append"'])
        return BatchWriter(self._sink(schema, is_stream=False))

    @told_in_one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise InvalidConfig(
                ['output mode "complete": a topic can only be added to; say "append", or write '
                 "each microbatch with foreachBatch"]
            )  # fmt: skip
        return StreamWriter(self._sink(schema, is_stream=True))

    def _sink(self, schema: StructType, *, is_stream: bool) -> SinkOptions:
        options = sink_options(self.options, is_stream=is_stream)
        columns = [(field.name, field.dataType.simpleString()) for field in schema]
        check_columns(columns, has_topic=options.topic is not None)
        check_topic(options, is_stream=is_stream)
        return options

    def _is_on(self, name: str) -> bool:
        return str(self.options.get(name, "")).strip().lower() == "true"


@cache  # a stream makes a source for each microbatch
def _warn(told: str) -> None:
    logger.warning("option %s", told)


def _arrow(schema: StructType) -> pa.Schema:
    columns = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema]
    return arrow_schema(columns)
