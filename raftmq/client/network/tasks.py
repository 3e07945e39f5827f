"""Errors of tasks as people expect them: one error is that error, and not a group of one.

Owns the unwrapping. A group of several stays what it is: none of them may be lost.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def one_error() -> Iterator[None]:
    """Around a task group: what it raises because of one error becomes that error."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = _only_error(group)
        if found is None:
            raise
        context = found.__context__
        try:
            raise found
        finally:
            found.__context__ = context  # which would be the group otherwise
            del found, context  # an error that its own frame holds is freed late


def _only_error(error: BaseException) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) > 1:
            return None
        (error,) = error.exceptions
    return error
