"""`df.writeStream.format("raftmq")`: each microbatch is a generation of its tasks' names.

The writer that commits is another object than the one that was pickled for tasks: what it has to
know comes with their messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark_io.dropped_tasks import check_dropped_tasks
from spark_io.names import BATCH_ID, QUERY_ID, name_of_stream_task
from spark_io.writing import counted, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from spark_io.names import Name
    from spark_io.sink_options import SinkOptions
    from spark_io.writing import Written

logger = logging.getLogger(__name__)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._options, self._name(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is acknowledged already. An epoch that becomes visible at once would end here."""
        check_dropped_tasks(self._options, messages)
        count, skipped = counted(messages)
        logger.info("written: batch=%d records=%d skipped=%d", batchId, count, skipped)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was acknowledged stays; the microbatch, run again, skips it."""
        count, _ = counted(messages)
        logger.warning("failed: batch=%d records=%d stay", batchId, count)

    def _name(self) -> Name | None:
        if not self._options.is_named:
            return None
        task = TaskContext.get()
        assert task is not None, "Spark calls this in a task"
        return name_of_stream_task(
            task.getLocalProperty(QUERY_ID),
            task.getLocalProperty(BATCH_ID),
            task.partitionId(),
            transactional_id=self._options.transactional_id,
        )
