"""Asking again while a cluster elects, up to a deadline: an election must not end a query."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from raftmq.errors import RaftmqError, RequestTimedOut, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 2.0


def retried(
    call: Callable[[], T],
    seconds_max: float,
    *,
    option: str | None = "retryTimeoutMs",
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `call` returns, once it does.

    Args:
        option: by which a user chooses `seconds_max`; None: nobody does.

    Raises:
        RaftmqError: what no repetition mends; or the last failure, when the time was over.
    """
    deadline, pause = now() + seconds_max, PAUSE_SECONDS
    while True:
        try:
            return call()
        except RaftmqError as error:
            if not is_passing(error):
                raise
            if now() + pause > deadline:
                by_option = f" ({option})" if option else ""
                error.add_note(f"tried for {seconds_max:g} s{by_option}")
                raise
        sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS_MAX)


def is_passing(error: RaftmqError) -> bool:
    """It may be otherwise in a moment."""
    return error.retriable or isinstance(error, (Unreachable, RequestTimedOut))
