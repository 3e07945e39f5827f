"""Tasks as members of a version, as far as nobody is asked; and what errors advise.

What brokers make of it is in tests/cluster/test_spark_io_exactly_once.py.
"""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark")

from raftmq import Receipt
from raftmq.errors import (
    InvalidTransaction,
    InvalidTransactionTimeout,
    NotCoordinator,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
    TransactionAborted,
    UnknownTransaction,
    UnsupportedVersion,
)
from spark_io.names import Version
from spark_io.options.sink import sink_options
from spark_io.source import BatchWriter, StreamWriter
from spark_io.writing import Written, version_of, version_way_out
from tests.unit.spark_io.tasks import frame, sent_away, task

NOBODY = {"bootstrap": "127.0.0.1:1", "topic": "t", "delivery": "exactly_once"}
OF_STREAM, OF_JOB = Version("etl", "q-1", 7), Version("nightly", "", 20261122)
OPTIONS = sink_options({**NOBODY, "transactionalid": "etl"}, is_stream=True)
NAMELESS = sink_options(NOBODY, is_stream=False)


def of_batch(**given: str) -> BatchWriter:
    return BatchWriter(sink_options({**NOBODY, **given}, is_stream=False))


def of_stream(**given: str) -> StreamWriter:
    return StreamWriter(sink_options({**NOBODY, **given}, is_stream=True))


def test_all_attempts_of_a_job_write_one_version() -> None:
    """It is chosen once, in the driver, which commits it."""
    writer = of_batch()
    assert sent_away(writer)._version == writer._version == Version(writer._job, "", 0)
    assert of_batch()._version != writer._version
    named = of_batch(transactionalid="nightly", generation="20261122")
    assert named._version == OF_JOB


def test_tasks_of_a_microbatch() -> None:
    with task(2, query="q-1", batch="7"):
        assert sent_away(of_stream())._version() == Version("q-1", "q-1", 7)
        assert of_stream(transactionalid="etl")._version() == OF_STREAM
    with task(2), pytest.raises(RuntimeError, match=r"does not set sql\.streaming\.queryId"):
        of_stream().write(iter(()))


def test_a_task_without_rows_asks_nobody() -> None:
    """It says which version it is of, so that the driver knows it."""
    with task(2, query="q-1", batch="7"):
        written = of_stream().write(iter([frame(value=[])]))
    assert written == Written(None, 0, 0, version=Version("q-1", "q-1", 7))


def test_what_reaches_the_driver() -> None:
    receipt = Receipt(transaction_id="etl", lineage="q-1", version=7, block=8192, number=3, count=5)
    written = Written(None, 5, 0, ("t",), OF_STREAM, receipt)
    assert sent_away(written) == written
    assert version_of([None, written]) == OF_STREAM
    assert version_of([None, Written(None, 5, 0)]) is None


def test_an_abort_that_nobody_hears(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Time does the same; and where no task has said its version there is nothing to ask."""
    monkeypatch.setattr("spark_io.writing.ABORT_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING, "spark_io"):
        of_stream().abort([Written(None, 5, 0, version=OF_STREAM), None], 7)
        of_stream().abort([None], 8)
    said, *others = caplog.messages
    assert said.startswith("not aborted, which time does within 900 s: ")
    assert others == ["failed: batch=7 records=5 open", "failed: batch=8 records=0 stay"]


def advice(error: RaftmqError, version: Version, *, is_nameless: bool = False) -> str:
    options = NAMELESS if is_nameless else OPTIONS
    with pytest.raises(type(error)) as caught, version_way_out(options, version):
        raise error
    return "\n".join(getattr(caught.value, "__notes__", []))


def aborted(reason: str) -> TransactionAborted:
    error = TransactionAborted("it is over")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "of_stream", "of_job"),
    [
        (aborted("timeout"), "start the query again, with the same checkpoint", "run it again"),
        (aborted(""), "transactionTimeoutMs = 900000", "transactionTimeoutMs = 900000"),
        (aborted("timeout"), "with maxOffsetsPerTrigger", "let a job write fewer rows"),
        (ProducerFenced("a higher one is open"), "another driver runs a later", "let it end"),
        (
            InvalidTransaction("of another lineage"),
            "raftmq transaction forget etl",
            "say another transactionalId",
        ),
        (
            InvalidTransactionTimeout("longer than allowed"),
            '.option("transactionTimeoutMs", MILLISECONDS)',
            '.option("transactionTimeoutMs", MILLISECONDS)',
        ),
        (OutcomeUnknown("no answer"), "is not written twice", "with the same generation"),
        (UnknownTransaction("forgotten"), "before the query starts again", "before it runs again"),
        (UnsupportedVersion("old"), "delivery = idempotent", "delivery = idempotent"),
        (ReplayMismatch("other rows"), "failOnReplayMismatch = false", "take a higher generation"),
    ],
)
def test_what_can_be_done(error: RaftmqError, of_stream: str, of_job: str) -> None:
    """The errors themselves speak of versions and members, which users of Spark do not have."""
    assert of_stream in advice(error.copied(), OF_STREAM)
    assert of_job in advice(error.copied(), OF_JOB)


def test_what_needs_no_advice() -> None:
    """A record that was given up has a cause that says it all; others say it themselves."""
    for error in (aborted("failed send"), NotCoordinator("it moves")):
        assert advice(error, OF_STREAM) == ""


def test_a_job_without_a_name_cannot_just_run_again() -> None:
    told = advice(OutcomeUnknown("no answer"), OF_JOB, is_nameless=True)
    assert "look whether its rows stand in the topic" in told
