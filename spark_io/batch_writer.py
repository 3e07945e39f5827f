"""`df.write.format("raftmq")`: a task sends its rows, the driver only looks for tasks of before.

Made once in the driver when the job is planned, and pickled for its tasks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter

from spark_io.dropped_tasks import check_dropped_tasks
from spark_io.names import name_of_batch_task, new_job
from spark_io.writing import counted, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from spark_io.names import Name
    from spark_io.sink_options import SinkOptions
    from spark_io.writing import Written

logger = logging.getLogger(__name__)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = options.transactional_id or new_job()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._options, self._name(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is acknowledged already. Of a job without an id there was none before."""
        if self._options.transactional_id is not None:
            check_dropped_tasks(self._options, messages)
        count, skipped = counted(messages)
        logger.info("written: job=%s records=%d skipped=%d", self._job, count, skipped)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was acknowledged stays; the same job, run again by its name, skips it."""
        count, _ = counted(messages)
        logger.warning("failed: job=%s records=%d stay", self._job, count)

    def _name(self) -> Name | None:
        if not self._options.is_named:
            return None
        task = TaskContext.get()
        assert task is not None, "Spark calls this in a task"
        return name_of_batch_task(self._job, task.partitionId(), self._options.generation or 0)
