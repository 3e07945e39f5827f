"""The serving side of RPC: accepted streams, Hello, dispatch to handlers, answers, back-pressure.

Owns the connection limits, the memory for requests and the names of connections in the log. One
connection harms no other: an error of one ends that one; only a broken invariant ends the server
(decision 0003). (Kafka: SocketServer, RequestChannel)
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Awaitable, Callable, Mapping
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
from raftmq.rpc.network import LogThrottle, TcpStream
from raftmq.rpc.protocol import BROKER_CONNECTIONS_MAX, RpcLimits
from raftmq.rpc.reply import NOBODY, PendingReply, Reply, payload_sizes
from raftmq.rpc.request_memory import RequestMemory
from raftmq.rpc.window import RequestWindow
from raftmq.wire.bodies import ABSENT, Nothing, Request
from raftmq.wire.envelopes import decode_request, encode_response
from raftmq.wire.frames import HEADER_LENGTH_BYTES, LENGTH, PREFIX
from raftmq.wire.messages.cluster import Ping
from raftmq.wire.messages.hello import Hello, HelloReply, versions_of

if TYPE_CHECKING:
    from raftmq.rpc.connection import RunSync
    from raftmq.wire.envelopes import DecodedRequest
    from raftmq.wire.frames import Frame


logger = logging.getLogger("raftmq.rpc")


# -- Service --------------------------------------------------------------------------------------
# What a server does with one request: authorise it, call its handler, turn errors into answers.
#
# Owns the one place where requests are authorised, and the mapping from errors to answers. Knows
# nothing of streams. Errors of raftmq are answered as they are, unexpected ones as
# UNKNOWN_SERVER_ERROR and logged; broken invariants pass (decision 0003).


# None: the request wants no answer. An awaitable gets a task; a PendingReply needs none (0016).
HandlerResult: TypeAlias = Reply | PendingReply | Awaitable[Reply | None] | None
Handler: TypeAlias = Callable[[RequestContext, Any, bytes | memoryview], HandlerResult]
Handlers: TypeAlias = Mapping[type[Request], Handler]
Authorize: TypeAlias = Callable[[RequestContext, Request], None]

# Answered here, without a handler.
OWN_REQUESTS: frozenset[type[Request]] = frozenset({Hello, Ping})
UNEXPECTED = "unexpected error; the log of the broker has more"  # no internals for clients

_REPR = reprlib.Repr()
_REPR.maxother = 300  # characters of a request in a log line; a batch would fill the log


class Service:
    """`authorize` raises the error with which to refuse."""

    def __init__(
        self, identity: ServerIdentity, handlers: Handlers, *, authorize: Authorize
    ) -> None:
        own = OWN_REQUESTS.intersection(handlers)
        assert not own, f"answered by the server itself: {own}"
        self.identity = identity
        self._handlers, self._authorize = dict(handlers), authorize
        # A listener for clients serves nothing that only brokers may ask.
        self._for_clients = {k: h for k, h in handlers.items() if not k.is_for_brokers}

    def greet(self, hello: Hello, listener: Listener, *, frame_bytes_max: int) -> HelloReply:
        """
        Raises:
            InconsistentClusterId: the client meant another cluster.
            ClusterAuthorizationFailed: a client, on a listener for brokers alone.
        """
        cluster_id, node_id, features = self.identity
        # A client that names no cluster takes any.
        if hello.cluster_id not in ("", cluster_id):
            what = f"cluster {hello.cluster_id!r} was asked for, this is {cluster_id!r}"
            setting = "" if hello.node_id == ABSENT else ", or node.cluster_id"
            raise InconsistentClusterId(f"{what}: check the address{setting}")
        # Another listener is meant for clients: say where, as the address is a common mistake.
        if listener.clients_at and hello.node_id == ABSENT:
            raise ClusterAuthorizationFailed(listener.refusal(node_id))
        handlers = self._handlers if listener.is_for_brokers else self._for_clients
        return HelloReply(
            cluster_id=cluster_id,
            node_id=node_id,
            api_versions=versions_of(OWN_REQUESTS.union(handlers)),
            features=dict(features),
            frame_bytes_max=frame_bytes_max,
            listener=listener.name,
        )

    def call(
        self, context: RequestContext, request: DecodedRequest, payload: bytes | memoryview
    ) -> HandlerResult:
        """The answer, or where it will come from: an awaitable goes on to `finish`."""
        try:
            listener = context.listener
            known = self._handlers if listener.is_for_brokers else self._for_clients
            handler = known.get(type(request.body))
            if handler is None:
                raise _unserved(type(request.body), listener)
            self._authorize(context, request.body)
            return handler(context, request.body, payload)
        except Exception as error:  # the one border where a handler's error becomes an answer
            return failure(error, context, request.body)

    async def finish(
        self, context: RequestContext, request: DecodedRequest, answer: Awaitable[Reply | None]
    ) -> Reply | None:
        try:
            # Until the handler is done; cancelled when the connection ends.
            return await answer
        except Exception as error:  # as in `call`, for handlers that wait
            return failure(error, context, request.body)


def _unserved(kind: type[Request], listener: Listener) -> RaftmqError:
    # A client asked for something that exists, for brokers.
    if not listener.is_for_brokers and kind.is_for_brokers:
        return ClusterAuthorizationFailed(
            f"{kind.__name__} on listener {listener.name!r}: only brokers ask for it, "
            "on a listener of theirs"
        )
    return UnsupportedVersion(f"{kind.__name__}: this broker does not serve it")


def failure(error: Exception, context: RequestContext, body: Request) -> Reply:
    """The answer that reports `error`. Raises it again if it is a broken invariant."""
    if isinstance(error, RaftmqError):
        return Reply(None, error=error.code, message=str(error))
    # Answering would hide it; the broker has to stop (decision 0003).
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
    # trio wraps what nurseries raise.
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(AssertionError) is not None
    return isinstance(error, AssertionError)


# -- Session --------------------------------------------------------------------------------------
# The server's side of one connection: requests in, in order; answers out, as they become ready.
#
# Owns the rules of the conversation: Hello first and once, nothing read while too much work is in
# flight, no answer to one-way requests. Handlers are called in the reader's task, in order of
# arrival; an awaitable that they return gets a task, which is cancelled when the connection ends,
# and a pending reply is dropped then. Answers that are ready when everything that arrived has been
# taken leave in one system call.
#
# Invariant: a request is in the window from its arrival until its answer was sent.


ALIVE = encode_response(NOBODY, Nothing())  # answers no request; a sign of life
DONE = Reply(Nothing())
# Requests handled in a row before other connections get a turn.
TAKEN_AT_ONCE_MAX = 64


class ServedConnection:
    """Args:
    stranger: context before Hello, when only the listener is known.
    on_greeted: called with the context after Hello; returns why to refuse it, or "".
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
        self._pending: dict[PendingReply, bool] = {}  # True: set aside in the window (long poll)
        self._is_greeted = self._is_held_up = False

    @property
    def node_id(self) -> int:
        """The node id in the other side's Hello; -1 before, and for clients."""
        return self._context.node_id

    async def run(self) -> None:
        try:
            await self._connection.run(self._read, self._look)
        finally:
            # Long polls and produces whose answers cannot be received any more.
            for pending in list(self._pending):
                pending.drop()
            self._pending.clear()

    async def _read(self) -> None:
        # Ends when the client hangs up; a full window or full memory stops the reading.
        while frames := await self._connection.receive():
            frames.reverse()  # `_take` pops from the end, which is cheap for a list
            # The refusal itself is an answer that the client should get to read.
            if refusal := await self._take(frames):
                # Until the client has read it and hung up, or for FINISH_SECONDS_MAX.
                await self._connection.finish(refusal)
                return

    async def _take(self, frames: list[Frame]) -> str:
        """Handle `frames`, the last one first; returns why the connection must end, or ""."""
        self._begin_batch()
        try:
            taken, count = 0, len(frames)
            while frames:
                # Back-pressure, or the turn of other connections.
                if self._window.is_full or taken == TAKEN_AT_ONCE_MAX:
                    # Frames before the one that waits are handled: their memory goes to others.
                    if len(frames) < count:
                        self._connection.leave_room()
                    await self._wait_room()  # until answers have left and the window has room
                    taken = 0
                taken += 1
                frame = frames.pop()
                refusal = self._on_frame(frame)
                del frame  # or its payload would be kept until the next one comes
                if refusal:  # the rest of the frames is dropped with the connection
                    return refusal
        finally:
            self._end_batch()
        return ""

    # Answers of one batch of requests leave together; fetches are woken once for all produces.
    def _begin_batch(self) -> None:
        self._outbox.cork()
        self._on_batch(True)

    def _end_batch(self) -> None:
        self._on_batch(False)
        self._outbox.uncork()

    async def _wait_room(self) -> None:
        """Wait until the window has room, at least for one turn of the loop. Pings stay unread
        meanwhile, so `_look` shows signs of life.
        """
        self._end_batch()
        self._is_held_up = True
        self._connection.look_by(trio.current_time() + self._limits.ping_seconds)
        try:
            # Full or not, other connections get their turn.
            await trio.lowlevel.checkpoint()
            # Back-pressure: ends when answers of this connection have left.
            await self._window.wait_room()
        finally:
            self._begin_batch()
        self._is_held_up = False

    def _on_frame(self, frame: Frame) -> str:
        """Returns why the connection must end, or ""."""
        header, payload = frame.header, frame.payload
        size = PREFIX.size + len(header) + len(payload)
        self._window.enter(size)
        try:
            request = decode_request(header)
        # A request of a newer client: refused alone, the connection goes on.
        except UnsupportedVersion as error:
            self._put(error.correlation_id or NOBODY, size, _refused(error))
            return ""
        # Before Hello nothing is dispatched: limits and identity are not known yet.
        if not self._is_greeted or type(request.body) is Hello:
            return self._greet(request, size)
        self._serve(request, payload, size)
        return ""

    def _greet(self, request: DecodedRequest, size: int) -> str:
        hello = request.body
        if not isinstance(hello, Hello):  # limits and cluster are unknown before Hello
            raise RemoteProtocolError(f"{type(hello).__name__} before Hello")
        if self._is_greeted:
            raise RemoteProtocolError("a second Hello")
        listener = self._context.listener
        try:
            reply = self._service.greet(
                hello, listener, frame_bytes_max=self._limits.frame_bytes_max
            )
        # The wrong cluster or listener: no later request could be right either.
        except (InconsistentClusterId, ClusterAuthorizationFailed) as error:
            self._put(request.correlation_id, size, _refused(error))
            return str(error)
        context = self._context._replace(client_id=hello.client_id, node_id=hello.node_id)
        # Refused by the server, such as for too many clients; the reason is only logged.
        if refusal := self._on_greeted(context):
            self._connection.end(refusal)
            return refusal
        self._is_greeted, self._context = True, context
        self._connection.name += f" client={hello.client_id!r}"
        self._put(request.correlation_id, size, Reply(reply))
        return ""

    def _serve(self, request: DecodedRequest, payload: bytes | memoryview, size: int) -> None:
        # Not through a handler: pings must be cheap and pass any authorisation.
        if type(request.body) is Ping:
            self._put(request.correlation_id, size, DONE)
            return
        context = self._context
        if request.trace:  # most requests have none and share one context
            context = context._replace(trace=request.trace)
        answer = self._service.call(context, request, payload)
        if isinstance(answer, PendingReply):  # waits without a task; settled or dropped later
            self._pending[answer] = False
            answer.attach(partial(self._on_settled, answer, context, request, size))
            # A long poll that has not been answered inside of `attach`.
            if request.body.is_patient and answer in self._pending:
                self._window.set_aside()
                self._pending[answer] = True
        elif answer is None or isinstance(answer, Reply):  # handled: no task and no waiting
            self._answer(context, request, size, answer)
        # An awaitable: a disk or the quorum is waited for, in a task of this connection.
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
        if self._pending.pop(pending):  # leave the delayed ones before the answer is counted
            self._window.take_back()
        if isinstance(outcome, Exception):  # the maker settled it with an error
            outcome = failure(outcome, context, request.body)
        self._answer(context, request, size, outcome)
        # A lone request's answer leaves at once; with more in flight the writing task joins them.
        self._outbox.flush(at_once=self._window.requests == 1)

    async def _answer_later(
        self,
        context: RequestContext,
        request: DecodedRequest,
        size: int,
        answer: Awaitable[Reply | None],
    ) -> None:
        # Lasts as long as the handler; the connection's end cancels it.
        reply = await self._service.finish(context, request, answer)
        self._answer(context, request, size, reply)
        self._outbox.flush(at_once=self._window.requests == 1)

    def _answer(
        self, context: RequestContext, request: DecodedRequest, size: int, reply: Reply | None
    ) -> None:
        number = request.correlation_id
        # A one-way request, or a handler that has nothing to say: only its room is released.
        if reply is None or number == NOBODY or request.body.is_one_way:
            self._window.release(1, size)
            return
        try:
            self._put(number, size, reply)
        except Exception as error:  # a body that cannot be encoded, or an answer over the limits
            self._put(number, size, failure(error, context, request.body))

    def _put(self, number: int, size: int, reply: Reply) -> None:
        payload = reply.payload
        sizes = payload_sizes(payload) if payload else (0, 0)
        head = encode_response(
            number,
            reply.body,
            error=reply.error,
            message=reply.message,
            throttle_ms=reply.throttle_ms,
            metadata_version=self._metadata_version(),
            payload_length=sizes[0],
        )
        self._check_size(len(head), sizes[0])
        if sizes[1]:
            self._window.add(sizes[1])
            size += sizes[1]
        self._outbox.put(head, payload, sizes=sizes, held_bytes=size)

    def _check_size(self, head_length: int, payload_length: int) -> None:
        """Refuse an answer over the limits: the client would close the connection on it."""
        header_length, limits = head_length - PREFIX.size, self._limits
        length = HEADER_LENGTH_BYTES + header_length + payload_length
        if length > limits.frame_bytes_max or header_length > limits.header_bytes_max:
            raise MessageTooLarge(
                f"answer of {length + LENGTH.size} bytes, {header_length} of them header: over "
                f"{limits.frame_bytes_max} or {limits.header_bytes_max}: ask for less at once"
            )

    def _look(self, now: float) -> float:
        # Four cases, checked in this order: no Hello yet; not reading (show life, the client's
        # pings are unread); requests in flight (not idle); idle.
        limits = self._limits
        if not self._is_greeted:
            deadline = self._began_at + limits.hello_seconds_max
            if now >= deadline:  # a stranger may hold a place only for so long
                self._connection.end(f"no Hello within {limits.hello_seconds_max:g} s")
            return deadline
        # Its pings are not read, so it needs signs of life.
        if self._is_held_up or self._connection.is_waiting:
            return self._show_life(now)
        if self._window.requests:  # a long poll is no idleness
            return now + limits.idle_seconds_max
        idle_at = max(self._connection.heard_at, self._outbox.moved_at) + limits.idle_seconds_max
        if now >= idle_at:  # neither requests nor answers: the client is gone or has forgotten us
            self._connection.end(f"asked nothing for {limits.idle_seconds_max:g} s")
        return idle_at

    def _show_life(self, now: float) -> float:
        """Send a sign of life: a client without one would take this busy server for dead."""
        # Any answer is a sign of life as well; only a silent stream needs another one.
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
    """Serves connections with a table of handlers.

    Args:
        handlers: called with a context, a body and a payload, in order of arrival; they must not
            block. They return the answer, or an awaitable of it, which is cancelled when the
            connection ends; None where no answer is wanted.
        authorize: called once for each request that has a handler; raises to refuse it.
        metadata_version: goes into each answer, so that the client notices that it is behind.
        on_batch: called with True before the requests that arrived together are handled, and with
            False after the last of them.
        on_left: called with the node id when a connection that a broker had opened has ended.
        run_sync: runs blocking disk reads, in a worker thread.
    """

    def __init__(
        self,
        identity: ServerIdentity,
        handlers: Handlers,
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
        self._open = [0, 0]  # connections, on listeners for clients and on the one for brokers
        self._guests: set[int] = set()  # of clients, on the listener for brokers
        # Separate memory, so that clients cannot hold up replication (decision 0029).
        self._rooms = [RequestMemory(self._limits.unhandled_bytes_max) for _ in (False, True)]
        self._refused = 0
        self._of_refused, self._of_foreign_protocols = LogThrottle(), LogThrottle()

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
        """Until either side hangs up; closes the stream, also when cancelled."""
        # Too many connections: closed before anything is read, which costs no memory.
        if self._refuses_stranger(listener):
            await trio.aclose_forcefully(stream)  # no protocol with one that is turned away
            return
        # Simulated streams have no address.
        if not peer and isinstance(stream, TcpStream):
            peer = stream.peer_name
        number = next(self._numbers)
        name = f"connection-{number} listener={listener.name} peer={peer}"
        arrival = Arrival(self._limits.stall_seconds_max)
        # Clients come and go, and health probes connect every second.
        end_level = logging.INFO if listener.is_for_brokers else logging.DEBUG
        connection = Connection(
            stream,
            name=name,
            limits=self._limits,
            run_sync=self._run_sync,
            arrival=arrival,
            end_level=end_level,
            warns_of_foreign_protocol=self._of_foreign_protocols.is_due,
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
            await session.run()  # until either side hangs up, or the server stops
        except Exception as error:
            # A broken invariant stops the broker; anything else is this connection's affair alone.
            if is_broken_invariant(error):
                raise
            logger.error("connection failed: with=%s", connection.name, exc_info=error)
        finally:
            self._connections.discard(connection)
            self._open[listener.is_for_brokers] -= 1
            self._guests.discard(number)
            # A broker's connection broke: its process may be gone, which the controller probes.
            if listener.is_for_brokers and session.node_id >= 0:
                self._on_left(session.node_id)

    def _refuses_stranger(self, listener: Listener) -> bool:
        """Whether there are too many. Brokers have places that clients cannot take."""
        count, count_max = self._open[listener.is_for_brokers], self._limits.connections_max
        # Where clients use this listener too, their places come on top.
        if listener.is_for_brokers:
            for_brokers = min(BROKER_CONNECTIONS_MAX, count_max)
            count_max = for_brokers if listener.clients_at else for_brokers + count_max
        if count < count_max:  # within the limit: let it in
            return False
        self._log_refused(listener, count)
        return True

    def _on_greeted(self, arrival: Arrival, context: RequestContext) -> str:
        """Choose memory and places after Hello: a connection without a node id is a client's, also
        on a listener for both.
        """
        is_broker = context.is_of_broker
        # A client on a listener that brokers share.
        if context.listener.is_for_brokers and not is_broker:
            # Only Hello shows which connections are clients', so they are counted once more here.
            if len(self._guests) >= self._limits.connections_max:
                self._log_refused(context.listener, len(self._guests))
                return "too many clients"
            self._guests.add(context.connection_id)
        arrival.room = self._rooms[is_broker]
        return ""

    def _log_refused(self, listener: Listener, count: int) -> None:
        """Log once a minute, not for each connection."""
        self._refused += 1
        if self._of_refused.is_due():  # the counter still counts the others
            logger.warning(
                "connections are closed at once: listener=%s open=%d refused=%d so far",
                listener.name,
                count,
                self._refused,
            )
