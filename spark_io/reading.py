"""One Spark task's read: the records of an offset range as Arrow batches, retried during failovers.

Invariant: it yields the records of exactly this range that still exist, in order, or raises; with
`failOnDataLoss=false` records that are gone are skipped, with a warning in the log.
"""

from __future__ import annotations

import logging
import time
from types import NoneType
from typing import TYPE_CHECKING, Literal

from raftmq.errors import (
    LogTruncation,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from spark_io.arrow_rows import to_record_batch
from spark_io.lookup import connected, is_passing, retried
from spark_io.python_processes import told_in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from raftmq import sync
    from raftmq.client.consumer.batch import ConsumedBatch
    from spark_io.options.source import SourceOptions
    from spark_io.ranges import OffsetRange

RECORDS_MAX = 10_000  # of one Arrow batch, as Spark's own are
# Bytes; larger fetches than a consumer's defaults: whole ranges are read, for throughput, and the
# latency of a single record does not matter.
FETCHING = {
    "max_poll_records": RECORDS_MAX,
    "max_partition_fetch_bytes": 8 << 20,
    "fetch_max_bytes": 16 << 20,
    "prefetch_bytes": 16 << 20,
}
TOPIC_GONE = (UnknownTopicOrPartition, UnknownTopicId)
NO_CAUSE = (NoneType, *TOPIC_GONE)  # no error, or one of old metadata: ask the brokers anew
CAUSE_SECONDS = 5.0  # to ask why nothing comes: the task has failed anyway, and others wait for it
# For records, before the position is checked: a range may end in offsets without records, and each
# task waits this long then.
LOOK_SECONDS = 0.02

logger = logging.getLogger("spark_io")


def read_range(
    options: SourceOptions, asked: OffsetRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Raises RaftmqError; see `RangeReader`."""
    bootstrap, client_id, seconds = options.bootstrap, options.client_id, options.retry_seconds
    with (
        told_in_one_line(),
        connected(bootstrap, client_id, seconds, option="retryTimeoutMs") as client,
    ):
        yield from RangeReader(client, options, asked, schema).batches()


class RangeReader:
    """Reads one range, with a new consumer after each loss of records.

    Args:
        schema: the columns that are wanted, in order.
    """

    def __init__(
        self, client: sync.Client, options: SourceOptions, asked: OffsetRange, schema: pa.Schema
    ) -> None:
        self._client, self._options = client, options
        self._asked, self._schema = asked, schema
        self._position = asked.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the range that still exist.

        Raises:
            OffsetOutOfRange: records of the range are gone, and `failOnDataLoss` is true.
            RaftmqError: nothing has come for `retryTimeoutMs`.
        """
        while self._position < self._asked.end:
            try:
                yield from self._read_on()
            # Retention was faster: skip what is gone and go on with a new consumer, or raise.
            except OffsetOutOfRange as error:
                self._lose(error)

    def _read_on(self) -> Iterator[pa.RecordBatch]:
        with self._new_consumer() as consumer:
            while self._position < self._asked.end:
                batch = self._next(consumer)
                if batch is None:  # `_next` has moved the position to the end
                    continue
                self._position = batch.end_offset
                rows = to_record_batch(
                    batch, self._schema, start=self._asked.start, end=self._asked.end
                )
                if rows is not None:  # a batch may lie behind the end of the range
                    yield rows

    def _new_consumer(self) -> sync.Consumer:
        return self._client.consumer(
            assign=[(self._asked.topic, self._asked.partition)],
            start=self._position,
            isolation_level=self._options.isolation_level,
            **{**FETCHING, **self._options.consumer},
        )

    def _next(self, consumer: sync.Consumer) -> ConsumedBatch | None:
        """The next batch; None: the range ends in offsets without records (of markers or
        of aborted transactions)."""
        asked, deadline = self._asked, time.monotonic() + self._options.retry_seconds
        while self._position < asked.end:
            error: RaftmqError | None = None
            try:
                found = next(consumer.batches(timeout=LOOK_SECONDS), None)
            except RaftmqError as caught:
                if not is_passing(caught):
                    raise
                found, error = None, caught  # a failover: try again until the deadline
            if found is not None:
                return found
            self._note_position(consumer)
            if time.monotonic() > deadline:
                raise self._silence() if isinstance(error, NO_CAUSE) else error
        return None

    def _note_position(self, consumer: sync.Consumer) -> None:
        position = consumer.position(self._asked.topic, self._asked.partition)
        self._position = max(self._position, position or 0)

    def _silence(self) -> RaftmqError:
        """The error after a time-out: the topic may have been deleted or recreated."""
        asked = self._asked
        what = (
            f"{asked.topic}-{asked.partition}: nothing has come for "
            f"{self._options.retry_seconds:g} s (retryTimeoutMs) at offset {self._position} of "
            f"{asked.start} to {asked.end}"
        )
        try:
            end = self._edge("latest", min(CAUSE_SECONDS, self._options.retry_seconds))
        except TOPIC_GONE as gone:
            return OffsetOutOfRange(f"{what}: {gone}")
        except RaftmqError as error:
            return RequestTimedOut(f"{what}: {error}")
        if end > self._position:  # records exist: the brokers are too slow, or have no leader
            return RequestTimedOut(what)
        why = f"the last one is {end - 1}; was the topic deleted and created again?"
        return OffsetOutOfRange(f"{what}: {why}")

    def _lose(self, error: OffsetOutOfRange) -> None:
        """Skip the records that are gone, if `failOnDataLoss` is false; else raise."""
        asked = self._asked
        if self._options.fail_on_data_loss:  # the client's own advice is not for users of Spark
            raise OffsetOutOfRange(
                f"{asked.topic}-{asked.partition}: of the offsets {asked.start} to {asked.end} "
                f"some are gone, from {self._position} on: deleted, or the topic was. "
                'Read what is left with .option("failOnDataLoss", "false")'
            ) from error
        end = self._end_of_loss(error)
        logger.warning(
            "data loss: topic=%s partition=%d from=%d to=%d: %s",
            asked.topic, asked.partition, self._position, end, error,
        )  # fmt: skip
        self._position = end

    def _end_of_loss(self, error: OffsetOutOfRange) -> int:
        """The log start offset, if it is beyond the position; else the end of the range."""
        # After an unclean election other records have these offsets now: read them.
        if isinstance(error, LogTruncation):
            return self._position
        try:
            begin = self._edge("earliest", self._options.retry_seconds)
        except TOPIC_GONE:
            return self._asked.end
        return min(begin, self._asked.end) if self._position < begin else self._asked.end

    def _edge(self, at: Literal["earliest", "latest"], seconds_max: float) -> int:
        """The start or end of the log, by now."""
        topic, partition = self._asked.topic, self._asked.partition
        admin = self._client.admin.with_timeout(seconds_max)
        level = self._options.isolation_level

        def ask() -> dict[int, int | None]:
            return admin.offsets(topic, at, partitions=[partition], isolation_level=level)

        return retried(ask, seconds_max)[partition] or 0
