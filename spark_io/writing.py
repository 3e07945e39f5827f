"""One Spark task's write: as a named producer, or as a member of a version that the driver commits.

Shared by the batch and the stream writer. Owns speculative copies, dropped tasks, and the driver's
commit. Invariant: `write_rows` and `write_member` return once every row is acknowledged by all
in-sync replicas, or raise.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from raftmq.errors import (
    InvalidTransaction,
    InvalidTransactionTimeout,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
    TransactionAborted,
    UnknownTransaction,
    UnsupportedVersion,
)
from spark_io.arrow_columns import TopicColumns, columns_of
from spark_io.lookup import connected, is_passing
from spark_io.names import next_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from raftmq import sync
    from raftmq.client.transactions.members import Receipt
    from raftmq.sync.shared import Member, SharedVersion
    from spark_io.names import Name, Version
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
        version: with exactly_once: into which it has written.
        receipt: of what it has written there; None: it had no rows.
    """

    name: Name | None
    record_count: int
    skipped_count: int
    topics: tuple[str, ...] = ()
    version: Version | None = None
    receipt: Receipt | None = None


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


def _send(
    producer: sync.Producer | Member, parts: Iterable[TopicColumns], topics: dict[str, None]
) -> int:
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


# -- Exactly once ---------------------------------------------------------------------------------
# All rows of a microbatch or job are one version of a shared transaction (decision 0039).
#
# Each attempt of a task is a member of its own, and its rows count if the driver's commit has its
# receipt. What others have written (attempts that failed or came too late, a driver's earlier life)
# is aborted by the same commit, in whatever order the rows came. So nothing is fenced, and a task
# that was dropped does no harm.


# In the driver, to reach a broker: as long as a task goes on that has begun; and not long, as
# without an abort time does the same. A coordinator that is reached may take two minutes.
COMMIT_SECONDS, ABORT_SECONDS = 120.0, 5.0


def write_member(
    options: SinkOptions, version: Version, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Send all rows as a member of the version, and wait for their acknowledgements.

    Rows of a version that was committed before are counted and dropped.

    Raises RaftmqError, which names topic, partition and cause, and the way out.
    """
    parts = (part for part in _parts(options, batches) if part.columns["values"])
    first = next(parts, None)
    if first is None:  # it joins nothing
        return Written(None, 0, 0, version=version)
    topics: dict[str, None] = {}
    with (
        version_way_out(options, version),
        _size_way_out(topics),
        connection(options) as client,
        _shared(client, options, version).join(**options.producer) as member,
    ):
        count = _send(member, chain([first], parts), topics)
    receipt = member.receipt
    skipped_count = count if receipt.is_done else 0
    return Written(None, count, skipped_count, tuple(topics), version, receipt)


def commit_version(
    options: SinkOptions, version: Version, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Let the rows of these tasks count, and no others of the version. In the driver.

    Args:
        messages: of all tasks.

    Raises:
        TransactionAborted: it was aborted meanwhile. Nothing counts.
        ReplayMismatch: it was committed before, with another number of rows, and these would be
            passed over; or it is below the newest one, so that their number then is not known.
        OutcomeUnknown: no broker says what became of it; it may be committed again.
        RaftmqError: what else is refused.
    """
    written = [message for message in messages if isinstance(message, Written)]
    receipts = [each.receipt for each in written if each.receipt is not None]
    count, _ = counted(messages)
    if not receipts and _is_ephemeral(options, version):
        # Nobody will ever ask for it again. An attempt that failed may have had rows, all the same.
        abort_version(options, version, messages)
        return
    with (
        version_way_out(options, version),
        connected(options.bootstrap, options.client_id, COMMIT_SECONDS) as client,
    ):
        shared = _shared(client, options, version)
        try:
            # Whoever reads the topic next, as the next step of a program, gets these rows.
            committed = shared.commit(receipts, count=count, wait_visible=True)
            if committed.is_repeated and committed.count is None and count:
                raise ReplayMismatch(BELOW_NEWEST.format(version=version, count=count))
        except ReplayMismatch as error:
            if options.fail_on_replay_mismatch:
                raise
            logger.warning("rows are passed over: %s", error)


def abort_version(
    options: SinkOptions, version: Version, messages: Sequence[WriterCommitMessage | None]
) -> str:
    """Let nothing of the version count, so that readers need not wait for its end. Best effort.

    Args:
        messages: of all tasks, None where one has failed.

    Returns:
        What becomes of its rows, in a word.
    """
    written = [message for message in messages if isinstance(message, Written)]
    # Else nobody may have joined, and an empty version would be remembered for a job of no use.
    is_begun = any(each.receipt is not None for each in written)
    try:
        with connected(options.bootstrap, options.client_id, ABORT_SECONDS) as client:
            shared = _shared(client, options, version)
            if is_begun and _is_ephemeral(options, version):
                is_committed = _leave_empty(shared)
            else:  # it may be run again
                is_committed = shared.abort() is not None
    except RaftmqError as error:
        seconds = options.transaction_timeout_ms / 1000
        logger.warning("not aborted, which time does within %g s: error=%s", seconds, error)
        return "open"
    return "committed" if is_committed else "aborted"


def _leave_empty(shared: SharedVersion) -> bool:
    """Commit nothing: a task that comes late would begin it anew, and hold up readers. Returns
    whether rows of it were committed before.
    """
    try:
        shared.commit([], count=0)
    except ReplayMismatch:
        return True
    return False


def version_of(messages: Sequence[WriterCommitMessage | None]) -> Version | None:
    """The version that the tasks have written into; None: there were none."""
    written = [message for message in messages if isinstance(message, Written)]
    return next((each.version for each in written if each.version is not None), None)


def _shared(client: sync.Client, options: SinkOptions, version: Version) -> SharedVersion:
    shared = client.shared_transaction(
        version.transaction_id,
        lineage=version.lineage,
        transaction_timeout_ms=options.transaction_timeout_ms,
        is_ephemeral=_is_ephemeral(options, version),
    )
    return shared.version(version.number)


def _is_ephemeral(options: SinkOptions, version: Version) -> bool:
    """The id of a job without a name is never used again."""
    return not version.lineage and options.transactional_id is None


@contextmanager
def version_way_out(options: SinkOptions, version: Version) -> Iterator[None]:
    """Add to an error what the user of Spark can do."""
    try:
        yield
    except RaftmqError as error:
        if advice := _advice(error, options, version):
            error.add_note(advice)
        raise


def _advice(error: RaftmqError, options: SinkOptions, version: Version) -> str | None:
    of_stream, of_job = _ADVICE.get(type(error), (None, None))
    if isinstance(error, TransactionAborted) and error.reason == "failed send":
        return None  # its cause says it all
    if isinstance(error, OutcomeUnknown) and not version.lineage and not options.transactional_id:
        return UNKNOWN_JOB
    advice = of_stream if version.lineage else of_job
    return advice and advice.format(
        id=version.transaction_id, timeout_ms=options.transaction_timeout_ms
    )


BELOW_NEWEST = (
    "version {version.number} of {version.transaction_id!r} is below the newest one: {count} rows "
    "are passed over, whether it was ever committed or not, as numbers only rise"
)
UNKNOWN_JOB = (
    "look whether its rows stand in the topic before the job runs again; one with transactionalId "
    "and generation can be run again at any time"
)
_LONGER = (
    "If that is because it took longer than transactionTimeoutMs = {timeout_ms}: raise it, up to "
    "transactions.timeout_ms_max of the brokers, or let "
)
# Of a stream, and of a batch.
_ADVICE = {
    TransactionAborted: (
        "nothing of the microbatch can be read: start the query again, with the same checkpoint. "
        f"{_LONGER}a microbatch have fewer rows, with maxOffsetsPerTrigger",
        f"nothing of the job can be read: run it again. {_LONGER}a job write fewer rows",
    ),
    ProducerFenced: (
        "another driver runs a later microbatch of this query, with the same checkpoint: let one "
        "of them run",
        "another job writes a higher generation under this transactionalId: let it end, and take "
        "a generation above it",
    ),
    InvalidTransaction: (
        "the numbers of the versions of {id} come from another checkpoint than that of this query, "
        "or from no query at all, and mean other rows. Look what stands in the topic; then give "
        "this query another transactionalId, or let this one begin anew: raftmq transaction forget "
        "{id}",
        "say another transactionalId: this one is not that of a batch",
    ),
    InvalidTransactionTimeout: (
        'say .option("transactionTimeoutMs", MILLISECONDS)',
        'say .option("transactionTimeoutMs", MILLISECONDS)',
    ),
    OutcomeUnknown: (
        "start the query again, with the same checkpoint: a microbatch that was committed is not "
        "written twice",
        "run the job again, with the same generation: what was committed is not written twice",
    ),
    UnknownTransaction: (
        "{id} was forgotten meanwhile, and nobody knows whether the microbatch was committed: look "
        "what stands in the topic before the query starts again",
        "{id} was forgotten meanwhile, and nobody knows whether the job was committed: look what "
        "stands in the topic before it runs again",
    ),
    UnsupportedVersion: ("until then say delivery = idempotent",) * 2,
    ReplayMismatch: (
        "the checkpoint comes from an older copy, or the query was changed over an open "
        "microbatch: give it another checkpointLocation, with startingOffsets behind what it has "
        "written, and another transactionalId if it has one. Or its plan makes another number of "
        "rows each time: say failOnReplayMismatch = false for one start, and the microbatch stays "
        "as it was committed",
        "a generation is committed once, and none below it afterwards: look what stands in the "
        "topic, and take a higher generation for these rows, or another transactionalId",
    ),
}
