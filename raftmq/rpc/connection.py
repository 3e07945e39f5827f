"""One open stream as frames in either direction, and the end of it.

Owns the tasks of the stream: one reads, one writes, one looks at the clocks of both, so that no
frame needs a clock of its own. What frames mean, servers (`server.py`) and channels (`channel.py`)
know. Whatever cannot be read or sent ends the connection, with one log line, and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVarTuple

import trio

from raftmq.disk.files import FileSlice, WouldBlock
from raftmq.errors import RemoteProtocolError, StorageError
from raftmq.rpc.network import TcpStream, drop_front
from raftmq.rpc.reply import memory_bytes, payload_length
from raftmq.wire.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import NoReturn, TypeAlias

    from raftmq.rpc.arrival import Arrival
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.rpc.reply import Payload, Piece
    from raftmq.rpc.window import RequestWindow
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.frames import Frame

    RunSync: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]


logger = logging.getLogger("raftmq.rpc")


# -- Outbox ---------------------------------------------------------------------------------------
# What waits to leave on one stream, and the task that sends it.
#
# Owns the order and the joining: whatever has queued up while a send was under way leaves with the
# next one. Sets no limits of its own, as each side counts in its own way; `on_sent` tells them what
# has left. A frame that has been put here leaves whole, or the connection ends.


class OutboxEntry(NamedTuple):
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
        self._stream, self._sender = stream, SocketWriter(stream, run_sync)
        self._queue: deque[OutboxEntry] = deque()
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
        self._queue.append(OutboxEntry(head, payload, in_memory, on_stream, answers, held_bytes))
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
        """Send for ever. Raises what `SocketWriter.send` raises."""
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

    def _take(self) -> list[OutboxEntry]:
        entries = []
        size = 0
        while self._queue and size < STEP_BYTES:
            entries.append(self._queue.popleft())
            size += entries[-1].stream_bytes
        return entries

    async def _send(self, entries: list[OutboxEntry]) -> None:
        pieces, sums = _sums(entries)
        self.writes_since = trio.current_time()
        for step in steps(pieces):
            await self._sender.send(step)
            self.moved_at = self.writes_since = trio.current_time()
            if sums.stream_bytes >= STEP_BYTES:
                self.pushed_at = self.moved_at
        self.writes_since = math.inf
        self._note_sent(sums)

    def _note_sent(self, sums: OutboxEntry) -> None:
        self.queued_bytes -= sums.memory_bytes
        self.on_sent(sums.answers, sums.held_bytes)


def _sums(entries: list[OutboxEntry]) -> tuple[list[Piece], OutboxEntry]:
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
    return pieces, OutboxEntry(b"", (), in_memory, on_stream, answers, held_bytes)


# -- Connection -----------------------------------------------------------------------------------


READ_BYTES = 64 << 10
READ_BYTES_MAX = 512 << 10  # where much arrives at once
FINISH_SECONDS_MAX = 1.0

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
        limits: RpcLimits,
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

    def bound_by(self, window: RequestWindow) -> None:
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


# -- Sending --------------------------------------------------------------------------------------
# How pieces leave: small ones joined, large ones as they are, files past this process if possible.
#
# Owns the steps in which a long payload leaves, so that whoever watches sees it move. Never waits
# for a disk on the loop: what is not in the page cache is read by a worker thread.


JOINED_BYTES_MAX = 64 << 10  # copying that much costs less than another system call
STEP_BYTES = 1 << 20
SENDFILE_BYTES_MIN = 128 << 10  # likewise
PROBE_BYTES = 256 << 10  # the kernel reads ahead about as much


class WriteStep(NamedTuple):
    """About STEP_BYTES at most: buffers, and then a part of a file."""

    buffers: list[Buffer]
    file: FileSlice | None = None


def steps(pieces: Iterable[Piece]) -> Iterator[WriteStep]:
    """All bytes of `pieces`, in order."""
    buffers: list[Buffer] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, FileSlice):
            for part in _file_parts(piece):
                yield WriteStep(buffers, part)
                buffers, size = [], 0
            continue
        for buffer in _buffer_parts(piece):
            buffers.append(buffer)
            size += len(buffer)
            if size >= STEP_BYTES:
                yield WriteStep(buffers)
                buffers, size = [], 0
    if buffers:
        yield WriteStep(buffers)


def _buffer_parts(buffer: Buffer) -> Iterable[Buffer]:
    if len(buffer) <= STEP_BYTES:
        return (buffer,)
    view = memoryview(buffer).cast("B")
    return [view[start : start + STEP_BYTES] for start in range(0, len(view), STEP_BYTES)]


def _file_parts(piece: FileSlice) -> Iterator[FileSlice]:
    file, position, length = piece
    for start in range(0, length, STEP_BYTES):
        yield FileSlice(file, position + start, min(STEP_BYTES, length - start))


class SocketWriter:
    """Sends steps over one stream."""

    def __init__(self, stream: trio.abc.SendStream, run_sync: RunSync) -> None:
        self._stream, self._run_sync = stream, run_sync

    async def send(self, step: WriteStep) -> None:
        """Raises what the stream raises; StorageError or EOFError where a file falls short."""
        buffers, file = step
        if file is None:
            await self._send_buffers(_joined(buffers))
        elif not isinstance(self._stream, TcpStream) or not _is_for_sendfile(file):
            await self._send_buffers(_joined([*buffers, await self._read(file)]))
        else:
            await self._stream.send_buffers(_joined(buffers), more=True)
            await self._stream.send_file(file.file.fileno(), file.position, file.length)

    def send_now(self, pieces: Sequence[Piece]) -> tuple[int, list[Buffer]]:
        """Send without waiting for stream or disk: how many bytes left, and what did not."""
        buffers = _buffers_now(pieces) if isinstance(self._stream, TcpStream) else None
        if buffers is None:
            return 0, []
        assert isinstance(self._stream, TcpStream)
        sent = self._stream.send_now(buffers)
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        drop_front(rest, sent)
        return sent, list(rest)

    async def _send_buffers(self, buffers: list[Buffer]) -> None:
        if isinstance(self._stream, TcpStream) and len(buffers) > 1:
            await self._stream.send_buffers(buffers)
            return
        for buffer in buffers:
            await self._stream.send_all(buffer)

    async def _read(self, part: FileSlice) -> bytes:
        file, position, length = part
        try:
            data = file.read_now(position, length)
        except WouldBlock:
            data = await self._run_sync(part.read)
        if len(data) < length:
            raise EOFError(
                f"{file.path} ends at byte {position + len(data)}, before byte {position + length}"
            )
        return data


def _buffers_now(pieces: Sequence[Piece]) -> list[Buffer] | None:
    """All of it in memory; None where a file is better sent by itself, or has to be waited for."""
    buffers: list[Buffer] = []
    read_bytes = sum(piece.length for piece in pieces if isinstance(piece, FileSlice))
    if read_bytes >= SENDFILE_BYTES_MIN:
        return None
    for piece in pieces:
        if not isinstance(piece, FileSlice):
            buffers.append(piece)
            continue
        try:
            data = piece.file.read_now(piece.position, piece.length)
        except WouldBlock:
            return None
        if len(data) < piece.length:
            return None
        buffers.append(data)
    return _joined(buffers)


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers; large ones are not copied."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(small[0] if len(small) == 1 else b"".join(small))
    return joined


def _is_for_sendfile(part: FileSlice) -> bool:
    """Whether it is worth the call, and will not wait for a disk, as far as a few samples tell."""
    if part.length < SENDFILE_BYTES_MIN:
        return False
    last = part.position + part.length - 1
    try:
        for position in (*range(part.position, last, PROBE_BYTES), last):
            part.file.read_now(position, 1)
    except WouldBlock:
        return False
    return True
