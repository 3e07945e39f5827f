"""Framed connection between quorum nodes: send queue, read-ahead, KeepAlives, Hello handshake.

Owns reading and writing one stream, its limits, and the detection of dead peers: KeepAlives are
sent when nothing else is, and a peer that is silent, or reads nothing, is dead. Also owns the
handshake, and the interface of the network (`QuorumNetwork`). Knows nothing of what the messages
after the handshake mean.

Invariant: no frame is skipped. A frame that cannot be sent or read ends the connection, with one
log line.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from raftmq.errors import ForeignProtocol, RemoteProtocolError
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


READ_BYTES = 256 << 10  # of one read: a few system calls for the largest message
WRITE_BYTES = 1 << 20  # frames are joined up to this size into one send; larger copies cost more
FINISH_SECONDS_MAX = 1.0  # for the last frames to be sent and read by the peer
KEEP_ALIVE = encode_frame(KeepAlive())


class StreamLimits(NamedTuple):
    # Queued frames. Well above the bytes in flight that replication allows (8 MiB): a peer that
    # lets more queue up does not read, and the connection is closed.
    outbox_bytes_max: int = 64 << 20
    outbox_bytes_low: int = 1 << 20  # `send` waits while more is queued (back-pressure)
    read_ahead_bytes: int = 1 << 20  # received without a reader, to notice the end of the stream
    keep_alive_seconds: float = 1.0  # idle time after which a KeepAlive is sent
    silence_seconds_max: float = 5.0  # five KeepAlives are missing: peer or network is dead
    # For one send of at most 1 MiB. Longer than the silence: a peer whose disk is busy stops
    # reading for a while, and still sends KeepAlives.
    stall_seconds_max: float = 30.0


class Received(NamedTuple):
    messages: list[AnyMessage]
    size_bytes: int


class QuorumConnection:
    """Serves its stream while `run` runs; see `open_connection`.

    Attributes:
        end_level: of the log line about its end, unless that is a fault.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        name: str = "unknown",
        limits: StreamLimits | None = None,
        warns_of_foreign_protocol: Callable[[str], bool] = lambda _protocol: True,
    ) -> None:
        self.name, self.end_level = name, logging.INFO
        self._warns_of_foreign_protocol = warns_of_foreign_protocol
        self._stream, self._limits = stream, limits or StreamLimits()
        self._frames = MessageReader()
        self._received: deque[Received] = deque()
        self._received_bytes = 0
        self._messages: deque[AnyMessage] = deque()  # from `_received`, for `receive` one by one
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0  # of the outbox and of the send in progress
        self._arrived, self._taken = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._queued, self._sent = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._heard_at = self._wrote_at = trio.current_time()
        self._writes_since = math.inf  # begin of the send in progress
        self._closed = trio.Event()
        self._tasks = trio.CancelScope()

    def expect(self, *, frame_bytes_max: int) -> None:
        """Accept frames up to this size from now on."""
        self._frames.frame_bytes_max = frame_bytes_max

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: nothing is sent; received messages may still be queued."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        await self._closed.wait()  # set by `_end`, for any reason

    async def run(self) -> None:
        """Read and write until either side ends the connection; then close the stream."""
        try:
            with self._tasks:
                async with trio.open_nursery() as nursery:  # until `_end` cancels the three tasks
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
        finally:
            self._end("cancelled")
            with trio.CancelScope(shield=True):
                # Not a graceful close, which could wait for a peer that does not read.
                await trio.aclose_forcefully(self._stream)

    def close(self, reason: str, *, is_fault: bool = False) -> None:
        """End the connection: nothing is sent any more, and received messages are dropped."""
        self._received.clear()
        self._messages.clear()
        self._end(reason, is_fault=is_fault)

    async def finish(self, reason: str) -> None:
        """Close when all queued frames are sent, after a moment for the peer to read them.

        Closing at once could reset the connection, and the peer would lose the last frames.
        """
        with trio.move_on_after(FINISH_SECONDS_MAX):
            # First until everything is sent, then until the peer closes.
            while self._outbox_bytes and not self.is_closed:
                await self._sent.park()  # until a send is done or the connection ends
            await self.wait_closed()
        self.close(reason)

    async def receive(self) -> AnyMessage | None:
        """The next message, never a KeepAlive; None when the connection has ended."""
        if not self._messages:
            received = await self.receive_many()  # as long as no message has come
            if received is None:
                return None
            self._messages.extend(received.messages)
        return self._messages.popleft()

    async def receive_many(self) -> Received | None:
        """All messages of one read, at least one; None when the connection has ended."""
        if self._messages:  # the rest of what `receive` has taken before
            rest, self._messages = self._messages, deque()
            return Received(list(rest), 0)
        while not self._received:
            if self.is_closed:
                return None
            await self._arrived.park()  # until messages come or the connection ends
        received = self._received.popleft()
        self._received_bytes -= received.size_bytes
        self._taken.unpark_all()
        return received

    def send_soon(self, message: AnyMessage | bytes) -> bool:
        """Queue a message, or whole frames; False if the connection has ended, or just ends."""
        if self.is_closed:
            return False
        frame = message if isinstance(message, bytes) else encode_frame(message)
        self._outbox_bytes += len(frame)
        # Back-pressure has failed: the peer does not read at all.
        if self._outbox_bytes > self._limits.outbox_bytes_max:
            size = f"{self._outbox_bytes} bytes wait, at most {self._limits.outbox_bytes_max}"
            self.close(f"the other side reads too slowly: {size}", is_fault=True)
            return False
        self._outbox.append(frame)
        self._queued.unpark_all()
        return True

    async def send(self, message: AnyMessage | bytes) -> bool:
        """Like `send_soon`, after waiting for the send queue to drain."""
        await trio.lowlevel.checkpoint()  # also when it need not wait
        while self._outbox_bytes > self._limits.outbox_bytes_low and not self.is_closed:
            await self._sent.park()  # until the queue is short or the connection ends
        return self.send_soon(message)

    def _end(self, reason: str, *, is_fault: bool = False) -> None:
        if self.is_closed:  # the first reason counts
            return
        self._closed.set()
        self._tasks.cancel()
        self._outbox.clear()
        for waiting in (self._arrived, self._taken, self._queued, self._sent):
            waiting.unpark_all()
        level = logging.WARNING if is_fault else self.end_level
        logger.log(level, "connection ended: with=%s reason=%s", self.name, reason)

    async def _read(self) -> None:
        try:
            while data := await self._read_some():
                self._keep(data)
            self._end("the other side hung up")
        except ForeignProtocol as error:
            self.end_level = logging.DEBUG
            self._end(str(error), is_fault=self._warns_of_foreign_protocol(str(error)))
        except RemoteProtocolError as error:  # damaged or too large: later frames cannot be found
            self._end(str(error), is_fault=True)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Reset by the peer, or closed by `run`.
            self._end(f"reading failed: {error!r}")

    async def _read_some(self) -> bytes | bytearray:
        # Back-pressure: the kernel's buffers fill up, and the peer's sends wait.
        while self._received_bytes >= self._limits.read_ahead_bytes:
            self._heard_at = math.inf  # this side does not read: no silence of the peer
            await self._taken.park()
        self._heard_at = trio.current_time()
        # Until data come; `_watch` ends the connection if none do.
        return await self._stream.receive_some(READ_BYTES)

    def _keep(self, data: bytes | bytearray) -> None:
        if self.is_closed:
            return  # closed after these bytes were read, and before this task ran
        before = self._frames.buffered_bytes
        arrived = self._frames.receive(data)
        messages: list[AnyMessage] = [m for m in arrived if not isinstance(m, KeepAlive)]
        if messages:  # KeepAlives only show that the peer is alive
            size_bytes = before + len(data) - self._frames.buffered_bytes
            self._received.append(Received(messages, size_bytes))
            self._received_bytes += size_bytes
            self._arrived.unpark_all()

    async def _write(self) -> None:
        try:
            while True:
                while not self._outbox:
                    await self._queued.park()  # until a frame is queued or the task is cancelled
                piece = self._next_piece()
                self._writes_since = trio.current_time()
                # Until the kernel has taken it; `_watch` bounds the time.
                await self._stream.send_all(piece)
                self._wrote_at, self._writes_since = trio.current_time(), math.inf
                self._outbox_bytes -= len(piece)
                self._sent.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(f"writing failed: {error!r}")

    def _next_piece(self) -> bytes:
        """The queued frames, whole, up to WRITE_BYTES."""
        frames = [self._outbox.popleft()]
        size = len(frames[0])
        # Saves system calls: heartbeats and entries are small.
        while self._outbox and size + len(self._outbox[0]) <= WRITE_BYTES:
            frames.append(self._outbox.popleft())
            size += len(frames[-1])
        return b"".join(frames)

    async def _watch(self) -> None:
        """All timeouts in one task: cheaper than a deadline for each message."""
        limits = self._limits
        while True:
            now = trio.current_time()
            if now >= self._heard_at + limits.silence_seconds_max:
                self._end(f"silent for {limits.silence_seconds_max:g} s", is_fault=True)
            if now >= self._writes_since + limits.stall_seconds_max:
                self._end(f"took nothing for {limits.stall_seconds_max:g} s", is_fault=True)
            # While something is queued, that shows it.
            if now >= self._wrote_at + limits.keep_alive_seconds and not self._outbox_bytes:
                self.send_soon(KEEP_ALIVE)
            await trio.sleep_until(self._next_timeout(now))  # until the first timeout could pass

    def _next_timeout(self, now: float) -> float:
        """When the first timeout can pass; traffic in between only postpones it."""
        limits = self._limits
        return min(
            min(self._heard_at, now) + limits.silence_seconds_max,
            min(self._writes_since, now) + limits.stall_seconds_max,
            (now if self._outbox_bytes else self._wrote_at) + limits.keep_alive_seconds,
        )


@asynccontextmanager
async def open_connection(
    stream: trio.abc.Stream,
    *,
    name: str = "unknown",
    limits: StreamLimits | None = None,
    warns_of_foreign_protocol: Callable[[str], bool] = lambda _protocol: True,
) -> AsyncIterator[QuorumConnection]:
    """A connection over `stream`, which is closed at the end; queued frames may be lost.

    The body is not cancelled when the connection ends: its calls return None or False.

    Args:
        warns_of_foreign_protocol: asked when another protocol comes, with the words of the log
            line, whether that is worth a warning.
    """
    connection = QuorumConnection(
        stream, name=name, limits=limits, warns_of_foreign_protocol=warns_of_foreign_protocol
    )
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            yield connection
        except Exception as error:  # raised below: the nursery would wrap it in a group
            failure = error
        finally:
            connection.close("done")
    if failure is not None:  # outside of the nursery, so that it comes alone
        raise failure


# -- Handshake ------------------------------------------------------------------------------------
# The first frames of a connection: the peers identify themselves, and accept or refuse each other.
#
# Owns the order of these frames and the stateless rules for refusing. Both sides send Hello at
# once. Two voters then accept each other with Welcome, so that neither side uses a connection that
# the other is about to refuse; guests need no Welcome.
#
#     A  Hello ------->  judges it       B  Hello ------->  judges it
#        Welcome or Refusal ------->        Welcome or Refusal ------->


# One or two round trips. A peer that takes longer is paused or its machine is overloaded, and a
# stranger must not occupy a connection for long.
HANDSHAKE_SECONDS_MAX = 3.0


class Caller(NamedTuple):
    """What is known about the peer before its Hello."""

    dialled: int | None = None  # the voter that we dialled; None: the peer dialled us
    certificate: int | None = None  # the node id in the certificate
    needs_certificate: bool = False


class Met(NamedTuple):
    """Result of a handshake; if `hello` and `refusal` are None it failed, and is closed."""

    hello: NodeHello | None = None  # of a peer that we accept
    refusal: Refusal | None = None  # the peer's answer to our Hello
    rejected: tuple[NodeHello, Refusal] | None = None  # a peer that we do not accept, and why
    is_silent: bool = False  # timed out


async def shake_hands(
    connection: QuorumConnection, *, own: NodeHello, judge: Callable[[NodeHello], Refusal | None]
) -> Met:
    """Send `own` and judge the peer's Hello; the connection stays open only if both accept.

    Guests use it, too.
    """
    with trio.move_on_after(HANDSHAKE_SECONDS_MAX):
        return await exchange(connection, own, judge)  # one Hello and one Welcome of the peer
    connection.close(f"no handshake within {HANDSHAKE_SECONDS_MAX:g} s", is_fault=True)
    return Met(is_silent=True)


async def exchange(
    connection: QuorumConnection, own: NodeHello, judge: Callable[[NodeHello], Refusal | None]
) -> Met:
    connection.send_soon(own)
    hello = await connection.receive()  # bounded by `shake_hands`, as all waits here
    if isinstance(hello, Refusal):  # it refused before it said who it is
        return refused(connection, Met(None, hello))
    if not isinstance(hello, NodeHello):  # no raftmq, or the connection has ended
        return out_of_order(connection, hello)
    refusal = judge(hello)
    if refusal is not None:
        await refuse(connection, refusal)
        return Met(rejected=(hello, refusal))
    if hello.role is not Role.VOTER or own.role is not Role.VOTER:  # guests need no Welcome
        return Met(hello)
    connection.send_soon(Welcome())
    answer = await connection.receive()
    if isinstance(answer, Refusal):  # it accepted the connection, but not our Hello
        return refused(connection, Met(hello, answer))
    return Met(hello) if isinstance(answer, Welcome) else out_of_order(connection, answer)


def refused(connection: QuorumConnection, met: Met) -> Met:
    assert met.refusal is not None
    connection.end_level = logging.DEBUG  # `Refusals` logs each refusal once, not every attempt
    connection.close(f"refused by them: {met.refusal.reason!r}")
    return met


def out_of_order(connection: QuorumConnection, message: object) -> Met:
    """`message` is None if the connection has ended."""
    connection.close(f"{type(message).__name__} instead of a handshake", is_fault=True)
    return Met()


async def refuse(connection: QuorumConnection, refusal: Refusal) -> None:
    """Send the reason, and close."""
    connection.end_level = logging.DEBUG  # as in `refused`
    connection.send_soon(refusal)
    # Waits a moment: the peer must be able to read the reason.
    await connection.finish(f"refused by us: {refusal.reason!r}")


def judge_hello(
    hello: NodeHello, *, own: NodeHello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """Why this node refuses the peer; None if it accepts it.

    1. Another protocol version. Not final: an upgrade may be in progress.
    2. Another cluster. A visitor need not know the name of the cluster.
    3. A guest has no id to check, but we dial voters only.
    4. A voter: see `judge_voter`.
    """
    if hello.protocol_version != own.protocol_version:
        versions = f"version {hello.protocol_version}, here {own.protocol_version}"
        return Refusal(f"the quorum speaks {versions}: upgrade the older node")
    if hello.cluster_id != own.cluster_id and (hello.cluster_id or hello.role is not Role.VISITOR):
        clusters = f"cluster {hello.cluster_id!r}, this is {own.cluster_id!r}"
        return final(
            f"node {hello.node_id} belongs to {clusters}: correct node.cluster_id of the one or the"
            " other; if it is right, the addresses or the directories are those of two clusters"
        )
    if hello.role is Role.VOTER:
        return judge_voter(hello, own=own, voters=voters, caller=caller)
    if caller.dialled is not None:
        return wrong_address(caller.dialled, "a guest", own.node_id)
    return None


def judge_voter(
    hello: NodeHello, *, own: NodeHello, voters: Container[int], caller: Caller
) -> Refusal | None:
    """The rules for voters.

    1. This node's own id: two nodes have the same, or an address leads back to this node.
    2. An id that is none of the voters'.
    3. An id that the certificate does not confirm.
    4. Not the voter that was dialled.
    5. The smaller id dials: if both did, each new connection would replace the other's for ever.
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
            f" it does not reach the address that its settings have of voter {them}: quorum.voters"
            " is to be the same on all nodes, with addresses that all of them reach"
        )
    return None


def wrong_address(dialled: int | None, who: str, us: int) -> Refusal:
    """The peer cannot correct this: the text must name the voter whose settings are wrong."""
    return Refusal(
        f"voter {us} dialled voter {dialled} and {who} answered: correct the addresses in the"
        f" settings of voter {us}"
    )


def final(reason: str) -> Refusal:
    return Refusal(reason[:REASON_LENGTH_MAX], is_final=True)


# -- Network protocol -----------------------------------------------------------------------------
# The interface of the network: outgoing and incoming streams.
#
# Owns the protocol only; sockets and their simulation implement it. Only the network knows the type
# of an address: the quorum passes it on.


AddressT = TypeVar("AddressT")
AddressT_contra = TypeVar("AddressT_contra", contravariant=True)


class QuorumNetwork(Protocol[AddressT_contra]):
    async def dial(self, address: AddressT_contra, /) -> trio.abc.Stream:
        """A stream to the node that listens at `address`.

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
        """Listen until cancelled, with a task for each stream; `task_status` when it listens."""
