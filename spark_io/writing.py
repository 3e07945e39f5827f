"""One Spark task's write: rows sent as a named producer, speculative copies, dropped tasks.

Shared by the batch and the stream writer. Invariant: `write_rows` returns once every row is
acknowledged by all in-sync replicas, or raises.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from raftmq.errors import (
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
)
from spark_io.arrow_columns import TopicColumns, columns_of
from spark_io.lookup import connected, is_passing
from spark_io.names import next_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from raftmq import sync
    from spark_io.names import Name
    from spark_io.options.sink import SinkOptions


logger = logging.getLogger("spark_io")


# -- Holding --------------------------------------------------------------------------------------
# A task that was fenced by its speculative copy waits until Spark ends it.
#
# Spark may run two attempts of a task at once (speculation), and both write under one name: the
# later one fences the earlier. If that failed at once, Spark would count a failure and start
# another copy, which fences the one that was to go on, up to spark.task.maxFailures: the job would
# fail for no reason. So it waits. Spark kills it as soon as the copy is done, and Spark's daemon
# for Python does so when its executor or driver is gone.


# Longer than the copy of most tasks takes; not for ever, as another job of the same name may have
# fenced this one, which Spark does not know of.
HOLD_SECONDS_MAX = 300.0


@contextmanager
def held_if_fenced(*, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Delay the error of a fence, for Spark to end this attempt first.

    Raises:
        ProducerFenced, OutcomeUnknown: of a fence, later than the block does, if this process
            still runs by then.
    """
    try:
        yield
    except (ProducerFenced, OutcomeUnknown) as error:
        if not _is_fenced(error):
            raise
        logger.info("fenced, waiting for Spark to end this attempt: error=%s", error)
        sleep(HOLD_SECONDS_MAX)
        error.add_note(
            f"Spark has not ended this attempt within {HOLD_SECONDS_MAX:g} s. If the job or query "
            "was started twice, let one of them run; if another attempt takes longer than that, "
            "set spark.speculation to false"
        )
        raise


def _is_fenced(error: BaseException | None) -> bool:
    """Fenced, also while a request was in flight whose outcome is unknown now."""
    return isinstance(error, ProducerFenced) or (
        isinstance(error, OutcomeUnknown) and isinstance(error.__cause__, ProducerFenced)
    )


# Brokers and the SDK advise what a stream cannot do.
_HIGHER_GENERATION = re.compile(
    r", (?:or take|and send the rest under) a (?:higher )?generation(?: above \d+)?"
    r"(?:, under which all (?:records|of them) are new)?"
)
STREAM_WAYS_OUT = {
    ProducerFenced: "in a stream the generation is the number of the microbatch. Another query, "
    "or this one with another checkpoint, writes under the same name: let one of them run; or "
    "give this one a transactionalId of its own",
    ReplayMismatch: "in a stream the generation is the number of the microbatch. Run it once with "
    "the same checkpoint, delivery = at_least_once and without transactionalId: that microbatch "
    "may then stand twice; or give it another checkpointLocation, and another transactionalId if "
    "it has one",
}


@contextmanager
def stream_way_out() -> Iterator[None]:
    """Say in an error what the user of a stream can do, in place of what only a batch can."""
    try:
        yield
    except (ProducerFenced, ReplayMismatch) as error:
        error.args = (_HIGHER_GENERATION.sub("", str(error.args[0])), *error.args[1:])
        error.add_note(STREAM_WAYS_OUT[type(error)])
        raise


# -- Writing --------------------------------------------------------------------------------------


# Spark runs a task that failed again at once, up to four times: together that is two minutes,
# which outlasts most restarts and does not hide a wrong address for long.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task to the driver.

    Attributes:
        name: of the producer; None: it was not named.
        record_count: rows that the task was given.
        skipped_count: of these, rows that an earlier attempt had written.
        topics: that the task has written to.
    """

    name: Name | None
    record_count: int
    skipped_count: int
    topics: tuple[str, ...] = ()


def write_rows(
    options: SinkOptions, name: Name | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Send all rows and wait for their acknowledgements.

    Raises RaftmqError, which names topic, partition and cause.
    """
    named: dict[str, Any] = {} if name is None else name._asdict()
    arguments: dict[str, Any] = {**options.producer, **named}
    topics: dict[str, None] = {}
    with (
        _size_way_out(topics),
        connection(options) as client,
        client.producer(acks="all", **arguments) as producer,
    ):
        parts = _parts(options, batches)
        # The first part is outside of `held_if_fenced`: that a generation is over, because a later
        # one has begun, is an error at once.
        count = _send(producer, islice(parts, 1), topics)
        with held_if_fenced():
            count += _send(producer, parts, topics)
            producer.flush()
    return Written(name, count, producer.statistics.skipped_records, tuple(topics))


@contextmanager
def _size_way_out(topics: dict[str, None]) -> Iterator[None]:
    """Name the options that bound a record's size; the SDK's error has their names in Python.

    Args:
        topics: that were written to, the last one last.
    """
    try:
        yield
    except RaftmqError as error:
        # A named producer ends with another error, which this one has caused.
        for each in (error, error.__cause__):
            if isinstance(each, MessageTooLarge):
                topic = each.topic or next(reversed(topics), "TOPIC")
                error.add_note(
                    'for larger records say .option("kafka.max.request.size", BYTES) here, and '
                    f"raftmq topic alter {topic} -c max.message.bytes=BYTES, 32 MiB at most"
                )
                break
        raise


def connection(options: SinkOptions) -> AbstractContextManager[sync.Client]:
    return connected(options.bootstrap, options.client_id, CONNECT_SECONDS)


def _parts(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[TopicColumns]:
    """The columns to send. Sending the first part, without rows, waits for its fences."""
    first = options.topic
    # Also for a task without rows: its earlier attempt may have had some, which is a mismatch.
    if first is not None:
        yield TopicColumns(first, {"values": []})
    for batch in batches:
        for part in columns_of(batch, topic=options.topic):
            # Only now the first topic is known: rows name their topics.
            if first is None:
                first = part.topic
                yield TopicColumns(first, {"values": []})
            yield part


def _send(producer: sync.Producer, parts: Iterable[TopicColumns], topics: dict[str, None]) -> int:
    """Enqueue all parts; returns the number of rows. Adds to `topics`."""
    count = 0
    for topic, columns in parts:
        topics[topic] = None
        producer.enqueue_columns(topic, **columns)  # type: ignore[arg-type]
        count += len(columns["values"])
    return count


def counted(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Rows of all tasks, and how many of them an earlier attempt had written."""
    written = [message for message in messages if isinstance(message, Written)]
    return sum(each.record_count for each in written), sum(each.skipped_count for each in written)


# -- Dropped tasks --------------------------------------------------------------------------------
# Whether an earlier attempt had more tasks than this one: checked in the driver, after all tasks.
#
# The tasks of a generation are numbered, and each compares its own rows with those of before. Where
# there are fewer tasks now, no task opens the producer names of the others, whose rows the first
# tasks have sent once more. Invariant: it is an error if the next task of before had rows in a
# topic that is written now; a task that had none hides those behind it. All rows are acknowledged
# by now, so a cluster that does not answer does not fail the job.


WAY_OUT = (
    "look what there is of it; the generation cannot be run again. A stream goes on after one run "
    "with delivery = at_least_once. From now on keep the number of tasks of a generation, with "
    ".repartition(n, ...) and the same options of the source"
)


def check_dropped_tasks(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Raise if rows may have been written twice, as an earlier attempt had more tasks.

    Args:
        messages: of all tasks.

    Raises:
        ReplayMismatch: there were more of them before.
    """
    written = [message for message in messages if isinstance(message, Written)]
    names = [message.name for message in written if message.name is not None]
    topics = dict.fromkeys(topic for message in written for topic in message.topics)
    if names and topics:
        _open(options, next_task(names[0], len(messages)), list(topics))


def _open(options: SinkOptions, name: Name, topics: Sequence[str]) -> None:
    """Open the name as a task without rows would, which fails if it has written rows."""
    try:
        with (
            connection(options) as client,
            client.producer(acks="all", **{**options.producer, **name._asdict()}) as producer,
        ):
            for topic in topics:
                producer.enqueue_columns(topic, values=[])
    except ReplayMismatch as error:
        raise ReplayMismatch(
            f"an attempt before had more tasks: {name.name!r}, generation {name.generation}, has "
            f"rows there and is no task now, so rows may stand twice: {WAY_OUT}"
        ) from error
    except RaftmqError as error:
        if not is_passing(error):
            raise
        logger.warning("it is not known whether there were more tasks before: %s", error)
