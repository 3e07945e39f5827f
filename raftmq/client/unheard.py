"""Errors of a program's own functions, which nobody would see where it has set up no logging."""

from __future__ import annotations

import logging
import sys


def is_heard(logger: logging.Logger) -> bool:
    """Whether any handler would write an error, beside the one that keeps the SDK silent."""
    found: logging.Logger | None = logger
    while found is not None:
        if any(not isinstance(each, logging.NullHandler) for each in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False


def print_error(error: BaseException, note: str) -> None:
    """As an uncaught one of a thread is printed."""
    error.add_note(note)
    sys.excepthook(type(error), error, error.__traceback__)
