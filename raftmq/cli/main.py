"""The command `raftmq` itself: the table of nouns, and how each error becomes a line and exit code.

A noun's module is imported when that noun is used, and imports neither client nor broker before a
command runs, so that `raftmq --help` stays quick.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import rich_click as click
from click.exceptions import NoSuchCommand

from raftmq.cli.clusters.bootstrap import bootstrap_option
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.terminal.program import COMPLETION_VARIABLE, NAME, as_called, program
from raftmq.errors import RaftmqError
from raftmq.extras import MissingExtra
from raftmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

# What people type for JSON, and where a command has the option of that name, how it is written.
JSON_WORDS = ("-f", "--format", "--output", "--json")
JSON_OPTIONS = {"output": "-o json", "form": "-f json"}
# Disk full, quota used up, file size limit reached: what a shell's `> file` can run into.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WITHOUT_ASSERTIONS = (
    "its assertions are switched off: start Python without -O, and without PYTHONOPTIMIZE"
)


class Noun(click.RichCommand):
    """Stands for a noun in the list until it is used, then loads the real one."""

    def __init__(self, name: str, help: str) -> None:  # noqa: A002  # click's word
        super().__init__(name=name, short_help=help)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        assert self.name is not None
        noun: click.Command = getattr(import_module(f"raftmq.cli.{self.name}"), self.name)
        return noun.make_context(info_name, args, parent, **extra)


class Program(click.RichGroup):
    """Ends every command in the same way: a line on stderr and an exit code."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """In the order of `NOUNS`, from first use to trouble, instead of by letters."""
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> NoReturn:
        """Run, and exit: errors become one line on stderr, never a traceback."""
        _prepare_streams()
        if not __debug__:  # invariants are asserts, and must not be stripped: decision 0003
            sys.exit(_complain(WITHOUT_ASSERTIONS, ExitCode.FAILED))
        try:
            result = super().main(args, program(), COMPLETION_VARIABLE, False, **extra)
        # click's name for Ctrl-C, and for an end of input where it has asked something.
        except click.Abort:
            sys.exit(_complain("interrupted", ExitCode.INTERRUPTED))
        except click.ClickException as error:
            sys.exit(_complain(_line_of(error), error.exit_code))
        except CommandError as error:
            sys.exit(_complain(str(error), error.exit_code))
        except MissingExtra as error:
            sys.exit(_complain(str(error), ExitCode.FAILED))
        # Before OSError, which it is one of: a reader like `head` that has gone is no failure to
        # report.
        except BrokenPipeError:
            sys.exit(_end_without_reader())
        # Anything else is a bug, and shows its traceback.
        except (RaftmqError, OSError) as error:
            sys.exit(_complain(_on_one_line(_said_of(error)), exit_code_of(error)))
        sys.exit(result if isinstance(result, int) else ExitCode.OK)


def _prepare_streams() -> None:
    """Let the command run with closed streams and with terminals of a small character set.

    What is written to a closed stream is lost. A record may hold letters that the terminal's
    encoding does not have: their codes are shown.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it, as `>&-` does in a shell
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        stream = getattr(sys, name)
        # Tests put plain buffers in place of the streams.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_without_reader() -> int:
    """The reader of stdout has seen enough, as `head` does: end without a message.

    Python writes what is left in the buffer when it exits, and would complain then; hence
    /dev/null.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.FAILED


def _said_of(error: Exception) -> str:
    """Errors of our files name them; one without a file name comes from stdout."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        return f"cannot write to stdout: {error.strerror}"
    return str(error)


def _line_of(error: click.ClickException) -> str:
    line = _on_one_line(error.format_message())
    if meant := _meant(error):
        line = f"{error.message} Did you mean {meant}?"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if line.endswith((".", "?", ")")) else "."
        line = f"{line}{end} Try '{error.ctx.command_path} --help'."
    return line


def _meant(error: click.ClickException) -> str:
    """What click does not find by its letters: the rest of a verb, and the other option for JSON.

    `-o` is the output, but of `consume` the offset, and its `-f` the format: hands mix them up.
    """
    if isinstance(error, NoSuchCommand) and error.ctx is not None and not error.possibilities:
        group = cast("click.Group", error.ctx.command)
        names = group.list_commands(error.ctx)
        found = [name for name in names if f"-{error.command_name}" in f"-{name}"]
        return " or ".join(map(repr, found))
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        asked = JSON_OPTIONS if error.option_name in JSON_WORDS else {}
        params = error.ctx.command.params
        return next((asked[one.name] for one in params if one.name in asked), "")
    return ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _complain(line: str, exit_code: int) -> int:
    """Print `line` after the program's name; settings have one line for each problem."""
    for each in line.splitlines():
        click.echo(f"{NAME}: {as_called(each)}", err=True)
    return int(exit_code)


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=cleandoc("""
    Examples:

    raftmq dev

    raftmq topic create orders --partitions 6 -c retention.ms=7d

    seq 1000 | raftmq produce orders

    raftmq consume orders -o earliest -e

    raftmq -b host1:9292,host2:9292 cluster health --wait

    raftmq broker --config /etc/raftmq/node.toml
    """),
)
@click.rich_config({"text_paragraph_linebreaks": "\n\n"})
@bootstrap_option(is_global=True)
@click.option(
    "--profile",
    metavar="NAME",
    envvar="RAFTMQ_PROFILE",
    help="A named cluster, see `raftmq profile --help`; else $RAFTMQ_PROFILE.",
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
def main(bootstrap: str | None, profile: str | None) -> None:
    """A distributed message queue with Kafka's guarantees and none of its machinery.

    `raftmq COMMAND --help` shows the options of a command, and examples.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 exists, 5 unreachable or timed out,
    6 not authorised, 7 unhealthy, 130 interrupted, 143 ended by SIGTERM.
    """


# In the order of `raftmq --help`: begin here, every day, look after it, when something is wrong.
NOUNS = {
    "dev": "A real cluster of separate processes on this machine.",
    "broker": "Be a node of a cluster.",
    "topic": "Topics: make them, look at them, change them, empty them.",
    "produce": "Send records: one for each line of standard input.",
    "consume": "Print records as they come, or those that are there.",
    "group": "Consumer groups: who is in them, how far they are, where they go on.",
    "dlq": "Dead letters: what groups have set aside, why, and sending it back.",
    "transaction": "Transactions: what is open, what holds readers back, and ending it by hand.",
    "cluster": "The cluster: is it healthy, and who is in it.",
    "quorum": "The metadata quorum: how it is, and what is on its disks.",
    "log": "Read a partition folder without a broker.",
    "profile": "Named clusters, for --profile NAME.",
    "completion": "Let the shell complete commands and options.",
    "bench": "How fast this cluster is, as seen from here.",
}
for _noun, _help in NOUNS.items():
    main.add_command(Noun(_noun, _help))
