"""trio on virtual time, the same way every time: one seed, one order of tasks.

Owns the one place that reaches into trio: its scheduler shuffles the tasks of a batch with a
private Random, which is seeded here (trio is pinned; a test fails if the names vanish). Files are
never handed to threads, which MockClock does not see: `run_inline` stands in for a worker thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import trio
from trio._core import _run
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")
SECONDS_MAX = 7200.0  # of virtual time


async def run_inline(function: Callable[[], T], /) -> T:
    """Others may run before and after, as they do while a thread is started and joined."""
    await trio.lowlevel.checkpoint()
    result = function()
    await trio.lowlevel.checkpoint()
    return result


def run(seed: str, main: Callable[[], Awaitable[T]]) -> T:
    """trio.run on a clock that jumps to the next deadline when nothing else can happen.

    Of a group of errors the first that matters is raised: a PowerCut is only the way out. Where
    somebody waits for ever, while timers go on, that is TooSlowError.
    """

    async def bounded() -> T:
        with trio.fail_after(SECONDS_MAX):
            return await main()

    try:
        with _seeded_scheduler(seed):
            return trio.run(bounded, clock=MockClock(autojump_threshold=0))
    except BaseExceptionGroup as group:
        found = _leaves(group)
        raise next((e for e in found if isinstance(e, Exception)), found[0]) from None


@contextmanager
def _seeded_scheduler(seed: str) -> Iterator[None]:
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before[0]  # type: ignore[misc]
        _run._r.setstate(before[1])


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, however deep."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
