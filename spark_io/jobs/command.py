"""What the jobs share as commands: options, exit codes, the Spark session, a progress bar, tables.

Expected errors become one line on stderr, with an exit code of `causes.py`. Nothing of Spark is
imported before a job runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from raftmq.client.client import parse_bootstrap
from raftmq.errors import InvalidConfig
from spark_io.jobs.causes import FailureCause, JobExitCode, cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession


CommandT = TypeVar("CommandT", bound="Callable[..., Any]")

VARIABLE, DEFAULT = "RAFTMQ_BOOTSTRAP", "127.0.0.1:9292"
TASKS = 8  # fixed, not by the machine's cores: each run of a generation needs as many
CONTEXT = {"help_option_names": ["-h", "--help"]}
EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 5 unreachable or timed out, 130 interrupted."
)


def run(command: click.Command, module: str, argv: Sequence[str] | None) -> int:
    """Run the command; returns the exit code. Errors become one line on stderr, unless they are
    bugs.

    Args:
        module: that is run, for help and errors.
        argv: without the program's name; None: what the process was started with.
    """
    try:
        result = command.main(argv, f"python -m {module}", standalone_mode=False)
    except click.Abort:
        return _end(module, FailureCause(["interrupted"], JobExitCode.INTERRUPTED))
    except click.ClickException as error:
        return _end(module, FailureCause([_line_of(error)], JobExitCode(error.exit_code)))
    except BrokenPipeError:  # the reader of stdout has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return JobExitCode.FAILED
    except Exception as error:
        cause = cause_of(error)
        if cause is None:
            raise
        return _end(module, cause)
    return int(result or JobExitCode.OK)


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
    """Options of jobs that write to a topic."""
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


def _end(module: str, cause: FailureCause) -> int:
    for line in cause.lines:
        click.echo(f"{module.rpartition('.')[2]}: {line}", err=True)
    return cause.exit_code


# -- Progress -------------------------------------------------------------------------------------
# A progress bar of Spark's tasks on stderr. Nothing is shown where stderr is no terminal.
#
# A thread polls Spark and draws, as the job itself has to stay in the main thread, where Spark
# finds its formats.


REFRESH_SECONDS = 0.5  # each time is some calls to the JVM


@contextmanager
def shown_progress(session: SparkSession) -> Iterator[None]:
    """Draw while the block runs; then the bar is erased."""
    if not sys.stderr.isatty():
        yield
        return
    is_over = Event()
    thread = Thread(target=_draw, args=(session, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _draw(session: SparkSession, is_over: Event) -> None:
    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)
        while not is_over.wait(REFRESH_SECONDS):
            done, total = _tasks(session)
            told = f"{done} of {total} tasks" if total else ""
            bar.update(task, completed=done, total=total or None, description=told)
            bar.refresh()


def _tasks(session: SparkSession) -> tuple[int, int]:
    """Tasks that are done, and all tasks, of the active stages."""
    tracker = session.sparkContext.statusTracker()
    stages = filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))
    counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
    return sum(done for done, _ in counts), sum(total for _, total in counts)


# -- Session --------------------------------------------------------------------------------------
# The Spark session of a job: the active one, the one that spark-submit has set up, or a new one.
#
# A session that was not active before is stopped at the end. Without spark-submit the process is a
# command like others: Spark's own log would bury the job's output, so it is switched off unless
# `spark.log.level` is set.


LOG_LEVEL = "spark.log.level"


@contextmanager
def open_session(name: str) -> Iterator[SparkSession]:
    """`name`: for Spark's pages, unless spark-submit has set one."""
    from pyspark.sql import SparkSession

    from spark_io.python_processes import SUBMITTED, use_this_interpreter
    from spark_io.source import RaftmqDataSource

    use_this_interpreter()
    is_new = SparkSession.getActiveSession() is None
    is_alone = is_new and SUBMITTED not in os.environ
    session = _new_session(name) if is_alone else SparkSession.builder.getOrCreate()
    try:
        session.dataSource.register(RaftmqDataSource)
        yield session
    finally:
        # A session that the caller has opened stays the caller's.
        if is_new:
            session.stop()


def _new_session(name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    if session.conf.get(LOG_LEVEL, "") == "":
        session.sparkContext.setLogLevel("OFF")
    return session


# -- Tables ---------------------------------------------------------------------------------------
# What jobs print: columns as wide as they have to be, numbers to the right.


NOTHING, CUT = "-", 60  # characters of a value: two columns fit a terminal


def write_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as needed, numbers to the right. Prints nothing without rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return
    right = [all(map(_is_number, column)) for column in zip(*cells, strict=True)]
    lines = [list(titles), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        places = zip(line, widths, right, strict=True)
        texts = [text.rjust(width) if is_right else text.ljust(width)
                 for text, width, is_right in places]  # fmt: skip
        click.echo("  ".join(texts).rstrip())


def shown(value: object) -> str:
    """A value for a table: printable, on one line, cut where it is long."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value[: 4 * CUT]).decode(errors="backslashreplace")
    text = NOTHING if value is None else str(value)
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: 2 * CUT])
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def _cell(value: object) -> str:
    return NOTHING if value is None or value == "" else str(value)


def _is_number(text: str) -> bool:
    return text == NOTHING or text.isdigit()
