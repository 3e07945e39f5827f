"""One open stream as frames in either direction, and the end of it.

Owns the tasks of the stream: one reads, one writes, one looks at the clocks of both, so that no
frame needs a clock of its own. What frames mean, servers (`session.py`) and channels (`channel.py`)
know. Whatever cannot be read or sent ends the connection, with one log line, and nothing else.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, TypeVarTuple

import trio

from raftmq.errors import RemoteProtocolError, StorageError
from raftmq.rpc.outbox import Outbox
from raftmq.wire.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.rpc.arrival import Arrival
    from raftmq.rpc.limits import Limits
    from raftmq.rpc.sending import RunSync
    from raftmq.rpc.window import Window
    from raftmq.wire.frames import Frame

READ_BYTES = 64 << 10
READ_BYTES_MAX = 512 << 10  # where much arrives at once
FINISH_SECONDS_MAX = 1.0

logger = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")


class Connection:
    """`run` serves the stream to its end.

    Args:
        arrival: of requests; None where answers come, which this side has asked for.

    Attributes:
        reason: why it ended; empty as long as it has not.
        heard_at: when something arrived last.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        name: str,
        limits: Limits,
        run_sync: RunSync,
        arrival: Arrival | None = None,
    ) -> None:
        self.name, self.limits = name, limits
        self.reason = ""
        self.heard_at = trio.current_time()
        self.outbox = Outbox(stream, run_sync)
        self._stream = stream
        self._frames = FrameReader(
            frame_bytes_max=limits.frame_bytes_max, header_bytes_max=limits.header_bytes_max
        )
        self._read_bytes = READ_BYTES
        self._arrival = arrival
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._alarm = trio.CancelScope()

    @property
    def is_ended(self) -> bool:
        """Nothing more is sent or received."""
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def run(
        self, read: Callable[[], Awaitable[None]], look: Callable[[float], float]
    ) -> None:
        """Until somebody ends it; then the stream is closed.

        Args:
            read: takes what `receive` returns, to the end.
            look: called with the time, returns when to call it next; may end the connection.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as self._tasks:
                    self._tasks.start_soon(self._serve, read)
                    self._tasks.start_soon(self._serve, self.outbox.run)
                    self._tasks.start_soon(self._watch, look)
        finally:
            self.end("cancelled")
            self._tasks = None
            self.leave_room()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *arguments: *Ts) -> None:
        """Run a task that is cancelled when the connection ends."""
        assert self._tasks is not None, "only while it runs"
        self._tasks.start_soon(function, *arguments)

    async def receive(self) -> list[Frame]:
        """The next frames, at least one; none when the other side has hung up. Only the first may
        be larger than a read.

        Raises:
            RemoteProtocolError, and what the stream raises.
        """
        self.leave_room()
        while True:
            read_bytes = self._read_bytes
            if self._arrival is not None:
                read_bytes = await self._wait_room(self._arrival)
            data = await self._stream.receive_some(read_bytes)
            self.heard_at = trio.current_time()
            if not data:
                return []
            if len(data) == read_bytes:
                self._read_bytes = READ_BYTES_MAX
            elif len(data) < READ_BYTES:
                self._read_bytes = READ_BYTES
            if frames := self._frames.receive(data):
                if self._arrival is not None:
                    self._arrival.on_arrived()
                return frames

    async def _wait_room(self, arrival: Arrival) -> int:
        """How much may be read."""
        if needed_bytes := self._frames.needed_bytes:
            now = trio.current_time()
            self.look_by(now + min(self.limits.ping_seconds, self.limits.stall_seconds_max))
        return await arrival.wait_room(needed_bytes, self._frames.buffered_bytes, self._read_bytes)

    def bound_by(self, window: Window) -> None:
        """Nothing large is read while it is full."""
        if self._arrival is not None:
            self._arrival.window = window

    def leave_room(self) -> None:
        """What was large of the frames that were received last is handled."""
        if self._arrival is not None:
            self._arrival.leave()

    @property
    def is_waiting(self) -> bool:
        """For room; until there is some nothing is read."""
        return self._arrival is not None and self._arrival.is_waiting

    def end(self, reason: str, *, is_fault: bool = False) -> None:
        """Now; what waits to be sent is lost. Does nothing the second time."""
        if self.is_ended:
            return
        self.reason = reason
        self._ended.set()
        self._scope.cancel()
        level = logging.WARNING if is_fault else logging.INFO
        logger.log(level, "connection ended: with=%s reason=%s", self.name, reason)

    async def finish(self, reason: str) -> None:
        """End once everything has been sent and the other side has had a moment to read it.

        Hanging up at once could reset the connection, and the last words with it.
        """
        with trio.move_on_after(FINISH_SECONDS_MAX):
            await self.outbox.wait_empty()
            while await self._stream.receive_some(READ_BYTES):
                pass  # whatever was under way
        self.end(reason, is_fault=True)

    def look_by(self, deadline: float) -> None:
        """Have `look` called then, or before."""
        if deadline < self._alarm.deadline:
            self._alarm.deadline = deadline

    async def _serve(self, task: Callable[[], Awaitable[None]]) -> None:
        """The reader or the writer, with its end."""
        try:
            await task()
            self.end("the other side hung up")
        except (RemoteProtocolError, StorageError, EOFError) as error:
            self.end(str(error), is_fault=True)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(str(error) or repr(error))

    async def _watch(self, look: Callable[[float], float]) -> None:
        while True:
            with trio.CancelScope(deadline=math.inf) as self._alarm:
                self._alarm.deadline = self._next_look(look)
                await trio.sleep_forever()
            # What arrived while this process stood still counts before its clocks do.
            await trio.lowlevel.checkpoint()

    def _next_look(self, look: Callable[[float], float]) -> float:
        now = trio.current_time()
        stalls_at = self.outbox.writes_since + self.limits.stall_seconds_max
        if now >= stalls_at:
            self.end(f"took nothing for {self.limits.stall_seconds_max:g} s", is_fault=True)
        arrives_by = math.inf if self._arrival is None else self._arrival.deadline(self.heard_at)
        if now >= arrives_by:
            self.end(f"{self._arrival} does not arrive", is_fault=True)
        return min(look(now), stalls_at, arrives_by, now + self.limits.stall_seconds_max)
