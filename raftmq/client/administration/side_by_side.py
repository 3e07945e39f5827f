"""Several questions at a time, so that a topic of many partitions is not asked one by one.

Owns the tasks, and leaves none behind. Errors of the tree are outcomes like any other; whatever
else is raised comes out alone and not in a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

CONCURRENT_MAX = 32

T = TypeVar("T")


async def settle(asks: Iterable[Callable[[], Awaitable[T]]]) -> list[T | RaftmqError]:
    """What each of them came to, in their order."""
    waiting = list(enumerate(asks))
    outcomes: dict[int, T | RaftmqError] = {}
    failures: list[Exception] = []
    queue = iter(waiting)

    async def work() -> None:
        for number, ask in queue:
            try:
                outcomes[number] = await ask()
            except RaftmqError as error:
                outcomes[number] = error
            except Exception as error:  # would reach the caller in a group otherwise
                failures.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(CONCURRENT_MAX, len(waiting))):
            tasks.start_soon(work)
    if failures:
        raise failures[0]
    return [outcomes[number] for number, _ in waiting]
