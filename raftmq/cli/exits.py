"""How a command ends: its exit code, and one line on stderr where it could not do its work.

Owns the numbers, which scripts depend on; docs and help texts must agree with them.
"""

from __future__ import annotations

from enum import IntEnum

import click


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNHEALTHY = 7
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CommandError(click.ClickException):
    """Ends the command; `message` is one line that names the thing and the way out."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
