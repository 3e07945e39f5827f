"""One open stream, as a queue of messages in either direction.

Owns the reading and the writing of the stream, its limits, and the signs of life: KeepAlives go
out when nothing else does, and a side that is silent, or takes nothing, is dead. Knows nothing of
who is at the other end or what the messages mean.

No frame is ever left out: whatever cannot be sent or read ends the connection, with one log line.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.net.messages import (
    REASON_LENGTH_MAX,
    KeepAlive,
    MessageReader,
    NodeHello,
    Refusal,
    Role,
    Welcome,
    encode_frame,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Container

    from raftmq.metadata.raft.net.messages import AnyMessage

    StreamHandler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]


logger = logging.getLogger("raftmq.metadata")


READ_BYTES = 256 << 10
WRITE_BYTES = 1 << 20  # joined into one send, unless a single frame is larger
FINISH_SECONDS_MAX = 1.0
KEEP_ALIVE = encode_frame(KeepAlive())


class StreamLimits(NamedTuple):
    outbox_bytes_max: int = 64 << 20  # beyond that nobody catches up: the connection is closed
    outbox_bytes_low: int = 1 << 20  # `send` waits while there is more
    read_ahead_bytes: int = 1 << 20  # read before anybody asked, to notice the end in time
    keep_alive_seconds: float = 1.0
    silence_seconds_max: float = 5.0
    stall_seconds_max: float = 30.0  # for one send; a busy disk on the other side is no reason


class Received(NamedTuple):
    messages: list[AnyMessage]
    size_bytes: int


class QuorumConnection:
    """Serves its stream while `run` runs; see `open_connection`."""

    def __init__(
        self, stream: trio.abc.Stream, *, name: str = "unknown", limits: StreamLimits | None = None
    ) -> None:
        self.name = name
        self._stream, self._limits = stream, limits or StreamLimits()
        self._frames = MessageReader()
        self._received: deque[Received] = deque()
        self._received_bytes = 0
        self._messages: deque[AnyMessage] = deque()  # taken from `_received`, handed out singly
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0  # of the outbox and of what is being sent
        self._arrived, self._taken = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._queued, self._sent = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._heard_at = self._wrote_at = trio.current_time()
        self._writes_since = math.inf  # what is being sent
        self._closed = trio.Event()
        self._tasks = trio.CancelScope()

    def expect(self, *, frame_bytes_max: int) -> None:
        """Frames no larger than that, from now on."""
        self._frames.frame_bytes_max = frame_bytes_max

    @property
    def is_closed(self) -> bool:
        """Nothing more is sent; what had been received may still be there."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def run(self) -> None:
        """Read and write until somebody ends the connection; then close the stream."""
        try:
            with self._tasks:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
        finally:
            self._end("cancelled")
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def close(self, reason: str, *, is_fault: bool = False) -> None:
        """From now on nothing is sent, and nothing is received, not even what had arrived."""
        self._received.clear()
        self._messages.clear()
        self._end(reason, is_fault=is_fault)

    async def finish(self, reason: str) -> None:
        """Close once everything queued is out, and give the other side a moment to read it.

        Hanging up at once could reset the connection, and the last words with it.
        """
        with trio.move_on_after(FINISH_SECONDS_MAX):
            while self._outbox_bytes and not self.is_closed:
                await self._sent.park()
            await self.wait_closed()
        self.close(reason)

    async def receive(self) -> AnyMessage | None:
        """The next message, never a KeepAlive; None when the connection has ended."""
        if not self._messages:
            received = await self.receive_many()
            if received is None:
                return None
            self._messages.extend(received.messages)
        return self._messages.popleft()

    async def receive_many(self) -> Received | None:
        """What has arrived, at least one message; None when the connection has ended."""
        if self._messages:
            rest, self._messages = self._messages, deque()
            return Received(list(rest), 0)
        while not self._received:
            if self.is_closed:
                return None
            await self._arrived.park()
        received = self._received.popleft()
        self._received_bytes -= received.size_bytes
        self._taken.unpark_all()
        return received

    def send_soon(self, message: AnyMessage | bytes) -> bool:
        """Queue a message, or whole frames; False if the connection has ended, or ends by this."""
        if self.is_closed:
            return False
        frame = message if isinstance(message, bytes) else encode_frame(message)
        self._outbox_bytes += len(frame)
        if self._outbox_bytes > self._limits.outbox_bytes_max:
            size = f"{self._outbox_bytes} bytes wait, at most {self._limits.outbox_bytes_max}"
            self.close(f"the other side reads too slowly: {size}", is_fault=True)
            return False
        self._outbox.append(frame)
        self._queued.unpark_all()
        return True

    async def send(self, message: AnyMessage | bytes) -> bool:
        """Like `send_soon`, after waiting for the outbox to drain."""
        await trio.lowlevel.checkpoint()
        while self._outbox_bytes > self._limits.outbox_bytes_low and not self.is_closed:
            await self._sent.park()
        return self.send_soon(message)

    def _end(self, reason: str, *, is_fault: bool = False) -> None:
        if self.is_closed:
            return
        self._closed.set()
        self._tasks.cancel()
        self._outbox.clear()
        for waiting in (self._arrived, self._taken, self._queued, self._sent):
            waiting.unpark_all()
        level = logging.WARNING if is_fault else logging.INFO
        logger.log(level, "connection ended: with=%s reason=%s", self.name, reason)

    async def _read(self) -> None:
        try:
            while data := await self._read_some():
                self._keep(data)
            self._end("the other side hung up")
        except RemoteProtocolError as error:
            self._end(str(error), is_fault=True)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(f"reading failed: {error!r}")

    async def _read_some(self) -> bytes | bytearray:
        while self._received_bytes >= self._limits.read_ahead_bytes:
            self._heard_at = math.inf  # we do not listen
            await self._taken.park()
        self._heard_at = trio.current_time()
        return await self._stream.receive_some(READ_BYTES)

    def _keep(self, data: bytes | bytearray) -> None:
        if self.is_closed:
            return  # closed after these bytes were read, and before this task ran
        before = self._frames.buffered_bytes
        arrived = self._frames.receive(data)
        messages: list[AnyMessage] = [m for m in arrived if not isinstance(m, KeepAlive)]
        if messages:
            size_bytes = before + len(data) - self._frames.buffered_bytes
            self._received.append(Received(messages, size_bytes))
            self._received_bytes += size_bytes
            self._arrived.unpark_all()

    async def _write(self) -> None:
        try:
            while True:
                while not self._outbox:
                    await self._queued.park()
                piece = self._next_piece()
                self._writes_since = trio.current_time()
                await self._stream.send_all(piece)
                self._wrote_at, self._writes_since = trio.current_time(), math.inf
                self._outbox_bytes -= len(piece)
                self._sent.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(f"writing failed: {error!r}")

    def _next_piece(self) -> bytes:
        """Whole frames, as many as were queued."""
        frames = [self._outbox.popleft()]
        size = len(frames[0])
        while self._outbox and size + len(self._outbox[0]) <= WRITE_BYTES:
            frames.append(self._outbox.popleft())
            size += len(frames[-1])
        return b"".join(frames)

    async def _watch(self) -> None:
        """The clocks of both directions in one task: messages need no deadlines of their own."""
        limits = self._limits
        while True:
            now = trio.current_time()
            if now >= self._heard_at + limits.silence_seconds_max:
                self._end(f"silent for {limits.silence_seconds_max:g} s", is_fault=True)
            if now >= self._writes_since + limits.stall_seconds_max:
                self._end(f"took nothing for {limits.stall_seconds_max:g} s", is_fault=True)
            if now >= self._wrote_at + limits.keep_alive_seconds and not self._outbox_bytes:
                self.send_soon(KEEP_ALIVE)
            await trio.sleep_until(self._next_look(now))

    def _next_look(self, now: float) -> float:
        """When the first of the clocks can run out; whatever moves until then moves it back."""
        limits = self._limits
        return min(
            min(self._heard_at, now) + limits.silence_seconds_max,
            min(self._writes_since, now) + limits.stall_seconds_max,
            (now if self._outbox_bytes else self._wrote_at) + limits.keep_alive_seconds,
        )


@asynccontextmanager
async def open_connection(
    stream: trio.abc.Stream, *, name: str = "unknown", limits: StreamLimits | None = None
) -> AsyncIterator[QuorumConnection]:
    """A connection over `stream`, which is closed on the way out; what is queued may be lost.

    The body is not cancelled when the connection ends: its calls return None or False.
    """
    connection = QuorumConnection(stream, name=name, limits=limits)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            yield connection
        except Exception as error:  # would reach the caller in a group otherwise
            failure = error
        finally:
            connection.close("done")
    if failure is not None:
        raise failure


# -- Handshake ------------------------------------------------------------------------------------
# How a connection begins: who is there, and whether we talk to them.
#
# Owns the order of the first frames and the rules for refusing that need no state. Both sides send
# Hello at once. Two voters then accept each other with Welcome, so that neither side believes in a
# connection that the other is about to refuse; guests need none.
#
#     A  Hello ------->  judges it       B  Hello ------->  judges it
#        Welcome or Refusal ------->        Welcome or Refusal ------->


HANDSHAKE_SECONDS_MAX = 3.0


class Caller(NamedTuple):
    """What is known about the other side before it says anything."""

    dialled: int | None = None  # the voter whom we dialled; None: they came to us
    certificate: int | None = None  # the node id in the certificate
    needs_certificate: bool = False


class Met(NamedTuple):
    """Both of the first are None: it came to nothing, and the connection is closed."""

    hello: NodeHello | None = None  # of somebody whom we accept
    refusal: Refusal | None = None  # what they answered to ours
    rejected: tuple[NodeHello, Refusal] | None = None  # somebody whom we do not accept, and why
    is_silent: bool = False  # nothing was heard in time


async def shake_hands(
    connection: QuorumConnection, *, own: NodeHello, judge: Callable[[NodeHello], Refusal | None]
) -> Met:
    """Introduce `own` and judge the answer; the connection stays open only if all is well.

    Guests introduce themselves with it, too.
    """
    with trio.move_on_after(HANDSHAKE_SECONDS_MAX):
        return await exchange(connection, own, judge)
    connection.close(f"no handshake within {HANDSHAKE_SECONDS_MAX:g} s", is_fault=True)
    return Met(is_silent=True)


async def exchange(
    connection: QuorumConnection, own: NodeHello, judge: Callable[[NodeHello], Refusal | None]
) -> Met:
    connection.send_soon(own)
    hello = await connection.receive()
    if isinstance(hello, Refusal):
        return refused(connection, Met(None, hello))
    if not isinstance(hello, NodeHello):
        return out_of_order(connection, hello)
    refusal = judge(hello)
    if refusal is not None:
        await refuse(connection, refusal)
        return Met(rejected=(hello, refusal))
    if hello.role is not Role.VOTER or own.role is not Role.VOTER:
        return Met(hello)
    connection.send_soon(Welcome())
    answer = await connection.receive()
    if isinstance(answer, Refusal):
        return refused(connection, Met(hello, answer))
    return Met(hello) if isinstance(answer, Welcome) else out_of_order(connection, answer)


def refused(connection: QuorumConnection, met: Met) -> Met:
    assert met.refusal is not None
    connection.close(f"refused by them: {met.refusal.reason!r}")
    return met


def out_of_order(connection: QuorumConnection, message: object) -> Met:
    """`message` is None where the connection has ended by itself."""
    connection.close(f"{type(message).__name__} instead of a handshake", is_fault=True)
    return Met()


async def refuse(connection: QuorumConnection, refusal: Refusal) -> None:
    """Say why, and close."""
    connection.send_soon(refusal)
    await connection.finish(f"refused by us: {refusal.reason!r}")


def judge_hello(
    hello: NodeHello, *, own: NodeHello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """Why nobody talks to them here; None if nothing speaks against it.

    1. Another protocol version. Not final: an upgrade may be under way.
    2. Another cluster. A visitor need not know the name of the cluster.
    3. A guest has no id to check, but is not whom we dialled.
    4. A voter: see `judge_voter`.
    """
    if hello.protocol_version != own.protocol_version:
        versions = f"version {hello.protocol_version}, here {own.protocol_version}"
        return Refusal(f"the quorum speaks {versions}: upgrade the older node")
    if hello.cluster_id != own.cluster_id and (hello.cluster_id or hello.role is not Role.VISITOR):
        clusters = f"cluster {hello.cluster_id!r}, this is {own.cluster_id!r}"
        return final(f"node {hello.node_id} belongs to {clusters}: check addresses and directories")
    if hello.role is Role.VOTER:
        return judge_voter(hello, own=own, voters=voters, caller=caller)
    if caller.dialled is not None:
        return wrong_address(caller.dialled, "a guest", own.node_id)
    return None


def judge_voter(
    hello: NodeHello, *, own: NodeHello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """The rules for voters.

    1. Our own id: two nodes have the same, or an address leads back to us.
    2. An id that is none of the voters'.
    3. An id that the certificate does not confirm.
    4. Not the one who was dialled.
    5. The smaller id dials: two connections at a time would fence each other for ever.
    """
    them, us = hello.node_id, own.node_id
    if them == us:
        if caller.dialled is not None:
            return final(
                f"the address of voter {caller.dialled} leads to a node with the id {us}, as this"
                " one has: every voter needs its own id and its own address"
            )
        return final(f"node id {us} is taken: every voter needs its own")
    if them not in voters:
        return final(f"node {them} is no voter here: check the voters in its settings and in ours")
    if caller.needs_certificate and caller.certificate != them:
        shown = "none" if caller.certificate is None else f"node {caller.certificate}"
        return final(f"node {them} shows a certificate of {shown}: give it its own")
    if caller.dialled not in (None, them):
        return wrong_address(caller.dialled, f"voter {them}", us)
    if caller.dialled is None and them > us:
        return Refusal(
            f"voter {us} dials voter {them}, not the other way round. Where that does not happen,"
            f" the address of voter {them} is wrong in the settings of voter {us}, or is not"
            " reached from there"
        )
    return None


def wrong_address(dialled: int | None, who: str, us: int) -> Refusal:
    """Said to somebody who can do nothing about it: it must name the one who can."""
    return Refusal(
        f"voter {us} dialled voter {dialled} and {who} answered: correct the addresses in the"
        f" settings of voter {us}"
    )


def final(reason: str) -> Refusal:
    return Refusal(reason[:REASON_LENGTH_MAX], is_final=True)


# -- Network protocol -----------------------------------------------------------------------------
# What the quorum needs of a network: streams, out and in.
#
# Owns the protocol only; sockets and their simulation keep it. What an address is, the network
# alone knows: the quorum hands it on.


AddressT = TypeVar("AddressT")
AddressT_contra = TypeVar("AddressT_contra", contravariant=True)


class QuorumNetwork(Protocol[AddressT_contra]):
    async def dial(self, address: AddressT_contra, /) -> trio.abc.Stream:
        """A stream to whoever listens at `address`.

        Raises:
            OSError, RaftmqError: unreachable, for now.
        """

    async def serve(
        self,
        handler: StreamHandler,
        address: AddressT_contra,
        /,
        *,
        task_status: trio.TaskStatus[Any] = ...,
    ) -> object:
        """Listen for ever, a task with `handler` for each stream; tell when it has begun."""
