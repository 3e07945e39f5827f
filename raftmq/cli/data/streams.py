"""Standard streams as they may be: closed by whoever has started the program, or a terminal."""

from __future__ import annotations

import sys

from raftmq.cli.exits import CommandError, ExitCode


def is_terminal(name: str) -> bool:
    """Of `stdin`, `stdout` or `stderr`; one that is closed is none."""
    stream = getattr(sys, name)
    return stream is not None and bool(stream.isatty())


def file_of(name: str) -> int:
    """Its number for the system.

    Raises:
        CommandError: it is closed.
    """
    stream = getattr(sys, name)
    if stream is None or getattr(sys, f"__{name}__") is None:  # the latter, if it was replaced
        raise CommandError(f"{name} is closed: give it a file, or a pipe", ExitCode.FAILED)
    return int(stream.fileno())
