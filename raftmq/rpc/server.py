"""Serves streams: whoever accepts them hands them in, each with the listener it came from.

Owns the number of connections and their names in the log. One connection harms no other: whatever
is wrong with one ends that one; only a broken invariant ends the server (decision 0003).
"""

from __future__ import annotations

import logging
import math
import reprlib
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from raftmq.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InconsistentClusterId,
    MessageTooLarge,
    RaftmqError,
    RemoteProtocolError,
    UnsupportedVersion,
)
from raftmq.rpc.arrival import Arrival
from raftmq.rpc.connection import Connection
from raftmq.rpc.context import ANONYMOUS, Listener, RequestContext, ServerIdentity
from raftmq.rpc.network import SAID_SECONDS, TcpStream
from raftmq.rpc.protocol import BROKER_CONNECTIONS_MAX, RpcLimits
from raftmq.rpc.reply import NOBODY, PendingReply, Reply, memory_bytes, payload_length
from raftmq.rpc.request_memory import RequestMemory
from raftmq.rpc.window import RequestWindow
from raftmq.wire.apis import CLUSTER_APIS, ONE_WAY, PATIENT, SUPPORTED, ApiKey
from raftmq.wire.bodies import ABSENT, Nothing
from raftmq.wire.envelopes import decode_request, encode_response
from raftmq.wire.frames import LENGTH, PREFIX
from raftmq.wire.messages.hello import ApiVersions, Hello, HelloReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.rpc.connection import RunSync
    from raftmq.wire.bodies import Request
    from raftmq.wire.envelopes import DecodedRequest
    from raftmq.wire.frames import Frame


logger = logging.getLogger("raftmq.rpc")


# -- Service --------------------------------------------------------------------------------------
# What a server does with one request: is it allowed, who handles it, what became of it.
#
# Owns the one place where requests are authorised, and the way from errors to answers. Knows
# nothing of streams. Errors of raftmq are answered as what they are, unexpected ones as
# UNKNOWN_SERVER_ERROR and logged; broken invariants pass (decision 0003).


# None: whoever asked waits for no answer.
HandlerResult: TypeAlias = Reply | PendingReply | Awaitable[Reply | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any, bytes | memoryview], HandlerResult]
Authorize: TypeAlias = Callable[[RequestContext, "Request"], None]

OWN_APIS = frozenset({ApiKey.HELLO, ApiKey.PING})  # answered without a handler
UNEXPECTED = "unexpected error; the log of the broker has more"

_REPR = reprlib.Repr()
_REPR.maxother = 300  # characters of a request in the log


class Service:
    """`authorize` raises the error with which to refuse."""

    def __init__(
        self, identity: ServerIdentity, handlers: Mapping[ApiKey, Handler], *, authorize: Authorize
    ) -> None:
        own = OWN_APIS & handlers.keys()
        assert not own, f"answered by the server itself: {own}"
        self.identity = identity
        self._handlers, self._authorize = dict(handlers), authorize
        self._for_clients = {k: h for k, h in handlers.items() if k not in CLUSTER_APIS}

    def greet(self, hello: Hello, listener: Listener, *, frame_bytes_max: int) -> HelloReply:
        """
        Raises:
            InconsistentClusterId: another cluster was asked for.
            ClusterAuthorizationFailed: a client, on a listener that is for brokers alone.
        """
        cluster_id, node_id, features = self.identity
        if hello.cluster_id not in ("", cluster_id):
            raise InconsistentClusterId(
                f"cluster {hello.cluster_id!r} was asked for, this is {cluster_id!r}: "
                "check the address"
            )
        if listener.clients_at and hello.node_id == ABSENT:
            raise ClusterAuthorizationFailed(
                f"listener {listener.name!r} of broker {node_id} is for other brokers, clients are"
                f" served on {listener.clients_at}"
            )
        handlers = self._handlers if listener.is_for_brokers else self._for_clients
        known = sorted(OWN_APIS | handlers.keys())
        return HelloReply(
            cluster_id=cluster_id,
            node_id=node_id,
            api_versions=tuple(ApiVersions(key, *SUPPORTED[key]) for key in known),
            features=dict(features),
            frame_bytes_max=frame_bytes_max,
            listener=listener.name,
        )

    def call(
        self, context: RequestContext, request: DecodedRequest, payload: bytes | memoryview
    ) -> HandlerResult:
        """The answer, or what it will come from: an awaitable goes to `finish`."""
        try:
            handler = self._handler(request.api_key, context.listener)
            self._authorize(context, request.body)
            return handler(context, request.body, payload)
        except Exception as error:
            return failure(error, context, request.body)

    async def finish(
        self, context: RequestContext, request: DecodedRequest, answer: Awaitable[Reply | None]
    ) -> Reply | None:
        try:
            return await answer
        except Exception as error:
            return failure(error, context, request.body)

    def _handler(self, api_key: ApiKey, listener: Listener) -> Handler:
        known = self._handlers if listener.is_for_brokers else self._for_clients
        handler = known.get(api_key)
        if handler is not None:
            return handler
        if not listener.is_for_brokers and api_key in CLUSTER_APIS:
            raise ClusterAuthorizationFailed(
                f"{api_key.name} on listener {listener.name!r}: only brokers ask for it, "
                "on a listener of theirs"
            )
        raise UnsupportedVersion(f"{api_key.name}: this broker does not serve it")


def failure(error: Exception, context: RequestContext, body: Request) -> Reply:
    """The answer that tells of `error`. Raises it again if it is a broken invariant."""
    if isinstance(error, RaftmqError):
        return Reply(None, error=error.code, message=str(error))
    if is_broken_invariant(error):
        raise error
    logger.error(
        "request failed: connection=%d client=%r principal=%r request=%s",
        context.connection_id,
        context.client_id,
        context.principal,
        _REPR.repr(body),
        exc_info=error,
    )
    return Reply(None, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=UNEXPECTED)


def is_broken_invariant(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(AssertionError) is not None
    return isinstance(error, AssertionError)


# -- Session --------------------------------------------------------------------------------------
# The server's side of one connection: requests in, in order; answers out, whenever they are ready.
#
# Owns the rules of the conversation: Hello first and once, nothing read while too much work is in
# flight, answers only for who waits for one. Handlers are called in the reader's task, in order of
# arrival; what they return to be awaited gets a task, which is cancelled when the connection ends,
# and a pending reply is dropped then. Answers that are there when all that arrived is taken leave
# together.
#
# Invariant: a request is in the window from its arrival until its answer has left.


ALIVE = encode_response(NOBODY, Nothing())
DONE = Reply(Nothing())
TAKEN_AT_ONCE_MAX = 64  # requests, before others have their turn


class ServedConnection:
    """Args:
    stranger: what is known of the other side before its Hello.
    on_greeted: told what is known then; returns why that is no good, or "".
    """

    def __init__(
        self,
        service: Service,
        connection: Connection,
        stranger: RequestContext,
        metadata_version: Callable[[], int] = lambda: ABSENT,
        on_batch: Callable[[bool], None] = lambda _begins: None,
        on_greeted: Callable[[RequestContext], str] = lambda _context: "",
    ) -> None:
        self._service, self._connection, self._context = service, connection, stranger
        self._metadata_version, self._on_batch = metadata_version, on_batch
        self._on_greeted = on_greeted
        self._outbox, self._limits = connection.outbox, connection.limits
        self._window = RequestWindow(
            requests_max=self._limits.requests_in_flight_max,
            bytes_max=self._limits.bytes_in_flight_max,
            aside_max=self._limits.patient_requests_max,
        )
        self._outbox.on_sent = self._window.release
        connection.bound_by(self._window)
        self._began_at = trio.current_time()
        self._pending: dict[PendingReply, bool] = {}  # whether it was set aside in the window
        self._is_greeted = self._is_held_up = False

    @property
    def node_id(self) -> int:
        """What the other side said in its Hello; -1 before, and of whoever is no broker."""
        return self._context.node_id

    async def run(self) -> None:
        try:
            await self._connection.run(self._read, self._look)
        finally:
            for pending in list(self._pending):
                pending.drop()
            self._pending.clear()

    async def _read(self) -> None:
        while frames := await self._connection.receive():
            frames.reverse()
            if refusal := await self._take(frames):
                await self._connection.finish(refusal)
                return

    async def _take(self, frames: list[Frame]) -> str:
        """All of `frames`, the last one first; or returns why the connection has to end."""
        self._begin_batch()
        try:
            taken, count = 0, len(frames)
            while frames:
                if self._window.is_full or taken == TAKEN_AT_ONCE_MAX:
                    if len(frames) < count:
                        self._connection.leave_room()
                    await self._wait_room()
                    taken = 0
                taken += 1
                frame = frames.pop()
                refusal = self._on_frame(frame)
                del frame  # or its payload would be kept until the next one comes
                if refusal:
                    return refusal
        finally:
            self._end_batch()
        return ""

    def _begin_batch(self) -> None:
        self._outbox.cork()
        self._on_batch(True)

    def _end_batch(self) -> None:
        self._on_batch(False)
        self._outbox.uncork()

    async def _wait_room(self) -> None:
        """At least for a turn of all others. Meanwhile pings go unread: see `_look`."""
        self._end_batch()
        self._is_held_up = True
        self._connection.look_by(trio.current_time() + self._limits.ping_seconds)
        try:
            await trio.lowlevel.checkpoint()
            await self._window.wait_room()
        finally:
            self._begin_batch()
        self._is_held_up = False

    def _on_frame(self, frame: Frame) -> str:
        """Returns why the connection has to end, if it has to."""
        header, payload = frame
        size = PREFIX.size + len(header) + len(payload)
        self._window.enter(size)
        try:
            request = decode_request(header)
        except UnsupportedVersion as error:
            self._put(error.correlation_id or NOBODY, size, _refused(error))
            return ""
        if not self._is_greeted or request.api_key is ApiKey.HELLO:
            return self._greet(request, size)
        self._serve(request, payload, size)
        return ""

    def _greet(self, request: DecodedRequest, size: int) -> str:
        hello = request.body
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"{request.api_key.name} before Hello")
        if self._is_greeted:
            raise RemoteProtocolError("a second Hello")
        listener = self._context.listener
        try:
            reply = self._service.greet(
                hello, listener, frame_bytes_max=self._limits.frame_bytes_max
            )
        except (InconsistentClusterId, ClusterAuthorizationFailed) as error:
            self._put(request.correlation_id, size, _refused(error))
            return str(error)
        context = self._context._replace(client_id=hello.client_id, node_id=hello.node_id)
        if refusal := self._on_greeted(context):
            self._connection.end(refusal)
            return refusal
        self._is_greeted, self._context = True, context
        self._connection.name += f" client={hello.client_id!r}"
        self._put(request.correlation_id, size, Reply(reply))
        return ""

    def _serve(self, request: DecodedRequest, payload: bytes | memoryview, size: int) -> None:
        if request.api_key is ApiKey.PING:
            self._put(request.correlation_id, size, DONE)
            return
        context = self._context
        if request.trace:
            context = context._replace(trace=request.trace)
        answer = self._service.call(context, request, payload)
        if answer is None or isinstance(answer, Reply):
            self._answer(context, request, size, answer)
        elif isinstance(answer, PendingReply):
            self._pending[answer] = False
            answer.attach(partial(self._on_settled, answer, context, request, size))
            if request.api_key in PATIENT and answer in self._pending:
                self._window.set_aside()
                self._pending[answer] = True
        else:
            self._connection.start_soon(self._answer_later, context, request, size, answer)

    def _on_settled(
        self,
        pending: PendingReply,
        context: RequestContext,
        request: DecodedRequest,
        size: int,
        outcome: Reply | Exception,
    ) -> None:
        if self._pending.pop(pending):
            self._window.take_back()
        if isinstance(outcome, Exception):
            outcome = failure(outcome, context, request.body)
        self._answer(context, request, size, outcome)
        self._outbox.flush(at_once=self._window.requests == 1)

    async def _answer_later(
        self,
        context: RequestContext,
        request: DecodedRequest,
        size: int,
        answer: Awaitable[Reply | None],
    ) -> None:
        reply = await self._service.finish(context, request, answer)
        self._answer(context, request, size, reply)
        self._outbox.flush(at_once=self._window.requests == 1)

    def _answer(
        self, context: RequestContext, request: DecodedRequest, size: int, reply: Reply | None
    ) -> None:
        number = request.correlation_id
        if reply is None or number == NOBODY or request.api_key in ONE_WAY:
            self._window.release(1, size)
            return
        try:
            self._put(number, size, reply)
        except Exception as error:  # a body that cannot be encoded, an answer that is too large
            self._put(number, size, failure(error, context, request.body))

    def _put(self, number: int, size: int, reply: Reply) -> None:
        body, payload, error, message, throttle_ms = reply
        head = encode_response(
            number,
            body,
            error=error,
            message=message,
            throttle_ms=throttle_ms,
            metadata_version=self._metadata_version(),
            payload_length=payload_length(payload) if payload else 0,
        )
        if payload or len(head) > self._limits.header_bytes_max:
            self._check_size(head)
            added = memory_bytes(payload)
            self._window.add(added)
            size += added
        self._outbox.put(head, payload, held_bytes=size)

    def _check_size(self, head: bytes) -> None:
        """Whoever asked would hang up on an answer that is over the limits."""
        length, header_length = PREFIX.unpack_from(head)
        limits = self._limits
        if length > limits.frame_bytes_max or header_length > limits.header_bytes_max:
            raise MessageTooLarge(
                f"answer of {length + LENGTH.size} bytes, {header_length} of them header: over "
                f"{limits.frame_bytes_max} or {limits.header_bytes_max}: ask for less at once"
            )

    def _look(self, now: float) -> float:
        limits = self._limits
        if not self._is_greeted:
            deadline = self._began_at + limits.hello_seconds_max
            if now >= deadline:
                self._connection.end(f"no Hello within {limits.hello_seconds_max:g} s")
            return deadline
        if self._is_held_up or self._connection.is_waiting:
            return self._show_life(now)
        if self._window.requests:
            return now + limits.idle_seconds_max
        idle_at = max(self._connection.heard_at, self._outbox.moved_at) + limits.idle_seconds_max
        if now >= idle_at:
            self._connection.end(f"asked nothing for {limits.idle_seconds_max:g} s")
        return idle_at

    def _show_life(self, now: float) -> float:
        """A channel that hears nothing would think that this server is dead, while it works."""
        if self._outbox.is_empty and now >= self._outbox.moved_at + self._limits.ping_seconds:
            self._outbox.put(ALIVE)
            self._outbox.flush()
            return now + self._limits.ping_seconds
        return max(now, self._outbox.moved_at) + self._limits.ping_seconds


def _refused(
    error: UnsupportedVersion | InconsistentClusterId | ClusterAuthorizationFailed,
) -> Reply:
    return Reply(None, error=ErrorCode(error.code), message=str(error))


# -- Server ---------------------------------------------------------------------------------------


class RpcServer:
    """Handlers for all connections.

    Args:
        handlers: called with a context, a body and a payload, in order of arrival, and must not
            wait. They return the answer, or an awaitable of it, which is cancelled when the
            connection ends; None where no answer is wanted.
        authorize: called once for each request that has a handler; raises to refuse it.
        metadata_version: what each answer tells, so that the other side knows when it is behind.
        on_batch: called with True before requests are handled that have arrived together, and with
            False after the last of them.
        on_left: told when a connection that a broker had opened is over, whatever the reason.
        run_sync: runs what waits for a disk, in a worker thread.
    """

    def __init__(
        self,
        identity: ServerIdentity,
        handlers: Mapping[ApiKey, Handler],
        *,
        authorize: Authorize,
        limits: RpcLimits | None = None,
        metadata_version: Callable[[], int] = lambda: ABSENT,
        on_batch: Callable[[bool], None] = lambda _begins: None,
        on_left: Callable[[int], None] = lambda _node_id: None,
        run_sync: RunSync = trio.to_thread.run_sync,
    ) -> None:
        self._service = Service(identity, handlers, authorize=authorize)
        self._limits = limits or RpcLimits()
        self._metadata_version, self._run_sync = metadata_version, run_sync
        self._on_batch, self._on_left = on_batch, on_left
        self._numbers = count(1)
        self._connections: set[Connection] = set()
        self._open = [0, 0]  # on listeners for clients, and on the one for brokers
        self._guests: set[int] = set()  # connections of clients on the one for brokers
        # Apart, so that clients cannot hold up replication.
        self._rooms = [RequestMemory(self._limits.unhandled_bytes_max) for _ in (False, True)]
        self._refused, self._say_at = 0, -math.inf

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def serve_stream(
        self,
        stream: trio.abc.Stream,
        listener: Listener,
        *,
        principal: str = ANONYMOUS,
        peer: str = "",
    ) -> None:
        """Until either side hangs up; the stream is closed then, also when this is cancelled."""
        if self._refuses_stranger(listener):
            await trio.aclose_forcefully(stream)
            return
        if not peer and isinstance(stream, TcpStream):
            peer = stream.peer_name
        number = next(self._numbers)
        name = f"connection-{number} listener={listener.name} peer={peer}"
        arrival = Arrival(self._limits.stall_seconds_max)
        connection = Connection(
            stream, name=name, limits=self._limits, run_sync=self._run_sync, arrival=arrival
        )
        stranger = RequestContext(principal, listener, "", number, peer)
        session = ServedConnection(
            self._service,
            connection,
            stranger,
            self._metadata_version,
            self._on_batch,
            partial(self._on_greeted, arrival),
        )
        self._connections.add(connection)
        self._open[listener.is_for_brokers] += 1
        try:
            await session.run()
        except Exception as error:
            if is_broken_invariant(error):
                raise
            logger.error("connection failed: with=%s", connection.name, exc_info=error)
        finally:
            self._connections.discard(connection)
            self._open[listener.is_for_brokers] -= 1
            self._guests.discard(number)
            if listener.is_for_brokers and session.node_id >= 0:
                self._on_left(session.node_id)

    def _refuses_stranger(self, listener: Listener) -> bool:
        """Clients take no place of a broker."""
        count, count_max = self._open[listener.is_for_brokers], self._limits.connections_max
        if listener.is_for_brokers:
            for_brokers = min(BROKER_CONNECTIONS_MAX, count_max)
            count_max = for_brokers if listener.clients_at else for_brokers + count_max
        if count < count_max:
            return False
        self._say_refused(listener, count)
        return True

    def _on_greeted(self, arrival: Arrival, context: RequestContext) -> str:
        """Whoever is no broker is a client, also where there is one listener for both."""
        is_broker = context.listener.is_for_brokers and context.node_id != ABSENT
        if context.listener.is_for_brokers and not is_broker:
            if len(self._guests) >= self._limits.connections_max:
                self._say_refused(context.listener, len(self._guests))
                return "too many clients"
            self._guests.add(context.connection_id)
        arrival.room = self._rooms[is_broker]
        return ""

    def _say_refused(self, listener: Listener, count: int) -> None:
        """Now and then, not for each connection."""
        self._refused += 1
        if trio.current_time() >= self._say_at:
            self._say_at = trio.current_time() + SAID_SECONDS
            logger.warning(
                "connections are closed at once: listener=%s open=%d refused=%d so far",
                listener.name,
                count,
                self._refused,
            )
