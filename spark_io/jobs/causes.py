"""The cause of a Spark job's error, out of Java and Python tracebacks, as one line. Pure.

Spark wraps the errors of tasks and planners in texts of many lines, with the traceback of another
process in it: the last error of that is the cause. Owns the exit codes, which are those of the
command `raftmq`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from raftmq import errors

# By their modules' names, so that neither has to be imported here.
_OF_SPARK = ("pyspark.", "py4j.")
_TRACEBACK = "Traceback (most recent call last):\n"
# Of source and sink: their errors come without a traceback.
_TOLD = re.compile(rf"\b{re.escape(errors.__name__)}\.\w+: ")
# What Spark's messages are made of: `[CONDITION] text SQLSTATE: 42XYZ`, after `: java.lang.X: `.
_STATE = re.compile(r"\s*SQLSTATE: (\w{5})\b.*", re.DOTALL)
_JAVA = re.compile(r"^: (?:[\w.$]+: )?(.*)", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_MISTAKE = "42"  # SQLSTATE class 42: syntax error or access rule violation, the user's mistake


class JobExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 5  # or timed out
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class JobError(Exception):
    """Ends a job; its text is one line that names the thing and the way out."""


class FailureCause(NamedTuple):
    """`lines`: one for each problem."""

    lines: list[str]
    exit_code: JobExitCode


_USAGE = (errors.InvalidConfig, errors.InvalidRequest, errors.InvalidTopic)
_NOT_FOUND = (errors.UnknownTopicId, errors.UnknownTopicOrPartition)
# Retriable from another replica, but no sign of an unreachable cluster.
_DAMAGE = (errors.CorruptRecord, errors.StorageError)
_SILENCE = (errors.Unreachable, errors.RequestTimedOut)


def cause_of(error: Exception) -> FailureCause | None:
    """The cause; None: it is a bug of this program, and worth a traceback."""
    if type(error).__module__.startswith(_OF_SPARK):
        return _cause_in(str(error))
    if isinstance(error, errors.InvalidConfig):
        return FailureCause(
            [_on_one_line(problem) for problem in error.problems], JobExitCode.USAGE
        )
    if isinstance(error, (errors.RaftmqError, JobError, OSError)):
        notes = getattr(error, "__notes__", [])
        return FailureCause(
            [_on_one_line("; ".join([str(error), *notes]))], exit_code_of(type(error))
        )
    return None


def exit_code_of(kind: type[Exception]) -> JobExitCode:
    """The exit code of a job that such an error has ended."""
    if issubclass(kind, _USAGE):
        return JobExitCode.USAGE
    if issubclass(kind, _NOT_FOUND):
        return JobExitCode.NOT_FOUND
    # Before `retriable`, which corrupt records are, as another replica may be sound.
    if issubclass(kind, _DAMAGE) or not issubclass(kind, errors.RaftmqError):
        return JobExitCode.FAILED
    is_passing = kind.retriable or issubclass(kind, _SILENCE)
    return JobExitCode.UNREACHABLE if is_passing else JobExitCode.FAILED


def _cause_in(text: str) -> FailureCause:
    """The cause in a text of Spark: an error of a Python process, or one of Spark's own."""
    if _TRACEBACK in text:
        return _last_raised(text.rpartition(_TRACEBACK)[2])
    if error := _TOLD.search(text):
        return _last_raised(text[error.start() :])
    java = _JAVA.search(text)
    line = java[1] if java else text.strip().partition("\n")[0]
    state = _STATE.search(line)
    is_mistake = state is not None and state[1].startswith(_MISTAKE)
    told = _CONDITION.sub("", _STATE.sub("", line))
    return FailureCause(
        [_on_one_line(told)], JobExitCode.USAGE if is_mistake else JobExitCode.FAILED
    )


def _last_raised(traceback: str) -> FailureCause:
    """The last error of a traceback: `module.Class: text`, after indented lines of code if any."""
    lines = _STATE.sub("", traceback).splitlines()
    first = next((at for at, line in enumerate(lines) if not line.startswith(" ")), 0)
    name, _, told = lines[first].partition(": ")
    text = _on_one_line("; ".join([told, *filter(None, map(str.strip, lines[first + 1 :]))]))
    kind = _KNOWN.get(name.rpartition(".")[2])
    # An error of the user's own code, or of a library: its class says more than its text.
    if kind is None:
        return FailureCause([f"{name}: {text}" if text else name], JobExitCode.FAILED)
    return FailureCause([text], exit_code_of(kind))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


_KNOWN: dict[str, type[Exception]] = {
    "JobError": JobError,
    "OSError": OSError,
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type)},
}
