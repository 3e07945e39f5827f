"""One Spark task's read: the records of offset ranges as Arrow batches, retried during failovers.

Invariants: it yields the records of exactly these ranges that still exist, or raises; with
`failOnDataLoss=false` records that are gone are skipped, with a warning in the log. Ranges come one
after the other and each in order, whatever brokers answer first: a sink with named producers relies
on it that a task has the same rows in the same order when it runs again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

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
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from raftmq import sync
    from raftmq.client.consumer.batch import ConsumedBatch
    from spark_io.offsets import Key
    from spark_io.options.source import SourceOptions
    from spark_io.ranges import OffsetRange

RECORDS_MAX = 10_000  # of one Arrow batch, as Spark's own are
# Bytes; larger fetches than a consumer's defaults: whole ranges are read, for throughput, and the
# latency of a single record does not matter.
FETCHING = {
    "max_poll_records": RECORDS_MAX,
    "fetch_max_bytes": 16 << 20,
    "prefetch_bytes": 16 << 20,
}
# With a filter: a broker that has left out all up to the end of its log waits so long for a record
# that passes before it says how far it is. But a range is over there, and no new record is for it.
FILTERED_WAIT_MS = 20
# Bytes of one partition in one answer: what lies behind a small range in a long log is fetched in
# vain. How large records are is not known; larger ones take more fetches.
PARTITION_BYTES_MIN, PARTITION_BYTES_MAX, RECORD_BYTES = 64 << 10, 8 << 20, 512
TOPIC_GONE = (UnknownTopicOrPartition, UnknownTopicId)
NO_CAUSE = (NoneType, *TOPIC_GONE)  # no error, or one of old metadata: ask the brokers anew
CAUSE_SECONDS = 5.0  # to ask why nothing comes: the task has failed anyway, and others wait for it
# For records, before the position is checked: a range may end in offsets without rows.
LOOK_SECONDS = 0.02
# Ranges are fetched once so many records are left before them: their turn must not begin with a
# wait, and no more than that has to be kept.
AHEAD_RECORDS = 2 * RECORDS_MAX

logger = logging.getLogger("spark_io")


def read_ranges(
    options: SourceOptions, asked: Sequence[OffsetRange], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Raises RaftmqError; see `RangesReader`."""
    bootstrap, client_id, seconds = options.bootstrap, options.client_id, options.retry_seconds
    with (
        told_in_one_line(),
        connected(bootstrap, client_id, seconds, option="retryTimeoutMs") as client,
    ):
        yield from RangesReader(client, options, asked, schema).batches()


def _fetching(asked: Sequence[OffsetRange], options: SourceOptions) -> dict[str, Any]:
    guessed = RECORD_BYTES * max(each.size for each in asked)
    most = min(max(guessed, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
    waits = {} if options.tags is None else {"fetch_max_wait_ms": FILTERED_WAIT_MS}
    return {**FETCHING, **waits, "max_partition_fetch_bytes": most, **options.consumer}


class _Reading:
    """One range, and how far it is read.

    Attributes:
        position: offset of the next record to yield.
        held: its next batch, which has come before its turn.
    """

    def __init__(self, asked: OffsetRange) -> None:
        self.asked, self.position = asked, asked.start
        self.held: ConsumedBatch | None = None

    def __str__(self) -> str:
        return f"{self.asked.topic}-{self.asked.partition}"

    @property
    def key(self) -> Key:
        return self.asked.topic, self.asked.partition

    @property
    def left(self) -> int:
        return self.asked.end - self.position

    @property
    def fetch_position(self) -> int:
        """Offset of the next record to fetch."""
        return self.position if self.held is None else self.held.end_offset


class RangesReader:
    """Reads ranges through one consumer: the first one, and those next to it ahead of their turn.

    Args:
        asked: at most one of each partition.
        schema: the columns that are wanted, in order.
    """

    def __init__(
        self,
        client: sync.Client,
        options: SourceOptions,
        asked: Sequence[OffsetRange],
        schema: pa.Schema,
    ) -> None:
        self._client, self._options, self._schema = client, options, schema
        self._readings = {(each.topic, each.partition): _Reading(each) for each in asked}
        assert len(self._readings) == len(asked), "two ranges of a partition"
        self._consumer = client.consumer(
            assign=list(self._readings),
            start={key: one.position for key, one in self._readings.items()},
            isolation_level=options.isolation_level,
            tags=options.tags,
            **_fetching(asked, options),
        )
        self._paused = deque(self._readings.values())  # those whose turn is far away
        self._fetched: deque[_Reading] = deque()  # the first one is yielded, others are held

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records of the ranges that still exist.

        Raises:
            OffsetOutOfRange: records of a range are gone, and `failOnDataLoss` is true.
            RaftmqError: nothing has come for `retryTimeoutMs`.
        """
        with self._consumer:
            self._fetch_ahead()
            self._pause(self._paused)
            while self._fetched:
                yield from self._read(self._fetched[0])
                self._pause([self._fetched.popleft()])
                self._resume(self._fetch_ahead())

    def _read(self, one: _Reading) -> Iterator[pa.RecordBatch]:
        if one.held is None:  # it may have been passed over ahead of its turn: nothing to wait for
            self._note_position(one)
        while one.left > 0:
            try:
                batch = self._take_held(one) or self._next(one)
            # Retention was faster: skip what is gone, or raise.
            except OffsetOutOfRange as error:
                self._lose(
                    self._readings.get((error.topic or "", error.partition or 0), one), error
                )
                continue
            if batch is None:  # `_next` has moved the position to the end
                return
            one.position = batch.end_offset
            # What is passed over may have come with the last records: nothing to wait for.
            if one.left < RECORDS_MAX:
                self._note_position(one)
            self._resume(self._fetch_ahead())
            rows = to_record_batch(batch, self._schema, start=one.asked.start, end=one.asked.end)
            if rows is not None:  # a batch may lie behind the end of the range
                yield rows

    # -- turns -----------------------------------------------------------------------------

    def _fetch_ahead(self) -> list[_Reading]:
        """Those that are fetched from now on: the next one, and others whose turn comes soon."""
        before, added = sum([one.left for one in self._fetched]), []
        while self._paused and (before < AHEAD_RECORDS or not self._fetched):
            one = self._paused.popleft()
            before += one.left
            added.append(one)
            self._fetched.append(one)
        return added

    def _take_held(self, one: _Reading) -> ConsumedBatch | None:
        held, one.held = one.held, None
        if held is not None:
            self._resume([one])
        return held

    def _hold(self, batch: ConsumedBatch) -> None:
        """Until its turn; the consumer keeps what it has of the next ones."""
        one = self._readings[batch.topic, batch.partition]
        assert one.held is None, "it is paused"
        one.held = batch
        self._pause([one])

    def _pause(self, readings: Collection[_Reading]) -> None:
        if readings:
            self._consumer.pause(*[one.key for one in readings])

    def _resume(self, readings: Collection[_Reading]) -> None:
        if readings:
            self._consumer.resume(*[one.key for one in readings])

    # -- one range -------------------------------------------------------------------------

    def _next(self, one: _Reading) -> ConsumedBatch | None:
        """The next batch of the range; None: it ends in offsets without rows (of markers, of
        aborted transactions, of records that the option `tags` leaves out)."""
        deadline = time.monotonic() + self._options.retry_seconds
        while one.left > 0:
            error: RaftmqError | None = None
            try:
                found = next(self._consumer.batches(timeout=LOOK_SECONDS), None)
            except RaftmqError as caught:
                if not is_passing(caught):
                    raise
                found, error = None, caught  # a failover: try again until the deadline
            if found is not None:
                if (found.topic, found.partition) == one.key:
                    return found
                self._hold(found)
                continue
            if self._note_position(one):  # what is left out takes long, where nothing passes
                deadline = time.monotonic() + self._options.retry_seconds
            elif time.monotonic() > deadline:
                raise self._silence(one) if isinstance(error, NO_CAUSE) else error
        return None

    def _note_position(self, one: _Reading) -> bool:
        """Whether it has moved."""
        before = one.position
        one.position = max(before, self._consumer.position(*one.key) or 0)
        return one.position > before

    def _silence(self, one: _Reading) -> RaftmqError:
        """The error after a time-out: the topic may have been deleted or recreated."""
        what = (
            f"{one}: nothing has come for {self._options.retry_seconds:g} s (retryTimeoutMs) at "
            f"offset {one.position} of {one.asked.start} to {one.asked.end}"
        )
        try:
            end = self._edge(one, "latest", min(CAUSE_SECONDS, self._options.retry_seconds))
        except TOPIC_GONE as gone:
            return OffsetOutOfRange(f"{what}: {gone}")
        except RaftmqError as error:
            return RequestTimedOut(f"{what}: {error}")
        if end > one.position:  # records exist: the brokers are too slow, or have no leader
            return RequestTimedOut(what)
        why = f"the last one is {end - 1}; was the topic deleted and created again?"
        return OffsetOutOfRange(f"{what}: {why}")

    def _lose(self, one: _Reading, error: OffsetOutOfRange) -> None:
        """Skip the records that are gone, if `failOnDataLoss` is false; else raise."""
        asked = one.asked
        if self._options.fail_on_data_loss:  # the client's own advice is not for users of Spark
            raise OffsetOutOfRange(
                f"{one}: of the offsets {asked.start} to {asked.end} some are gone, from "
                f"{one.fetch_position} on: deleted, or the topic was. "
                'Read what is left with .option("failOnDataLoss", "false")'
            ) from error
        end = self._end_of_loss(one, error)
        logger.warning(
            "data loss: topic=%s partition=%d from=%d to=%d: %s",
            asked.topic, asked.partition, one.fetch_position, end, error,
        )  # fmt: skip
        if one.held is None:  # else its records are before the loss, and come first
            one.position = end
        if one.left > 0:
            self._consumer.seek(*one.key, offset=end)
        else:  # the same error would come again
            self._pause([one])

    def _end_of_loss(self, one: _Reading, error: OffsetOutOfRange) -> int:
        """The log start offset, if it is beyond the position; else the end of the range."""
        # After an unclean election other records have these offsets now: read them.
        if isinstance(error, LogTruncation):
            return one.fetch_position
        try:
            begin = self._edge(one, "earliest", self._options.retry_seconds)
        except TOPIC_GONE:
            return one.asked.end
        return min(begin, one.asked.end) if one.fetch_position < begin else one.asked.end

    def _edge(self, one: _Reading, at: Literal["earliest", "latest"], seconds_max: float) -> int:
        """The start or end of the log, by now."""
        topic, partition = one.key
        admin = self._client.admin.with_timeout(seconds_max)
        level = self._options.isolation_level

        def ask() -> dict[int, int | None]:
            return admin.offsets(topic, at, partitions=[partition], isolation_level=level)

        return retried(ask, seconds_max)[partition] or 0
