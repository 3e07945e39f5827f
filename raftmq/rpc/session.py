"""The server's side of one connection: requests in, in order; answers out, whenever they are ready.

Owns the rules of the conversation: Hello first and once, nothing read while too much work is in
flight, answers only for who waits for one. Handlers are called in the reader's task, in order of
arrival; what they return to be awaited gets a task, which is cancelled when the connection ends,
and a pending reply is dropped then. Answers that are there when all that arrived is taken leave
together.

Invariant: a request is in the window from its arrival until its answer has left.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from raftmq.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InconsistentClusterId,
    MessageTooLarge,
    RemoteProtocolError,
    UnsupportedVersion,
)
from raftmq.rpc.reply import NOBODY, PendingReply, Reply, memory_bytes, payload_length
from raftmq.rpc.service import failure
from raftmq.rpc.window import Window
from raftmq.wire.apis import ONE_WAY, PATIENT, ApiKey
from raftmq.wire.bodies import ABSENT, Nothing
from raftmq.wire.envelopes import decode_request, encode_response
from raftmq.wire.frames import LENGTH, PREFIX
from raftmq.wire.messages.hello import Hello

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.rpc.connection import Connection
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Service
    from raftmq.wire.envelopes import DecodedRequest
    from raftmq.wire.frames import Frame

ALIVE = encode_response(NOBODY, Nothing())
DONE = Reply(Nothing())
TAKEN_AT_ONCE_MAX = 64  # requests, before others have their turn


class Session:
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
        self._window = Window(
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
