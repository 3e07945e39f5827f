"""The command `raftmq` itself: its nouns, and how every command of them ends.

Owns the table of nouns and the translation of errors into one line and an exit code. A noun's
module is imported when that noun is used, and modules of nouns import only click themselves, so
that `raftmq --help` stays quick.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, NoReturn

import rich_click as click

from raftmq import __version__
from raftmq.cli.bootstrap import bootstrap_option
from raftmq.cli.exits import CommandError, ExitCode
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "raftmq"


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
    """Ends every command in the same way, whatever went wrong inside of it."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> NoReturn:
        """Run, and exit: errors become one line on stderr, never a traceback."""
        _never_fail_on_a_character()
        try:
            result = super().main(args, PROGRAM, complete_var, False, **extra)
        except click.Abort:
            sys.exit(_complain("interrupted", ExitCode.INTERRUPTED))
        except click.ClickException as error:
            sys.exit(_complain(_line_of(error), error.exit_code))
        except CommandError as error:
            sys.exit(_complain(str(error), error.exit_code))
        except BrokenPipeError:
            sys.exit(_end_without_reader())
        except (RaftmqError, OSError) as error:
            sys.exit(_complain(str(error), ExitCode.FAILED))
        sys.exit(result if isinstance(result, int) else ExitCode.OK)


def _never_fail_on_a_character() -> None:
    """A record may hold letters that the terminal's encoding has not: show their codes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_without_reader() -> int:
    """Somebody has seen enough, as `head` does: nothing to complain of.

    Python writes what is left in the buffer when it ends, and would complain then.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.FAILED


def _line_of(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        end = "" if line.endswith((".", "?", ")")) else "."
        line = f"{line}{end} Try '{error.ctx.command_path} --help'."
    return line


def _complain(line: str, exit_code: int) -> int:
    click.echo(f"{PROGRAM}: {line}", err=True)
    return int(exit_code)


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=cleandoc("""
    Examples:

    raftmq broker --config /etc/raftmq/node.toml

    raftmq log verify /var/lib/raftmq

    raftmq log dump /var/lib/raftmq/topics/orders-6f1c/Partition-0 --records -n 10

    raftmq -b voter1:9292,voter2:9292,voter3:9292 quorum status
    """),
)
@bootstrap_option(is_global=True)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def main(bootstrap: str | None) -> None:
    """A distributed message queue with Kafka's guarantees and none of its machinery.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 5 unreachable, 7 unhealthy,
    130 interrupted.
    """


NOUNS = {
    "broker": "Be a node of a cluster.",
    "log": "Read a partition folder without a broker.",
    "quorum": "The metadata quorum: how it is, and what is on its disks.",
}
for _noun, _help in NOUNS.items():
    main.add_command(Noun(_noun, _help))
