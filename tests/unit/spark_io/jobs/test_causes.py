"""The line and the exit code for an error, however Spark has wrapped it."""

from __future__ import annotations

import pytest

from raftmq import errors
from raftmq.cli.terminal import exits
from spark_io.jobs.causes import JobError, JobExitCode, cause_of, exit_code_of

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/usr/lib/spark_io/x.py", line 1, in work
    write()
OSError: [Errno 28] No space left on device: '/x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/usr/lib/spark_io/reading.py", line 22, in _lose
    raise error
    ^^^^^^^^^^^
"""
PLANNER = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: Traceback \
(most recent call last):
  File "/usr/lib/spark_io/source.py", line 51, in writer
    raise InvalidConfig(self.problems)
raftmq.errors.InvalidConfig: generation: say one; \
topic: say one
 SQLSTATE: 38000"""
BRIEF = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: \
raftmq.errors.UnknownTopicOrPartition: there is no topic 'x': make it first
a note
 SQLSTATE: 38000"""
ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `foo` cannot be resolved. Did \
you mean one of the following? [`id`]. SQLSTATE: 42703; line 1 pos 0;
'Project ['foo]
+- Range (0, 3, step=1, splits=Some(2))
"""
PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near '('. SQLSTATE: 42601 (line 1, pos 4)

== SQL ==
foo(((
----^^^
"""
JAVA = """An error occurred while calling o151.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data \
source: nixda. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:770)
"""
VALUE = """[CAST_INVALID_INPUT] The value 'x0' of the type "STRING" cannot be cast to "INT". \
SQLSTATE: 22018
== SQL (line 1, position 1) ==
"""


class SparkError(Exception):
    """Stands for any of Spark's: they are known by their module."""

    __module__ = "pyspark.errors.exceptions.captured"


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        (WORKER + "raftmq.errors.OffsetOutOfRange: gone: 5\na note\n", "gone: 5; a note", 1),
        (WORKER + "raftmq.errors.Unreachable: nobody\n", "nobody", 5),
        (WORKER + "raftmq.errors.UnknownTopicOrPartition: no topic\n", "no topic", 3),
        (WORKER + "spark_io.jobs.causes.JobError: run again\n", "run again", 1),
        (WORKER + "OSError: [Errno 28] No space: '/x'\n", "[Errno 28] No space: '/x'", 1),
        (WORKER + "KeyError: 'x'\n", "KeyError: 'x'", 1),
        (WORKER + "AssertionError\n", "AssertionError", 1),
        (WORKER, None, 1),
        (PLANNER, "generation: say one; topic: say one", 2),
        (BRIEF, "there is no topic 'x': make it first; a note", 3),
        (ANALYSIS, "A column with name `foo` cannot be resolved. Did you mean one of the "
         "following? [`id`].", 2),
        (PARSE, "Syntax error at or near '('.", 2),
        (JAVA, "Failed to find the data source: nixda.", 2),
        (VALUE, "The value 'x0' of the type \"STRING\" cannot be cast to \"INT\".", 1),
        ("Job aborted: lost task\nDriver stacktrace:\n", "Job aborted: lost task", 1),
        ("", "", 1),
    ],
)  # fmt: skip
def test_what_spark_wraps(text: str, line: str | None, code: int) -> None:
    """The last error of a Python process; else the first line that Spark has for people."""
    cause = cause_of(SparkError(text))
    assert cause is not None
    assert len(cause.lines) == 1
    assert "\n" not in cause.lines[0]
    assert line is None or cause.lines == [line]
    assert cause.exit_code == code


def test_our_own() -> None:
    """All problems, one for each line; notes stand behind the text."""
    told = cause_of(errors.InvalidConfig(["a: 1", "b: 2"]))
    assert told == (["a: 1", "b: 2"], JobExitCode.USAGE)
    error = errors.Unreachable("no broker\nanswers")
    error.add_note("tried for 60 s")
    assert cause_of(error) == (["no broker answers; tried for 60 s"], JobExitCode.UNREACHABLE)
    assert cause_of(JobError("two topics")) == (["two topics"], JobExitCode.FAILED)
    missing = FileNotFoundError(2, "No such file", "/x")
    assert cause_of(missing) == (["[Errno 2] No such file: '/x'"], JobExitCode.FAILED)
    assert cause_of(KeyError("x")) is None


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidConfig(["x"]), errors.InvalidTopic("x"), errors.InvalidRequest("x"),
        errors.UnknownTopicOrPartition("x"), errors.CorruptRecord("x"), errors.StorageError("x"),
        errors.DeliveryTimedOut("x"), errors.LeaderNotAvailable("x"), errors.NotEnoughReplicas("x"),
        errors.OffsetOutOfRange("x"), errors.OutcomeUnknown("x"), errors.ProducerFenced("x"),
        errors.ReplayMismatch("x"), errors.RequestTimedOut("x"), errors.Unreachable("x"),
        errors.UnsupportedCompression("x"), OSError("x"),
    ],
)  # fmt: skip
def test_codes_are_those_of_the_command_line(error: Exception) -> None:
    """A script that knows one knows the other."""
    assert exit_code_of(type(error)) == exits.exit_code_of(error)


def test_numbers_are_those_of_the_command_line() -> None:
    """As far as jobs have them."""
    assert all(exits.ExitCode[code.name] == code for code in JobExitCode)
