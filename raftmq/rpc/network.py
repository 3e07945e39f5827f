"""TCP on trio: every connection of a broker is dialled or accepted here, nowhere else.

Decides nothing and knows no protocol; `sockets.py` holds what is the same without trio. The
simulated twin in `tests/simulation/network.py` passes the same conformance suite
(tests/unit/rpc/test_network.py) and adds what a kernel does not do on demand: links that stall, one
end that learns of a break long before the other.

Promises: a stream delivers bytes in order and at most once, in pieces of any size; a peer that has
gone silent breaks the stream after SILENCE_SECONDS_MAX (trio.BrokenResourceError).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from errno import EBADF, EMFILE, ENFILE, ENOBUFS, ENOMEM
from math import inf
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import trio

from raftmq.model import Address
from raftmq.rpc.protocol import format_address
from raftmq.rpc.sockets import CONNECT_SECONDS_MAX, set_options, translated, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.rpc")


# -- Accepting ------------------------------------------------------------------------------------
# Accepting connections, also when the process has run out of file descriptors.
#
# Owns the loop of one listener. Where the system refuses a descriptor it waits and logs one line a
# minute; a spare descriptor, kept open for this case, lets it accept and close the first connection
# of the backlog, whose client would otherwise wait for an answer that cannot come.


# Shortages that pass: of descriptors, in the process or the system, and of kernel memory.
LACKING = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
PAUSE_SECONDS = 0.5  # long enough not to spin on a shortage, short for a client that dials
SAID_SECONDS = 60.0  # between two log lines about the same, or a shortage would fill the disk


class LogThrottle:
    """At most one log line in SAID_SECONDS about what may happen a thousand times a second."""

    def __init__(self) -> None:
        self._next_at = -inf

    def is_due(self) -> bool:
        now = trio.current_time()
        if now < self._next_at:
            return False
        self._next_at = now + SAID_SECONDS
        return True


class Acceptor:
    """`run` takes connections until it is cancelled; what `handler` raises ends it."""

    def __init__(
        self,
        listener: trio.abc.Listener[trio.SocketStream],
        handler: Callable[[trio.SocketStream], Awaitable[object]],
        *,
        name: str,
    ) -> None:
        self._listener, self._handler, self._name = listener, handler, name
        self._spare: int | None = None  # descriptor of /dev/null
        self._refused = 0
        self._of_refused = LogThrottle()

    async def run(self) -> NoReturn:
        self._keep_spare()
        try:
            async with trio.open_nursery() as nursery, self._listener:
                while True:
                    # A task per connection; the loop goes on accepting.
                    nursery.start_soon(self._handle, await self._next())
        finally:
            self._give_spare()

    async def _handle(self, stream: trio.SocketStream) -> None:
        try:
            await self._handler(stream)  # as long as the connection lives
        # The handler may return early or fail; a connection must not outlive it.
        finally:
            await trio.aclose_forcefully(stream)

    async def _next(self) -> trio.SocketStream:
        while True:
            try:
                return await self._listener.accept()  # until a client connects
            except OSError as error:
                # Any other error says that the listener itself is unusable.
                if error.errno not in LACKING:
                    raise
                # Or its client would wait for a listener that cannot answer.
                await self._refuse_one()
                self._say(os.strerror(error.errno))
            # Gives open connections time to close; a loop without it would spin on the error.
            await trio.sleep(PAUSE_SECONDS)
            self._keep_spare()

    async def _refuse_one(self) -> None:
        """Close the first connection of the backlog, with the spare descriptor freed for it."""
        self._give_spare()
        # Another thread may have taken the descriptor meanwhile; then this one is tried later.
        with trio.move_on_after(PAUSE_SECONDS), suppress(OSError):
            # The client sees the connection close.
            await trio.aclose_forcefully(await self._listener.accept())
            self._refused += 1
        self._keep_spare()

    def _say(self, reason: str) -> None:
        if self._of_refused.is_due():  # with the count so far
            logger.warning(
                "connections are not accepted: listener=%s reason=%s refused=%d:"
                " allow the process more descriptors",
                self._name,
                reason,
                self._refused,
            )

    def _keep_spare(self) -> None:
        if self._spare is None:  # at the start, or after it was given away
            # During a shortage there may be none to get; the next round tries again.
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


# -- Tcp stream -----------------------------------------------------------------------------------
# A stream over TCP that can also send several buffers at once, and parts of files.
#
# Owns the system calls that trio's stream does not offer. One task may send at a time, as with any
# stream. Bytes sent from a file must be in the page cache: `sendfile` blocks on a disk read, and
# with it the whole event loop.


RECEIVE_BYTES = 64 << 10  # where the caller names no size
BUFFERS_MAX = 1024  # IOV_MAX of Linux: more buffers in one writev or sendmsg are an error
FILE_BYTES_MAX = 1 << 20  # of one sendfile, which holds up the loop: then other tasks run
# The kernel wakes the sender when fewer unsent bytes are left. trio's 16 KiB would do so for every
# few packets of a large answer.
UNSENT_BYTES_LOW = 256 << 10


class TcpStream(trio.abc.HalfCloseableStream):
    """Takes over `stream`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        # The number of the socket, which costs three calls to ask for; -1 once it is closed here,
        # as the number may be another's then.
        self._descriptor = self.socket.fileno()
        with suppress(OSError):  # the option only saves time; a dead socket fails at its next use
            self.socket.setsockopt(
                trio.socket.IPPROTO_TCP, trio.socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_LOW
            )

    @property
    def peer_name(self) -> str:
        """Address of the other end, for people; empty where the connection has gone already."""
        with suppress(OSError):
            return str(Address(*self.socket.getpeername()[:2]))
        return ""

    async def send_all(self, data: Buffer) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for data before it reads: after a caller took all that had arrived, a read at
        once would find nothing and cost a system call.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes={max_bytes}: at least 1")
        if self._descriptor < 0:
            raise trio.ClosedResourceError("this end of the connection was closed")
        while True:
            # Ends when data, the end of the stream or an error has arrived, or this end is closed.
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                return os.read(self._descriptor, max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                pass  # spurious readiness: the kernel dropped a segment with a bad checksum
            except OSError as error:  # reset or timed out, in trio's words
                raise _translation(error) from error

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self._descriptor = -1
        await self._stream.aclose()

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """As many bytes of `buffers` as leave without waiting, which may be none.

        Only while no task is sending. Hides errors: the next `send_all` raises them.
        """
        try:
            return os.writev(self._descriptor, buffers[:BUFFERS_MAX])
        except OSError:  # full, or broken: the next awaited send finds out
            return 0

    async def send_buffers(self, buffers: Sequence[Buffer], *, more: bool = False) -> None:
        """All of `buffers`, without joining them first.

        Args:
            more: another send follows at once; the kernel may hold back a packet that is not full.
        """
        flags = trio.socket.MSG_MORE if more else 0
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        with _translated():
            while rest:
                # Waits while the socket buffer is full; the peer's silence ends it with an error.
                sent = await self.socket.sendmsg(rest[:BUFFERS_MAX], (), flags)
                drop_front(rest, sent)

    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        """`length` bytes of an open file; they never pass through this process.

        Raises:
            EOFError: the file is shorter; what there was has been sent.
        """
        end = position + length
        with _translated():
            while position < end:
                sent = await self._send_some(
                    descriptor, position, min(end - position, FILE_BYTES_MAX)
                )
                if not sent:  # truncated under its reader; the announced length cannot be met
                    raise EOFError(f"the file ends at byte {position}, before byte {end}")
                position += sent

    async def _send_some(self, descriptor: int, position: int, length: int) -> int:
        # One checkpoint per call: a long file must not keep the loop from other tasks.
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return os.sendfile(self._descriptor, descriptor, position, length)
            except BlockingIOError:  # the socket buffer is full
                # Until the peer has taken some; its silence breaks the socket (TCP_USER_TIMEOUT).
                await trio.lowlevel.wait_writable(self._descriptor)


def drop_front(buffers: list[memoryview], length: int) -> None:
    """Take `length` bytes away from the front."""
    done = 0
    # Buffers that were sent completely.
    while done < len(buffers) and length >= buffers[done].nbytes:
        length -= buffers[done].nbytes
        done += 1
    del buffers[:done]
    if length:
        # The first buffer left in part.
        buffers[0] = buffers[0].cast("B")[length:]


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of a socket as trio's streams raise them."""
    try:
        yield
    except OSError as error:
        raise _translation(error) from error


def _translation(error: OSError) -> Exception:
    # Closed on this side while the task used it; not a fault of the peer.
    if error.errno == EBADF:
        return trio.ClosedResourceError("this end of the connection was closed")
    return trio.BrokenResourceError(f"the connection broke: {error}")


# -- Network --------------------------------------------------------------------------------------


Handler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[object]]


class Network(Protocol):
    """What a node needs of a network."""

    async def dial(self, address: Address) -> trio.abc.Stream:
        """A new connection.

        Raises:
            Unreachable: `was_refused` if every address of the host refused the connection; else
                the host is unknown, or nothing answered in time.
        """

    async def serve(
        self,
        handler: Handler,
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `handler(stream)` for each connection, until cancelled.

        The stream is closed when the handler returns; what the handler raises ends `serve`.
        Started with the address that is listened on: port 0 becomes a free one. Raises
        Unreachable when the address cannot be listened on.
        """


class TcpNetwork:
    """The Network of this machine."""

    def __init__(self, *, connect_seconds_max: float = CONNECT_SECONDS_MAX) -> None:
        self._connect_seconds_max = connect_seconds_max

    async def dial(self, address: Address) -> TcpStream:
        with translated("connect to", address):
            # The kernel alone would go on for minutes where a firewall drops the packets.
            with trio.move_on_after(self._connect_seconds_max):
                # Tries all addresses of the host in turn.
                stream = await trio.open_tcp_stream(address.host, address.port)
                set_options(stream.socket)
                return TcpStream(stream)
            raise unreachable("connect to", address, "no answer in time")

    async def open_listeners(self, address: Address) -> list[trio.SocketListener]:
        """One listener for each IP address that the host has."""
        with translated("listen on", address):
            # Resolves the host in a thread.
            listeners = await trio.open_tcp_listeners(address.port, host=address.host)
            for listener in listeners:
                set_options(listener.socket)  # Linux lets accepted sockets inherit them
            return listeners

    async def serve(
        self,
        handler: Callable[[TcpStream], Awaitable[object]],
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        listeners = await self.open_listeners(address)
        port = listeners[0].socket.getsockname()[1]
        task_status.started(Address(address.host, port))

        async def handle(stream: trio.SocketStream) -> None:
            await handler(TcpStream(stream))

        async with trio.open_nursery() as nursery:
            for listener in listeners:
                name = format_address(Address(address.host, port))
                nursery.start_soon(Acceptor(listener, handle, name=name).run)
        raise AssertionError("acceptors never return")
