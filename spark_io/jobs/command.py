"""How a job is called and how it ends: options that all have, and one line for whatever goes wrong.

Nothing of Spark is imported before a job runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from raftmq.client.client import parse_bootstrap
from raftmq.errors import InvalidConfig
from spark_io.jobs.causes import Cause, ExitCode, cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CommandT = TypeVar("CommandT", bound="Callable[..., Any]")

VARIABLE, DEFAULT = "RAFTMQ_BOOTSTRAP", "127.0.0.1:9292"
TASKS = 8
CONTEXT = {"help_option_names": ["-h", "--help"]}
EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 5 unreachable or timed out, 130 interrupted."
)


def run(command: click.Command, module: str, argv: Sequence[str] | None) -> int:
    """The exit code; errors become one line on stderr, unless they are mistakes of this program.

    Args:
        module: that is run, for help and errors.
        argv: without the program's name; None: what the process was started with.
    """
    try:
        result = command.main(argv, f"python -m {module}", standalone_mode=False)
    except click.Abort:
        return _end(module, Cause(["interrupted"], ExitCode.INTERRUPTED))
    except click.ClickException as error:
        return _end(module, Cause([_line_of(error)], ExitCode(error.exit_code)))
    except BrokenPipeError:  # somebody has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        cause = cause_of(error)
        if cause is None:
            raise
        return _end(module, cause)
    return int(result or ExitCode.OK)


def bootstrap_option() -> Callable[[CommandT], CommandT]:
    return click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        envvar=VARIABLE,
        default=DEFAULT,
        callback=_checked_bootstrap,
        help=f"Brokers to ask, one that answers is enough; else ${VARIABLE}, else {DEFAULT}.",
    )


def dry_run_option(what: str) -> Callable[[CommandT], CommandT]:
    return click.option("--dry-run", "is_dry", is_flag=True, help=what)


def sending_options(command: CommandT) -> CommandT:
    """Of jobs that write to a topic."""
    options = (
        click.option("--to", "topic", metavar="TOPIC", required=True, help="It has to be there."),
        click.option(
            "--id",
            "job_id",
            metavar="ID",
            required=True,
            help="Names this job over all its runs: brokers know by it what stands there already.",
        ),
        click.option(
            "--generation",
            type=click.IntRange(min=0),
            metavar="N",
            required=True,
            help="Which rows, as the date of a nightly run: the same number means the same rows"
            " again, other rows need a higher one.",
        ),
        click.option(
            "--tasks",
            type=click.IntRange(1, 10_000),
            metavar="N",
            default=TASKS,
            show_default=True,
            help="How many send at a time; the same in each run of a generation.",
        ),
        bootstrap_option(),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _checked_bootstrap(_context: click.Context, _param: click.Parameter, given: str) -> str:
    try:
        parse_bootstrap(given)
    except InvalidConfig as error:
        told = "; ".join(problem.removeprefix("bootstrap: ") for problem in error.problems)
        raise click.BadParameter(told) from None
    return given


def _line_of(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if line.endswith((".", "?", ")")) else "."
        line = f"{line}{end} Try '{error.ctx.command_path} --help'."
    return line


def _end(module: str, cause: Cause) -> int:
    for line in cause.lines:
        click.echo(f"{module.rpartition('.')[2]}: {line}", err=True)
    return cause.exit_code
