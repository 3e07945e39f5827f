"""One open stream as frames in both directions: reader task, writer task, alarm; and its end.

Owns the three tasks of the stream: one reads, one writes, one checks the deadlines of both, so that
no frame needs a timer of its own. What frames mean, servers (`server.py`) and channels
(`trio_channel.py`) know. Any error of reading or sending ends this connection, with one log line,
and harms no other.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVarTuple

import trio
from msgspec import Struct
from msgspec.structs import replace

from raftmq.disk.files import FileSlice, WouldBlock
from raftmq.errors import ForeignProtocol, RemoteProtocolError, StorageError
from raftmq.rpc.network import TcpStream, drop_front
from raftmq.rpc.reply import payload_sizes
from raftmq.rpc.request_memory import SMALL_BYTES
from raftmq.wire.foreign import HTTP, HTTP_ANSWER, QUORUM
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
# The send queue of one stream, and the task that sends it.
#
# Owns the order and the joining: frames that queue up while a send is under way leave together with
# the next one. It has no limits; each side counts in its own way, and learns from `on_sent` what
# has left. A frame that was put here leaves whole, or the connection ends.


class OutboxEntry(Struct, frozen=True):
    head: bytes  # of the frame, with everything but the payload
    payload: Payload
    memory_bytes: int
    stream_bytes: int
    answers: int  # these two are passed to `on_sent` when the frame has left
    held_bytes: int


class Outbox:
    """Attributes:
    on_sent: called with the number of answers that have left, and the bytes that they held.
    queued_bytes: of memory, held by frames that have not left yet.
    moved_at: when the last step of sending ended.
    pushed_at: the same, of long sends only: a long send proceeds only while the peer reads.
    writes_since: when the present step of sending began; math.inf while nothing is being sent.
    """

    def __init__(self, stream: trio.abc.SendStream, run_sync: RunSync) -> None:
        self.on_sent: Callable[[int, int], None] = lambda _answers, _held_bytes: None
        self.queued_bytes = 0
        # Asked for each frame, and `trio.current_time` is twice the calls.
        self._now = trio.lowlevel.current_clock().current_time
        self.moved_at, self.pushed_at, self.writes_since = self._now(), -math.inf, math.inf
        self._stream, self._sender = stream, SocketWriter(stream, run_sync)
        self._queue: deque[OutboxEntry] = deque()
        self._is_sending = self._is_corked = False
        self._idle_task: trio.lowlevel.Task | None = None
        self._emptied = trio.lowlevel.ParkingLot()

    @property
    def is_empty(self) -> bool:
        return not self._queue and not self._is_sending

    def put(
        self,
        head: bytes,
        payload: Payload = (),
        *,
        sizes: tuple[int, int] | None = None,
        held_bytes: int = 0,
    ) -> None:
        """Queue a frame until `flush`.

        Args:
            sizes: of the payload, where `payload_sizes` has told them already.
            held_bytes: above 0 it is an answer.
        """
        on_stream, in_memory = sizes or payload_sizes(payload)
        size = len(head)
        in_memory += size
        answers = 1 if held_bytes else 0
        self._queue.append(
            OutboxEntry(head, payload, in_memory, on_stream + size, answers, held_bytes)
        )
        self.queued_bytes += in_memory

    def flush(self, *, at_once: bool = False) -> None:
        """Send what was put.

        Args:
            at_once: nothing more will come soon: try in this task, which saves a switch.
        """
        # Sending already, and the writer will see the queue; or corked, and `uncork` flushes.
        if self._idle_task is None or self._is_corked:
            return
        if at_once:
            self._send_now()
        if self._queue and self._idle_task is not None:  # `on_sent` may have woken it
            trio.lowlevel.reschedule(self._idle_task)
            self._idle_task = None

    def cork(self) -> None:
        """Hold frames back until `uncork`: this very task will put more, to leave in one call."""
        self._is_corked = True

    def uncork(self) -> None:
        self._is_corked = False
        self.flush(at_once=True)

    def _send_now(self) -> None:
        """As much as the socket takes without waiting."""
        while self._queue:
            entry = self._take()
            sent, rest = self._sender.send_now(entry)
            if not sent:  # the writing task goes on
                self._queue.appendleft(entry)
                return
            self.moved_at = self._now()
            # Sent in part: the rest stays first in line, so that frames never interleave.
            if rest:
                unsent = entry.stream_bytes - sent
                left = replace(entry, head=b"", payload=rest, stream_bytes=unsent)
                self._queue.appendleft(left)
                return
            self._note_sent(entry)

    async def wait_empty(self) -> None:
        while not self.is_empty:
            await self._emptied.park()  # woken when the writer has sent everything

    async def run(self) -> NoReturn:
        """Send until cancelled. Raises what `SocketWriter.send` raises."""
        while True:
            if not self._queue:
                await self._wait_queued()  # until `flush`
            self._send_now()
            if self._queue:  # the socket is full, or a file is not in memory
                self._is_sending = True
                # Waits while the socket is full, or for a disk; the stall limit ends it.
                await self._send(self._take())
                self._is_sending = False
            if not self._queue:  # for `finish`, which waits for the last answer to leave
                self._emptied.unpark_all()

    async def _wait_queued(self) -> None:
        # Cancelled: `flush` must not reschedule a task that has gone on.
        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._idle_task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle_task = trio.lowlevel.current_task()
        # Ends with the next `flush`.
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _take(self) -> OutboxEntry:
        """At least one frame, even a larger one than a step; several as one, with their sums."""
        queue = self._queue
        entry = queue.popleft()
        if not queue or entry.stream_bytes >= STEP_BYTES:  # the usual case
            return entry
        head, payload = entry.head, [*entry.payload]
        in_memory, on_stream = entry.memory_bytes, entry.stream_bytes
        answers, held_bytes = entry.answers, entry.held_bytes
        while queue and on_stream < STEP_BYTES:
            entry = queue.popleft()
            payload.append(entry.head)
            payload += entry.payload
            in_memory += entry.memory_bytes
            on_stream += entry.stream_bytes
            answers += entry.answers
            held_bytes += entry.held_bytes
        return OutboxEntry(head, payload, in_memory, on_stream, answers, held_bytes)

    async def _send(self, sums: OutboxEntry) -> None:
        self.writes_since = trio.current_time()
        # Long answers in steps, so that the alarm sees progress between them.
        for step in steps((sums.head, *sums.payload)):
            await self._sender.send(step)  # until the socket has taken it; the stall limit ends it
            self.moved_at = self.writes_since = trio.current_time()
            # A short frame fits into buffers even if the peer is dead: no sign of life.
            if sums.stream_bytes >= STEP_BYTES:
                self.pushed_at = self.moved_at
        self.writes_since = math.inf
        self._note_sent(sums)

    def _note_sent(self, sums: OutboxEntry) -> None:
        self.queued_bytes -= sums.memory_bytes
        self.on_sent(sums.answers, sums.held_bytes)


# -- Connection -----------------------------------------------------------------------------------


READ_BYTES = 64 << 10  # a buffer of this size is allocated for each read
READ_BYTES_MAX = 512 << 10  # after a full read more is likely waiting; fewer system calls
FINISH_SECONDS_MAX = 1.0  # for the peer to read why it is closed: some round trips

Ts = TypeVarTuple("Ts")


class Connection:
    """`run` serves the stream until it ends.

    Args:
        run_sync: runs blocking disk reads, for answers out of files.
        arrival: back-pressure of requests; None on the requesting side, whose answers were asked
            for, with their sizes.
        end_level: of the log line about an end without a fault.
        warns_of_foreign_protocol: asked when another protocol comes, whether that is worth a
            warning now.

    Attributes:
        reason: why it ended; empty before.
        heard_at: when the last byte arrived.
        on_end: called once, with the reason.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        name: str,
        limits: RpcLimits,
        run_sync: RunSync = trio.to_thread.run_sync,
        arrival: Arrival | None = None,
        end_level: int = logging.INFO,
        warns_of_foreign_protocol: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self.limits, self.reason = name, limits, ""
        self._end_level, self._warns_of_foreign_protocol = end_level, warns_of_foreign_protocol
        self.on_end: Callable[[str], object] = lambda _reason: None
        self._now = trio.lowlevel.current_clock().current_time  # as in `Outbox`
        self.heard_at = self._now()
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
        """Until `end` is called or a task fails; then the stream is closed.

        Args:
            read: handles what `receive` returns, until the peer hangs up.
            look: checks deadlines at the given time, returns when to check next; may `end`.
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
            # Closing never waits, and must happen even where this task is cancelled.
            with trio.CancelScope(shield=True):
                # The peer sees the end even after a fault.
                await trio.aclose_forcefully(self._stream)

    def start_soon(self, function: Callable[[*Ts], Awaitable[object]], *arguments: *Ts) -> None:
        """Run a task that is cancelled with the connection."""
        assert self._tasks is not None, "only while it runs"
        self._tasks.start_soon(function, *arguments)

    async def receive(self) -> list[Frame]:
        """The next frames, at least one; an empty list when the peer has hung up. Only the first
        can be larger than a read.

        Raises:
            RemoteProtocolError, and what the stream raises.
        """
        self.leave_room()
        while True:  # until at least one frame is complete
            read_bytes = self._read_bytes
            if self._arrival is not None:
                # Back-pressure: waits for memory of the server, see `Arrival`. Between two frames
                # it is not known yet whether the next one is large.
                if self._frames.needed_bytes:
                    read_bytes = await self._wait_room(self._arrival)
                elif read_bytes > SMALL_BYTES:
                    read_bytes = SMALL_BYTES
            # Until bytes arrive; the alarm ends a silent connection.
            data = await self._stream.receive_some(read_bytes)
            self.heard_at = self._now()
            if not data:  # end of the stream: the peer hung up
                return []
            size = len(data)  # a full read: more is waiting; a short one: back to the small buffer
            if size == read_bytes:
                self._read_bytes = READ_BYTES_MAX
            elif size < READ_BYTES:
                self._read_bytes = READ_BYTES
            if frames := self._frames.receive(data):  # none while a frame is incomplete: read on
                if self._arrival is not None:
                    self._arrival.on_arrived()
                return frames

    async def _wait_room(self, arrival: Arrival) -> int:
        """How many bytes may be read."""
        # A frame is incomplete: from now on it has a deadline, so the alarm must ring sooner.
        now = trio.current_time()
        self.look_by(now + min(self.limits.ping_seconds, self.limits.stall_seconds_max))
        frames = self._frames
        return await arrival.wait_room(frames.needed_bytes, frames.buffered_bytes, self._read_bytes)

    def bound_by(self, window: RequestWindow) -> None:
        """No large frame begins to be read while this window is full."""
        if self._arrival is not None:
            self._arrival.window = window

    def leave_room(self) -> None:
        """Release the memory of the large frame that was received last: it has been handled."""
        if self._arrival is not None:
            self._arrival.leave()

    @property
    def is_waiting(self) -> bool:
        """For room; meanwhile nothing is read."""
        return self._arrival is not None and self._arrival.is_waiting

    def end(self, reason: str, *, is_fault: bool = False) -> None:
        """End now; queued frames are lost. Does nothing the second time."""
        # Reader, writer and alarm may all fail for one cause; the first reason is the cause.
        if self.is_ended:
            return
        self.reason = reason
        self._ended.set()
        self._scope.cancel()
        level = logging.WARNING if is_fault else self._end_level
        logger.log(level, "connection ended: with=%s reason=%s", self.name, reason)
        self.on_end(reason)

    async def finish(self, reason: str, *, is_fault: bool = True) -> None:
        """End after everything was sent and the peer has had a moment to read it. Closing with
        unread bytes would make the kernel reset the connection, and discard the last answer."""
        # A peer that neither reads nor hangs up must not keep the connection.
        with trio.move_on_after(FINISH_SECONDS_MAX):
            # Until the peer has taken everything, within FINISH_SECONDS_MAX.
            await self.outbox.wait_empty()
            while await self._stream.receive_some(READ_BYTES):
                pass  # discard requests that were under way, until the peer hangs up
        self.end(reason, is_fault=is_fault)

    def look_by(self, deadline: float) -> None:
        """Have deadlines checked then, or earlier."""
        # Moved forward only: an earlier deadline of another request stays.
        if deadline < self._alarm.deadline:
            self._alarm.deadline = deadline

    async def _serve(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run the reader or the writer; its end is the connection's end."""
        try:
            await task()  # until the stream ends, or the connection's scope is cancelled
            self.end("the other side hung up")
        except ForeignProtocol as error:
            await self._turn_away(error)  # for FINISH_SECONDS_MAX at most
        # A peer that breaks the protocol, or a file that cannot be read, is a fault to see.
        except (RemoteProtocolError, StorageError, EOFError) as error:
            self.end(str(error), is_fault=True)
        # Connections break in everyday life: restarts, clients that exit.
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(str(error) or repr(error))

    async def _turn_away(self, error: ForeignProtocol) -> None:
        """Answer HTTP in its own words: else its user searches for the fault elsewhere."""
        self._end_level = logging.DEBUG  # if there is no warning: a health check comes each second
        if error.protocol == QUORUM:  # `raftmq quorum status` tries the addresses of brokers
            self.end("a request of the quorum's protocol came, and voters listen on another port")
            return
        if error.protocol == HTTP:
            self.outbox.put(HTTP_ANSWER)
            self.outbox.flush()
        await self.finish(str(error), is_fault=self._warns_of_foreign_protocol())

    async def _watch(self, look: Callable[[float], float]) -> None:
        while True:
            with trio.CancelScope(deadline=math.inf) as self._alarm:
                self._alarm.deadline = self._next_look(look)
                # Until the earliest deadline, or a `look_by` that moves it forward.
                await trio.sleep_forever()
            # After this process was suspended, let bytes that have arrived count before deadlines.
            await trio.lowlevel.checkpoint()

    def _next_look(self, look: Callable[[float], float]) -> float:
        now = trio.current_time()
        stalls_at = self.outbox.writes_since + self.limits.stall_seconds_max
        # The step of sending has made no progress: the peer reads nothing.
        if now >= stalls_at:
            self.end(f"took nothing for {self.limits.stall_seconds_max:g} s", is_fault=True)
        arrives_by = math.inf if self._arrival is None else self._arrival.deadline(self.heard_at)
        # A frame began and does not end; see `Arrival.deadline`.
        if now >= arrives_by:
            self.end(f"{self._arrival} does not arrive", is_fault=True)
        return min(look(now), stalls_at, arrives_by, now + self.limits.stall_seconds_max)


# -- Sending --------------------------------------------------------------------------------------
# How pieces leave: small ones joined, large ones as they are, files by sendfile where possible.
#
# Owns the steps in which a long payload leaves, so that the alarm sees progress. Never blocks the
# loop on a disk: what is not in the page cache is read by a worker thread.


JOINED_BYTES_MAX = 64 << 10  # copying that much costs less than another system call
STEP_BYTES = 1 << 20  # between two signs of progress: a slow link takes it within the stall limit
SENDFILE_BYTES_MIN = 128 << 10  # below, reading and joining costs less than its own system calls
PROBE_BYTES = 256 << 10  # distance of samples; the kernel reads ahead about as much


class WriteStep(NamedTuple):
    """At most about STEP_BYTES: buffers, followed by a part of a file."""

    buffers: list[Buffer]
    file: FileSlice | None = None


def steps(pieces: Iterable[Piece]) -> Iterator[WriteStep]:
    """All bytes of `pieces`, in order."""
    buffers: list[Buffer] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, FileSlice):  # files go by sendfile, alone in their step
            # The buffers before go with the first part of the file.
            for part in _file_parts(piece):
                yield WriteStep(buffers, part)
                buffers, size = [], 0
            continue
        for buffer in _buffer_parts(piece):
            buffers.append(buffer)
            size += len(buffer)
            if size >= STEP_BYTES:  # a full step; the rest goes into the next one
                yield WriteStep(buffers)
                buffers, size = [], 0
    if buffers:
        yield WriteStep(buffers)


def _buffer_parts(buffer: Buffer) -> Iterable[Buffer]:
    if len(buffer) <= STEP_BYTES:  # the usual case: no memoryview, no copy
        return (buffer,)
    view = memoryview(buffer).cast("B")
    return [view[start : start + STEP_BYTES] for start in range(0, len(view), STEP_BYTES)]


def _file_parts(piece: FileSlice) -> Iterator[FileSlice]:
    file, position, length = piece
    for start in range(0, length, STEP_BYTES):
        yield FileSlice(file, position + start, min(STEP_BYTES, length - start))


class SocketWriter:
    """Sends steps over one stream, of TCP or simulated."""

    def __init__(self, stream: trio.abc.SendStream, run_sync: RunSync) -> None:
        self._stream, self._run_sync = stream, run_sync
        self._tcp = stream if isinstance(stream, TcpStream) else None

    async def send(self, step: WriteStep) -> None:
        """Raises what the stream raises; StorageError or EOFError where a file is too short."""
        buffers, file = step
        if file is None:
            await self._send_buffers(_joined(buffers))
        # A simulated stream has no sendfile; a small or uncached part is read instead.
        elif self._tcp is None or not _is_for_sendfile(file):
            # A cached small part, or one that a thread reads.
            await self._send_buffers(_joined([*buffers, await self._read(file)]))
        else:
            # `more`: the file follows at once, so the kernel may fill the packet with it.
            await self._tcp.send_buffers(_joined(buffers), more=True)
            await self._tcp.send_file(file.file.fileno(), file.position, file.length)

    def send_now(self, entry: OutboxEntry) -> tuple[int, Sequence[Buffer]]:
        """Send without waiting for socket or disk: bytes that left, and what did not of the buffers
        that left in part."""
        buffers = None if self._tcp is None else _buffers_now(entry)
        # A file that is better sent by the writing task.
        if self._tcp is None or buffers is None:
            return 0, ()
        sent = self._tcp.send_now(buffers)
        if sent in (0, entry.stream_bytes):
            return sent, ()
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        drop_front(rest, sent)
        return sent, rest

    async def _send_buffers(self, buffers: list[Buffer]) -> None:
        # Several buffers go in one system call (sendmsg); one needs no vector.
        if self._tcp is not None and len(buffers) > 1:
            await self._tcp.send_buffers(buffers)
            return
        for buffer in buffers:
            await self._stream.send_all(buffer)

    async def _read(self, part: FileSlice) -> bytes:
        file, position, length = part
        try:
            data = file.read_now(position, length)
        # Not in the page cache: a worker thread waits for the disk, not the loop.
        except WouldBlock:
            data = await self._run_sync(part.read)  # a worker thread; ends with the disk
        # Truncated since the answer was made. The announced length cannot be met any more, so
        # the connection has to end.
        if len(data) < length:
            raise EOFError(
                f"{file.path} ends at byte {position + len(data)}, before byte {position + length}"
            )
        return data


def _buffers_now(entry: OutboxEntry) -> list[Buffer] | None:
    """All of it in memory; None where sendfile is better, or the disk would have to be awaited."""
    buffers: list[Buffer] = [entry.head]
    # Large parts of files go from the page cache to the socket without being copied here.
    if entry.stream_bytes - entry.memory_bytes >= SENDFILE_BYTES_MIN:
        return None
    for piece in entry.payload:
        if not isinstance(piece, FileSlice):
            buffers.append(piece)
            continue
        try:
            data = piece.file.read_now(piece.position, piece.length)
        # The writing task will have a thread read it.
        except WouldBlock:
            return None
        # Truncated: the writing task finds it again and ends the connection with the error.
        if len(data) < piece.length:
            return None
        buffers.append(data)
    return buffers  # not joined: they leave in one system call, as many as there may be in one


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers; buffers of JOINED_BYTES_MAX and more are not copied."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < JOINED_BYTES_MAX:  # small: copied into a common buffer
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
    """Large enough for a system call of its own, and in the page cache by a few samples."""
    if part.length < SENDFILE_BYTES_MIN:
        return False
    last = part.position + part.length - 1
    try:
        for position in (*range(part.position, last, PROBE_BYTES), last):
            part.file.read_now(position, 1)
    # sendfile would block the event loop on the disk.
    except WouldBlock:
        return False
    return True
