"""What waits to leave on one stream, and the task that sends it.

Owns the order and the joining: whatever has queued up while a send was under way leaves with the
next one. Sets no limits of its own, as each side counts in its own way; `on_sent` tells them what
has left. A frame that has been put here leaves whole, or the connection ends.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.rpc.reply import memory_bytes, payload_length
from raftmq.rpc.sending import STEP_BYTES, Sender, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from raftmq.rpc.reply import Payload, Piece
    from raftmq.rpc.sending import RunSync


class Entry(NamedTuple):
    head: bytes  # of the frame, with everything but the payload
    payload: Payload
    memory_bytes: int
    stream_bytes: int
    answers: int  # these two are told to `on_sent` when it has left
    held_bytes: int


class Outbox:
    """Attributes:
    on_sent: called with the number of answers that have left, and the bytes that they held.
    queued_bytes: in memory, of what has not left yet.
    moved_at: when a step of sending was done last.
    pushed_at: the same, of long sends only: these go on only while somebody takes them.
    writes_since: since when the present step of sending lasts; math.inf while nothing waits.
    """

    def __init__(self, stream: trio.abc.SendStream, run_sync: RunSync) -> None:
        self.on_sent: Callable[[int, int], None] = lambda _answers, _held_bytes: None
        self.queued_bytes = 0
        self.moved_at, self.pushed_at, self.writes_since = trio.current_time(), -math.inf, math.inf
        self._stream, self._sender = stream, Sender(stream, run_sync)
        self._queue: deque[Entry] = deque()
        self._is_sending = self._is_corked = False
        self._idle_task: trio.lowlevel.Task | None = None
        self._emptied = trio.lowlevel.ParkingLot()

    @property
    def is_empty(self) -> bool:
        return not self._queue and not self._is_sending

    def put(self, head: bytes, payload: Payload = (), *, held_bytes: int = 0) -> None:
        """Queue the frame that `head` begins, until `flush`. An answer holds something."""
        size = len(head)
        if payload:
            in_memory, on_stream = size + memory_bytes(payload), size + payload_length(payload)
        else:
            in_memory = on_stream = size
        answers = 1 if held_bytes else 0
        self._queue.append(Entry(head, payload, in_memory, on_stream, answers, held_bytes))
        self.queued_bytes += in_memory

    def flush(self, *, at_once: bool = False) -> None:
        """Let everything leave that was put here.

        Args:
            at_once: nothing else is coming soon, so do not even wait for the writing task.
        """
        if self._idle_task is None or self._is_corked:
            return  # it is at it, or will be
        if at_once:
            self._send_now()
        if self._queue and self._idle_task is not None:  # `on_sent` may have woken it
            trio.lowlevel.reschedule(self._idle_task)
            self._idle_task = None

    def cork(self) -> None:
        """Nothing leaves before `uncork`: more is coming, from the very task that calls this."""
        self._is_corked = True

    def uncork(self) -> None:
        self._is_corked = False
        self.flush(at_once=True)

    def _send_now(self) -> None:
        """As much as leaves without waiting for anything."""
        while self._queue:
            entries = self._take()
            pieces, sums = _sums(entries)
            sent, rest = self._sender.send_now(pieces)
            if not sent:
                self._queue.extendleft(reversed(entries))
                return
            self.moved_at = trio.current_time()
            if rest:
                unsent = sums.stream_bytes - sent
                self._queue.appendleft(sums._replace(payload=rest, stream_bytes=unsent))
                return
            self._note_sent(sums)

    async def wait_empty(self) -> None:
        while not self.is_empty:
            await self._emptied.park()

    async def run(self) -> NoReturn:
        """Send for ever. Raises what `Sender.send` raises."""
        while True:
            if not self._queue:
                await self._wait_queued()
            self._send_now()
            if self._queue:
                self._is_sending = True
                await self._send(self._take())
                self._is_sending = False
            if not self._queue:
                self._emptied.unpark_all()

    async def _wait_queued(self) -> None:
        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._idle_task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle_task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _take(self) -> list[Entry]:
        entries = []
        size = 0
        while self._queue and size < STEP_BYTES:
            entries.append(self._queue.popleft())
            size += entries[-1].stream_bytes
        return entries

    async def _send(self, entries: list[Entry]) -> None:
        pieces, sums = _sums(entries)
        self.writes_since = trio.current_time()
        for step in steps(pieces):
            await self._sender.send(step)
            self.moved_at = self.writes_since = trio.current_time()
            if sums.stream_bytes >= STEP_BYTES:
                self.pushed_at = self.moved_at
        self.writes_since = math.inf
        self._note_sent(sums)

    def _note_sent(self, sums: Entry) -> None:
        self.queued_bytes -= sums.memory_bytes
        self.on_sent(sums.answers, sums.held_bytes)


def _sums(entries: list[Entry]) -> tuple[list[Piece], Entry]:
    """All pieces, and the numbers of all entries in one."""
    pieces: list[Piece] = []
    in_memory = on_stream = answers = held_bytes = 0
    for entry in entries:
        pieces.append(entry.head)
        pieces += entry.payload
        in_memory += entry.memory_bytes
        on_stream += entry.stream_bytes
        answers += entry.answers
        held_bytes += entry.held_bytes
    return pieces, Entry(b"", (), in_memory, on_stream, answers, held_bytes)
