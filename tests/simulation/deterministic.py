"""Deterministic trio under virtual time: a seed fixes the order of tasks.

The one place that uses private parts of trio: its scheduler shuffles the tasks of a batch with a
private Random, which is replaced here (trio is pinned; a test fails if the names vanish). Files are
never handed to threads, which MockClock does not see: `run_inline` stands in for a worker thread.

Invariant: loops in other threads of the process, a broker's that tests have started for example,
change nothing in a run.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio._core import _run
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")
SECONDS_MAX = 7200.0  # of virtual time: a world of minutes that takes longer hangs


async def run_inline(function: Callable[[], T], /) -> T:
    """Others may run before and after, as they do while a thread is started and joined."""
    await trio.lowlevel.checkpoint()
    result = function()
    await trio.lowlevel.checkpoint()
    return result


def run(seed: str, main: Callable[[], Awaitable[T]]) -> T:
    """trio.run on a clock that jumps to the next deadline when nothing else can happen.

    Of a group of errors the first that matters is raised: a PowerCut is only the way out. Where
    a task waits for ever, while timers go on, that is TooSlowError.
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


class _Chance:
    """What all loops of the process draw from: this thread's has numbers of its own."""

    def __init__(self, seed: str, others: Random) -> None:
        assert isinstance(others, Random), "another simulation runs in this process"
        self._ours, self._others, self._thread_id = Random(seed), others, get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if get_ident() == self._thread_id else self._others, name)


@contextmanager
def _seeded_scheduler(seed: str) -> Iterator[None]:
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    chance = _Chance(seed, others=_run._r)
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r = chance  # type: ignore[assignment]
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r = before  # type: ignore[misc]


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group of errors, however deep."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
