"""How jobs are called and how they end, without any Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from raftmq.errors import InvalidConfig, Unreachable
from spark_io.jobs import bulk_load, command, export, replay
from spark_io.jobs.causes import JobError
from spark_io.jobs.command import shown, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

SENDING = ["--to", "t", "--id", "job", "--generation", "1"]


def run(raised: BaseException | None) -> int:
    @click.command()
    def job() -> None:
        if raised is not None:
            raise raised

    return command.run(job, "spark_io.jobs.job", [])


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (None, 0, ""),
        (JobError("two topics"), 1, "job: two topics\n"),
        (InvalidConfig(["a", "b"]), 2, "job: a\njob: b\n"),
        (Unreachable("nobody"), 5, "job: nobody\n"),
        (KeyboardInterrupt(), 130, "job: interrupted\n"),
        (
            click.UsageError("no such thing"), 2,
            "job: no such thing. Try 'python -m spark_io.jobs.job --help'.\n",
        ),
        (click.ClickException("no"), 1, "job: no\n"),
    ],
)  # fmt: skip
def test_ends(
    error: BaseException | None, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each problem, and the code."""
    assert run(error) == code
    assert capsys.readouterr().err.lstrip("\n") == told


def test_a_mistake_of_the_program_keeps_its_traceback() -> None:
    """Nobody could find it otherwise."""
    with pytest.raises(KeyError):
        run(KeyError("x"))


@pytest.mark.parametrize("job", [export, replay, bulk_load])
def test_help(job: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Says what the job does, by name, and how it ends."""
    main: Callable[[list[str]], int] = job.main  # type: ignore[attr-defined]
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("Exit codes", "--dry-run", "RAFTMQ_BOOTSTRAP"))


@pytest.mark.parametrize(
    ("main", "arguments", "told"),
    [
        (export.main, [], "Missing argument 'TOPIC...'"),
        (export.main, ["t"], "Missing option '--folder'"),
        (export.main, ["t", "--folder", "x", "--records-per-file", "0"], "0 is not in the range"),
        (export.main, ["t", "--folder", "s3://x"], "give a folder of a file system"),
        (export.main, ["t", "--folder", "x", "-b", "nowhere"], "no port; write host:port"),
        (replay.main, ["x", "--to", "t", "--id", "a"], "Missing option '--generation'"),
        (bulk_load.main, [*SENDING], "Missing option '--format'"),
        (bulk_load.main, [*SENDING, "--format", "csv", "--option", "a"], "expected KEY=VALUE"),
        (
            bulk_load.main, [*SENDING, "--format", "csv", "--value", "a", "--value-json", "b"],
            "say one of them",
        ),
    ],
)  # fmt: skip
def test_usage(
    main: Callable[[list[str]], int], arguments: list[str], told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Is told before any Spark is started."""
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers to the right; nothing without rows."""
    write_table(["a", "b"], [])
    assert capsys.readouterr().out == ""
    write_table(["name", "n"], [("x", 5), (None, 1000)])
    assert capsys.readouterr().out == "name     n\nx        5\n-     1000\n"


def test_values_in_tables() -> None:
    """On one line, and not too long."""
    assert shown(None) == "-"
    assert shown(b"a\xff\n") == "a\\xff\\n"
    assert shown("x" * 100) == "x" * 59 + "…"
    assert shown(5) == "5"
