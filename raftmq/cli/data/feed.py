"""Records as they come in, in bursts that end where the input pauses.

A task reads ahead into a queue of bounded size. A burst is what one call of `send_many` gets: as
long as more comes it goes on; where nothing does for the linger time it ends, so that a record
never waits for the next one to be typed. What comes while a burst is being delivered is the next
one: the slower the cluster, the longer they are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

import anyio

from raftmq.cli.data.lines import Splitter
from raftmq.cli.data.sources import Source
from raftmq.cli.exits import CommandError
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.cli.data.lines import Row, Shape

QUEUE_BYTES_MAX = 4 << 20
BURST_ROWS_MAX = 1_000_000  # then results are put down: an endless stream must not collect them
LINGER_SECONDS = 0.005


class Feed:
    """Attributes:
    read_bytes, read_records: so far.
    """

    def __init__(self, paths: Sequence[str], delimiter: bytes, shape: Shape) -> None:
        self._paths, self._delimiter, self._shape = paths, delimiter, shape
        self._queue: deque[tuple[list[Row], int]] = deque()
        self._queued_bytes = 0
        self._is_over = self._is_prompt = False
        self._error: OSError | CommandError | RaftmqError | None = None
        self._changed = anyio.Event()
        self.read_bytes = self.read_records = 0

    async def run(self) -> None:
        """Read everything. What goes wrong is told where the records before it have been taken."""
        try:
            for path in self._paths:
                await self._read(path)
        except (OSError, CommandError, RaftmqError) as error:
            self._error = error
        self._is_over = True
        self._tell()

    async def wait(self) -> bool:
        """Until there is something for a burst; False at the end.

        Raises:
            OSError, CommandError: of what was to be read.
            MessageTooLarge: a record that does not end.
        """
        while not self._queue and not self._is_over:
            await self._changed.wait()
        if not self._queue and self._error is not None:
            raise self._error
        return bool(self._queue)

    def burst(self) -> Burst:
        return Burst(self)

    async def next_rows(self, deadline: float) -> list[Row]:
        """None if nothing has come by then. Of a file there is always more until it ends."""
        with anyio.CancelScope() as scope:
            while not self._queue and not self._is_over:
                if not self._is_prompt:
                    scope.deadline = deadline
                await self._changed.wait()
        return self._take() if self._queue else []

    def _take(self) -> list[Row]:
        rows, size = self._queue.popleft()
        self._queued_bytes -= size
        self._tell()
        return rows

    async def _read(self, path: str) -> None:
        splitter = Splitter(self._delimiter)
        async with Source(path) as source:
            while block := await source.read():
                self._is_prompt = source.is_prompt
                self.read_bytes += len(block)
                await self._put(splitter.feed(block), len(block))
        self._is_prompt = False
        await self._put(splitter.end(), 0)

    async def _put(self, lines: list[bytes], size: int) -> None:
        while self._queued_bytes > QUEUE_BYTES_MAX:
            await self._changed.wait()
        if lines:
            self.read_records += len(lines)
            self._queue.append((self._shape.rows(lines), size))
            self._queued_bytes += size
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Burst:
    """Rows, to be iterated over once."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._rows: Iterator[Row] = iter(())
        self._count = 0
        self._linger_until = anyio.current_time() + LINGER_SECONDS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        for row in self._rows:
            return row
        rows: list[Row] = []
        if self._count < BURST_ROWS_MAX:
            rows = await self._feed.next_rows(self._linger_until)
        if not rows:
            raise StopAsyncIteration
        self._count += len(rows)
        self._rows = iter(rows)
        return next(self._rows)
