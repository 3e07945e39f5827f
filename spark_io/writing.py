"""The rows of one task of Spark, sent: what the writers of batches and streams have in common.

Invariant: `write_rows` returns once every row stands with all replicas in sync, or raises.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from raftmq.errors import OutcomeUnknown, ProducerFenced, RaftmqError, ReplayMismatch
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
# A task whose copy has fenced it: it holds on until Spark ends it.
#
# Spark may run two attempts of a task at once (speculation), and both write under one name: the
# later one fences the earlier. If that failed at once, Spark would count a failure and start
# another copy, which fences the one that was to go on, up to spark.task.maxFailures: the job would
# die of nothing. So it waits. Spark kills it as soon as the copy is done, and Spark's daemon for
# Python does so when its executor or driver is gone.


# Longer than the copy of most tasks takes; not for ever, as it may be another job that has fenced
# this one, of which Spark knows nothing.
HOLD_SECONDS_MAX = 300.0


@contextmanager
def held_if_fenced(*, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """
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
    """Also while something was on its way, of which nobody knows now whether it has arrived."""
    return isinstance(error, ProducerFenced) or (
        isinstance(error, OutcomeUnknown) and isinstance(error.__cause__, ProducerFenced)
    )


# -- Writing --------------------------------------------------------------------------------------


# Spark runs a task that failed at once again, four times by itself: together that is two minutes,
# which outlasts most restarts and does not hide a wrong address for long.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        name: under which it wrote; None: under none.
        record_count: rows that it was given.
        skipped_count: of these, those that stood there from an earlier attempt.
        topics: that it wrote to.
    """

    name: Name | None
    record_count: int
    skipped_count: int
    topics: tuple[str, ...] = ()


def write_rows(
    options: SinkOptions, name: Name | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Raises RaftmqError, which names topic, partition and cause."""
    named: dict[str, Any] = {} if name is None else name._asdict()
    arguments: dict[str, Any] = {**options.producer, **named}
    topics: dict[str, None] = {}
    with connection(options) as client, client.producer(acks="all", **arguments) as producer:
        parts = _parts(options, batches)
        # A generation that is over is told at once.
        count = _send(producer, islice(parts, 1), topics)
        with held_if_fenced():
            count += _send(producer, parts, topics)
            producer.flush()
    return Written(name, count, producer.statistics.skipped_records, tuple(topics))


def connection(options: SinkOptions) -> AbstractContextManager[sync.Client]:
    return connected(options.bootstrap, options.client_id, CONNECT_SECONDS)


def _parts(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[TopicColumns]:
    """The first one has no rows: whoever hands it in waits for the fences of its topic."""
    first = options.topic
    if first is not None:  # a task without rows may have had some the first time
        yield TopicColumns(first, {"values": []})
    for batch in batches:
        for part in columns_of(batch, topic=options.topic):
            if first is None:
                first = part.topic
                yield TopicColumns(first, {"values": []})
            yield part


def _send(producer: sync.Producer, parts: Iterable[TopicColumns], topics: dict[str, None]) -> int:
    """How many rows. Adds to `topics`."""
    count = 0
    for topic, columns in parts:
        topics[topic] = None
        producer.enqueue_columns(topic, **columns)  # type: ignore[arg-type]
        count += len(columns["values"])
    return count


def counted(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Rows of all tasks, and how many of them stood there before."""
    written = [message for message in messages if isinstance(message, Written)]
    return sum(each.record_count for each in written), sum(each.skipped_count for each in written)


# -- Dropped tasks --------------------------------------------------------------------------------
# Whether an attempt before had more tasks than this one: asked in the driver, after all tasks.
#
# The tasks of a generation are numbered, and each compares its own rows with those of before. Where
# there are fewer tasks now, nobody opens the names of the others, whose rows the first ones have
# sent once more. Invariant: it is told if the next task of before had rows in a topic that is
# written now; one that had none hides those behind it. All rows stand by now, so a cluster that
# does not answer does not fail the job.


WAY_OUT = (
    "look what there is of it; the generation cannot be run again. A stream goes on after one run "
    "with delivery = at_least_once. From now on keep the number of tasks of a generation, with "
    ".repartition(n, ...) and the same options of the source"
)


def check_dropped_tasks(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """
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
    """As a task without rows."""
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
        logger.warning("nobody has said whether there were more tasks before: %s", error)
