"""Asking before something is destroyed.

Without a terminal nobody can answer: then a command refuses, rather than do what cannot be undone
or wait for ever. `--yes` is the answer of a script.
"""

from __future__ import annotations

import rich_click as click

from raftmq.cli.data.consume_run import is_terminal
from raftmq.cli.exits import CommandError, ExitCode


def check_can_ask(what: str, *, is_sure: bool) -> None:
    """Called before anything is looked up: a script learns at once that it must say --yes."""
    if not is_sure and not is_terminal("stdin"):
        raise CommandError(
            f"{what}: this asks first, and there is no terminal to ask at: add --yes",
            ExitCode.USAGE,
        )


def confirm(question: str, *, is_sure: bool) -> None:
    """
    Raises:
        CommandError: no was the answer.
    """
    if is_sure or click.confirm(question, err=True):
        return
    raise CommandError("nothing was changed", ExitCode.FAILED)
