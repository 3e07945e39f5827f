"""Whether an attempt before had more tasks than this one: asked in the driver, after all tasks.

The tasks of a generation are numbered, and each compares its own rows with those of before. Where
there are fewer tasks now, nobody opens the names of the others, whose rows the first ones have sent
once more. Invariant: it is told if the next task of before had rows in a topic that is written now;
one that had none hides those behind it. All rows stand by now, so a cluster that does not
answer does not fail the job.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.errors import RaftmqError, ReplayMismatch
from spark_io.names import next_task
from spark_io.retries import is_passing
from spark_io.writing import Written, connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import WriterCommitMessage

    from spark_io.names import Name
    from spark_io.sink_options import SinkOptions

WAY_OUT = (
    "look what there is of it; the generation cannot be run again. A stream goes on after one run "
    "with delivery = at_least_once. From now on keep the number of tasks of a generation, with "
    ".repartition(n, ...) and the same options of the source"
)

logger = logging.getLogger(__name__)


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
