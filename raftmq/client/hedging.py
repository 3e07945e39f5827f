"""One question to several brokers, one after the other, and not for the slowest of them to hold up.

Owns the pace: the next one is asked when the one before has failed or its answer will not do, and
also when it is slow. Whoever is slow may still answer first. Leaves no task behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")


async def ask_in_turn(
    asks: Iterable[Callable[[], Awaitable[T]]],
    is_enough: Callable[[T], bool],
    *,
    patience_seconds: float,
) -> tuple[list[T], list[RaftmqError]]:
    """Answers in the order in which they came, up to the first that is enough; and what failed.

    Args:
        patience_seconds: after which the next one is asked, too.
    """
    answers: list[T] = []
    problems: list[RaftmqError] = []

    async def attempt(ask: Callable[[], Awaitable[T]], done: trio.Event) -> None:
        try:
            answer = await ask()
        except RaftmqError as error:
            problems.append(error)
        else:
            answers.append(answer)
            if is_enough(answer):
                nursery.cancel_scope.cancel()
        done.set()

    async with trio.open_nursery() as nursery:
        for ask in asks:
            done = trio.Event()
            nursery.start_soon(attempt, ask, done)
            with trio.move_on_after(patience_seconds):
                await done.wait()
    return answers, problems
