"""The requesting side of one connection: many requests in flight, answers in any order.

Owns the conversation with one server: Hello, correlation ids, deadlines, pings. A channel that has
ended stays ended; `peers.py` opens the next one. A request over a limit of the server is refused
here, before anything is sent. (Kafka: NetworkClient)

Errors say what is known: definite where nothing was sent or the server refused, indefinite where
the request may have been carried out (Disconnected, RequestTimedOut).
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from raftmq.errors import Disconnected, Unreachable
from raftmq.rpc.connection import Connection
from raftmq.rpc.protocol import Call, Calls, Offer, RpcLimits
from raftmq.rpc.reply import NOBODY, Answer
from raftmq.wire.envelopes import decode_response, encode_request
from raftmq.wire.messages.cluster import Ping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from raftmq.errors import RaftmqError
    from raftmq.rpc.connection import RunSync
    from raftmq.rpc.reply import Payload
    from raftmq.wire.bodies import Request
    from raftmq.wire.frames import Frame
    from raftmq.wire.messages.hello import Hello, HelloReply


# -- Waited call ----------------------------------------------------------------------------------
# A request that one trio task waits for.
#
# Owns the waking: an answer reschedules the task directly, without a trio.Event in between, which
# is one turn of the loop less for each request (decision 0016).


class WaitedCall(Call):
    """`wait` is called once, after the call was entered."""

    __slots__ = ("_task",)

    def __init__(self, number: int, request: type[Request], *, timeout: float) -> None:
        super().__init__(number, request, timeout=timeout, now=trio.current_time())
        self._task: trio.lowlevel.Task | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        super().settle(outcome)
        # None where the answer came before `wait`, or the wait was cancelled.
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self, forget: Callable[[Call], None]) -> None:
        """Until the answer, the deadline or the end of the connection; cancelling calls `forget`.

        Only one task may wait.
        """

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            # Cancelled: a late answer must find neither the call nor a task to reschedule.
            self._task = None
            forget(self)
            return trio.lowlevel.Abort.SUCCEEDED

        # `Calls` settles each call exactly once, which ends this wait.
        self._task = trio.lowlevel.current_task()
        # Until `settle`, or the caller is cancelled.
        await trio.lowlevel.wait_task_rescheduled(give_up)


# -- Channel --------------------------------------------------------------------------------------


PING = encode_request(NOBODY, Ping())  # answered under correlation id 0, which no call has


class Channel:
    """See `open_channel`.

    Attributes:
        server: the other side's Hello; unset before it.
        metadata_version: the newest version that an answer named, -1 before: it tells when the
            metadata of this node is behind.
    """

    server: HelloReply

    def __init__(
        self, stream: trio.abc.Stream, *, name: str, limits: RpcLimits, run_sync: RunSync
    ) -> None:
        self.metadata_version = -1
        self._connection = Connection(stream, name=name, limits=limits, run_sync=run_sync)
        self._limits, self._outbox = limits, self._connection.outbox
        # Sent bytes make room for calls that wait in line.
        self._outbox.on_sent = lambda _answers, _held_bytes: self._calls.send_next()
        self._calls = Calls(
            in_flight_max=limits.requests_in_flight_max,
            send=self._send,
            may_send=lambda: self._outbox.queued_bytes < limits.bytes_in_flight_max,
        )
        self._offer = Offer(name, frame_bytes_max=limits.frame_bytes_max)
        self._pinged_at = -math.inf  # of the last ping, so that one at a time is unanswered

    @property
    def name(self) -> str:
        return self._connection.name

    @property
    def is_ended(self) -> bool:
        """No request is sent any more."""
        return self._connection.is_ended

    @property
    def reason(self) -> str:
        """Why it has ended."""
        return self._connection.reason

    async def wait_ended(self) -> None:
        await self._connection.wait_ended()

    def end(self, reason: str) -> None:
        self._connection.end(reason)

    async def run(self) -> None:
        """Until the connection ends; then every call that is left fails."""
        # Cancelled or broken, callers must not wait for answers that cannot come.
        try:
            await self._connection.run(self._read, self._look)
        finally:
            self._calls.fail(self._disconnected, self._unreachable)

    async def greet(self, hello: Hello) -> None:
        """The first exchange.

        Raises:
            RaftmqError: refused, no answer in time, disconnected.
        """
        answer = await self.request(hello, timeout_seconds=self._limits.hello_seconds_max)
        self.server = answer.body
        self._offer.on_hello(self.server)

    async def request(
        self,
        body: Request,
        payload: Payload = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and wait for its answer.

        Args:
            payload: follows the body; its buffers must not change before the answer is there.
            timeout_seconds: for all of it, including the wait for a place in flight.

        Raises:
            Unreachable: the channel had ended before anything was sent. Definite.
            Disconnected: it ended after that. Indefinite.
            RequestTimedOut: indefinite.
            MessageTooLarge, UnsupportedVersion: the server would not take it. Definite.
            RaftmqError: what the server answered.
        """
        # A cancelled caller sends nothing.
        await trio.lowlevel.checkpoint_if_cancelled()
        call = WaitedCall(self._calls.next_number(), type(body), timeout=timeout_seconds)
        call.head = self._encode(call.number, body, payload, trace)
        call.payload = payload
        self._calls.enter(call)
        # One alarm for all deadlines, moved forward if this call's is the earliest.
        self._connection.look_by(call.deadline)
        # Ends with an answer, at the deadline, or with the connection.
        await call.wait(self._calls.forget)
        if isinstance(call.outcome, Answer):  # else an error, which the caller gets
            return call.outcome
        assert call.outcome is not None, "woken without an outcome"
        raise call.outcome

    def ask(
        self,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> None:
        """As `request` without a waiting task: `on_outcome` is called once, with the answer or an
        error, from the task that reads the connection. It must not wait (decision 0016).

        Raises:
            Unreachable, MessageTooLarge, UnsupportedVersion: see `request`; nothing was sent.
        """
        call = Call(
            self._calls.next_number(),
            type(body),
            timeout=timeout_seconds,
            now=trio.current_time(),
            on_outcome=on_outcome,
        )
        call.head = self._encode(call.number, body, (), None)
        self._calls.enter(call, waits=False)  # a one-way request sent after it must not overtake
        self._connection.look_by(call.deadline)

    def send_one_way(self, body: Request, payload: Payload = ()) -> bool:
        """Send a request that has no answer; False if not sent: the channel has ended or is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the server would not take it.
        """
        # Dropped rather than queued: a one-way request says what the next one will say anew.
        if self.is_ended or self._outbox.queued_bytes >= self._limits.bytes_in_flight_max:
            return False
        self._outbox.put(self._encode(NOBODY, body, payload, None), payload)
        self._outbox.flush()
        return True

    def _encode(
        self, number: int, body: Request, payload: Payload, trace: Mapping[str, str] | None
    ) -> bytes:
        """The frame without its payload. Raises what the server would refuse it for."""
        if self.is_ended:
            raise Unreachable(f"{self.name}: the connection had ended before: {self.reason}")
        return self._offer.encode(number, body, payload, trace)

    def _send(self, call: Call) -> None:
        self._outbox.put(call.head, call.payload)
        # A lone request leaves in this very step; among several the writing task joins them.
        self._outbox.flush(at_once=len(self._calls) == 1)

    async def _read(self) -> None:
        # Ends when the server hangs up, or `Connection` ends the stream.
        while frames := await self._connection.receive():
            self._outbox.cork()  # requests that these answers cause leave in one system call
            for frame in frames:
                self._on_frame(frame)
            del frame, frames  # or their payloads would stay in memory until the next answer
            self._outbox.uncork()

    def _on_frame(self, frame: Frame) -> None:
        answer = decode_response(frame.header)
        self.metadata_version = max(self.metadata_version, answer.metadata_version)
        self._calls.on_answer(answer, frame.payload)

    def _look(self, now: float) -> float:
        limits, heard_at = self._limits, self._connection.heard_at
        expires_at = self._calls.expire(now)
        # While a long request is being sent its server has nothing to answer: progress of the
        # sending proves that it is alive.
        alive_at = max(heard_at, self._outbox.pushed_at)
        # Neither answers nor pongs: the process hangs, or the link is cut without a reset.
        if now >= alive_at + limits.silence_seconds_max:
            reason = f"silent for {limits.silence_seconds_max:g} s"
            self._connection.end(reason, is_fault=True)
        ping_at = max(heard_at, self._pinged_at) + limits.ping_seconds
        # One ping per silent interval, not one for each call of this method.
        if now >= ping_at:
            self._outbox.put(PING)
            self._outbox.flush()
            self._pinged_at, ping_at = now, now + limits.ping_seconds
        return min(expires_at, ping_at, alive_at + limits.silence_seconds_max)

    def _disconnected(self, call: Call) -> Disconnected:
        return Disconnected(f"{self.name}: no answer to {call.request.__name__}: {self.reason}")

    def _unreachable(self, call: Call) -> Unreachable:
        what = f"{self.name}: {call.request.__name__} was not sent"
        return Unreachable(f"{what}: {self.reason}")


@asynccontextmanager
async def open_channel(
    stream: trio.abc.Stream,
    hello: Hello,
    limits: RpcLimits | None = None,
    *,
    name: str = "server",
    run_sync: RunSync = trio.to_thread.run_sync,
) -> AsyncIterator[Channel]:
    """A channel over `stream`, after Hello; the stream is closed on the way out.

    The body is not cancelled when the connection ends; its requests raise instead.

    Raises:
        RaftmqError: Hello failed, see `Channel.greet`.
    """
    channel = Channel(stream, name=name, limits=limits or RpcLimits(), run_sync=run_sync)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        try:
            # The Hello's answer, its timeout, or the end of the connection.
            await channel.greet(hello)
            yield channel
        except Exception as error:  # the nursery would hand it to the caller in a group
            failure = error
        finally:
            channel.end("done")
    if failure is not None:
        raise failure
