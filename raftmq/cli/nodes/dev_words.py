"""What the verbs of `raftmq dev` say alike: progress, the way to a directory, and how they fail.

Owns which error of the tree has which exit code here, where it is another than elsewhere.
"""

from __future__ import annotations

from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import CommandError, ExitCode, exit_code_of
from raftmq.errors import BrokerIdNotRegistered, RaftmqError, Unreachable
from raftmq.local.plan import DIRECTORY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def tell(line: str) -> None:
    """Progress."""
    click.echo(line, err=True)


def dev_command(verb: str, directory: Path) -> str:
    """What somebody types to do it there."""
    where = [] if directory == DIRECTORY_DEFAULT else ["--dir", quote(str(directory))]
    return " ".join(["raftmq dev", *([verb] if verb else []), *where])


@contextmanager
def telling() -> Iterator[None]:
    """What a broker said last comes first, indented; the error's own line is the last one."""
    try:
        yield
    except RaftmqError as error:
        for note in getattr(error, "__notes__", []):
            click.echo("".join(f"  | {line}\n" for line in note.splitlines()), err=True, nl=False)
        raise CommandError(str(error), _exit_code_of(error)) from error


def _exit_code_of(error: RaftmqError) -> ExitCode:
    if isinstance(error, BrokerIdNotRegistered):
        return ExitCode.NOT_FOUND
    if isinstance(error, Unreachable):
        return ExitCode.FAILED  # a port that is in use: nobody was to be reached
    return exit_code_of(error)
