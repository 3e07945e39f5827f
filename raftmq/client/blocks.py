"""What `with` and `open()` have in common: errors of what is not open, warnings of what stays so.

The error of the wrong kind of `with` names the right one, in place of Python's. It is hidden from
type checkers, which complain of such a block by themselves.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from raftmq.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("raftmq.client")


class AsyncBlock:
    """What `async with` opens."""

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            name = type(self).__name__
            raise TypeError(
                f"this {name} is opened by `async with`; for programs without async there is "
                "raftmq.sync, whose blocks are `with raftmq.sync.connect(...)`"
            )

        def __exit__(self, *_: object) -> None:
            """Never called: there is no entering."""


class BlockingBlock:
    """What `with` opens."""

    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            name = type(self).__name__
            raise TypeError(
                f"this {name} is of raftmq.sync, and is opened by `with`; for async programs "
                "there is raftmq.connect, as in `async with raftmq.connect(...)`"
            )

        async def __aexit__(self, *_: object) -> None:
            """Never called: there is no entering."""


def not_open(what: str, *, was_opened: bool) -> Closed:
    """The error of a call that needs it open; `what`: it is, with its article."""
    if was_opened:
        return Closed(f"{what} has been closed: make another one")
    return Closed(f"{what} is not open: enter its block, or call its open(), first")


def warn_unclosed(
    given: object,
    undelivered: int = 0,
    *,
    warn: Callable[..., None] = warnings.warn,
    log: Callable[..., None] = logger.warning,
) -> None:
    """As Python does for files and sockets; for `__del__`. Few programs show a ResourceWarning, so
    records that were not delivered are logged, too.

    Args:
        undelivered: number of records that it was given, and has not delivered.
        warn, log: defaults, as the names may be gone when the interpreter ends.
    """
    if undelivered:
        log("opened by open(), and never closed: undelivered_records=%d %r", undelivered, given)
    # A blocking client that is open still delivers them.
    left = f"; records that were not delivered yet: {undelivered}" if undelivered else ""
    warn(f"unclosed {given!r}: it was opened by open(){left}", ResourceWarning, source=given)
