"""Faults of the simulated disk: crashes and failing operations, at counted operations.

Owns the types (PowerCut, Moment, Fault) and no state of the disk. Every fault comes at a counted
operation, so that the same script meets it at the same place every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from raftmq.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

Moment = Literal["before", "torn", "after"]
Interrupt = Callable[[int, Moment], None]


class PowerCut(BaseException):
    """The machine, or the process, is gone. No `except Exception` may survive it."""


def crash_at(number: int, moment: Moment) -> Interrupt:
    """Crash at the operation of this number (from 1).

    Only a write of two bytes or more can be torn; others crash before the next operation.
    """

    def interrupt(count: int, now: Moment) -> None:
        if (count, now) == (number, moment) or count > number:
            raise PowerCut(f"{moment} operation {number}")

    return interrupt


class Fault:
    """The nth operation of a kind on paths that match fails, once."""

    def __init__(self, operation: str, pattern: str, *, nth: int, error: int) -> None:
        self._operation, self._pattern, self._nth, self._error = operation, pattern, nth, error

    def strikes(self, operation: str, path: Path) -> bool:
        """Whether it is this one that fails; counts the ones before."""
        matches = operation == self._operation and path.match(self._pattern)
        self._nth -= matches
        return matches and self._nth == 0

    def error(self) -> OSError:
        return OSError(self._error, os.strerror(self._error))


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextmanager
def translated(operation: str, path: Path) -> Iterator[None]:
    """What OsFiles does with an OSError, word for word."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{operation} {path}: {error.strerror}") from error
