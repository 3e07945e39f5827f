"""Worker threads of one voter that can be made to wait: a disk that hangs on demand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import trio

from tests.simulation.deterministic import run_inline

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

JOURNAL_WRITE = "JournalWrite.write"
SNAPSHOT_WRITE = "SnapshotStore.write"
SNAPSHOT_READ = "Snapshotter._read_newest"


class Gate:
    """A `run_sync`.

    Attributes:
        begun: how many calls of each function have come this far.
    """

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self._closed: set[str] = set()
        self._opened = trio.Event()

    async def __call__(self, function: Callable[[], T], /) -> T:
        name = getattr(function, "func", function).__qualname__
        self.begun[name] += 1
        while name in self._closed:
            await self._opened.wait()
        return await run_inline(function)

    def close(self, name: str) -> None:
        self._closed.add(name)

    def open(self, name: str) -> None:
        self._closed.discard(name)
        self._opened.set()
        self._opened = trio.Event()
