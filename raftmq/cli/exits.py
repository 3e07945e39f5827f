"""How a command ends: its exit code, and one line on stderr where it could not do its work.

Owns the numbers, which scripts depend on; docs and help texts must agree with them.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 5
    UNHEALTHY = 7
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CommandError(Exception):
    """Ends the command; its text is one line that names the thing and the way out."""

    def __init__(self, line: str, exit_code: ExitCode) -> None:
        self.exit_code = exit_code
        super().__init__(line)
