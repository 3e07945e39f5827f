"""One question to several brokers, one after the other, and not for the slowest of them to hold up.

Owns the pace: the next one is asked when the one before has failed or its answer will not do, and
also when it is slow. Whoever is slow may still answer first. Leaves no task behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from raftmq.client.network.tasks import one_error
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

    async def attempt(ask: Callable[[], Awaitable[T]], done: anyio.Event) -> None:
        try:
            answer = await ask()
        except RaftmqError as error:
            problems.append(error)
        else:
            answers.append(answer)
            if is_enough(answer):
                tasks.cancel_scope.cancel()
        done.set()

    with one_error():
        async with anyio.create_task_group() as tasks:
            for ask in asks:
                done = anyio.Event()
                tasks.start_soon(attempt, ask, done)
                with anyio.move_on_after(patience_seconds):
                    await done.wait()
    return answers, problems
