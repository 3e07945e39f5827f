"""The asking side of one connection: many requests in flight, answers in any order.

Owns the conversation with one server: Hello, correlation ids, signs of life. A channel that has
ended stays so; `peers.py` opens the next. What is over a limit of the server is refused here,
before anything is sent.

An error says what is known: definite where nothing was sent or the server refused, indefinite
where the request may have been carried out (Disconnected, RequestTimedOut).
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
# A request that one task of trio waits for.
#
# Owns the waking: an answer reschedules the task itself, without an event in between.


class WaitedCall(Call):
    """`wait` after it was entered."""

    __slots__ = ("_task",)

    def __init__(self, number: int, request: type[Request], *, timeout: float) -> None:
        super().__init__(number, request, timeout=timeout, now=trio.current_time())
        self._task: trio.lowlevel.Task | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        super().settle(outcome)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self, forget: Callable[[Call], None]) -> None:
        """Until it is settled; `forget` is called where the wait is cancelled. One task only."""

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            forget(self)
            return trio.lowlevel.Abort.SUCCEEDED

        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(give_up)


# -- Channel --------------------------------------------------------------------------------------


PING = encode_request(NOBODY, Ping())


class Channel:
    """See `open_channel`.

    Attributes:
        server: what the other side said of itself; only after Hello.
        metadata_version: the newest that an answer has told, -1 before.
    """

    server: HelloReply

    def __init__(
        self, stream: trio.abc.Stream, *, name: str, limits: RpcLimits, run_sync: RunSync
    ) -> None:
        self.metadata_version = -1
        self._connection = Connection(stream, name=name, limits=limits, run_sync=run_sync)
        self._limits, self._outbox = limits, self._connection.outbox
        self._outbox.on_sent = lambda _answers, _held_bytes: self._calls.send_next()
        self._calls = Calls(
            in_flight_max=limits.requests_in_flight_max,
            send=self._send,
            may_send=lambda: self._outbox.queued_bytes < limits.bytes_in_flight_max,
        )
        self._offer = Offer(name, frame_bytes_max=limits.frame_bytes_max)
        self._pinged_at = -math.inf

    @property
    def name(self) -> str:
        return self._connection.name

    @property
    def is_ended(self) -> bool:
        """No request leaves any more."""
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
        """Until the connection ends; then whoever waits is told."""
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
        """Ask, and wait for the answer.

        Args:
            payload: follows the body; its buffers must not change before the answer is there.
            timeout_seconds: for all of it, also for the wait for a place among those in flight.

        Raises:
            Unreachable: the channel had ended before anything was sent. Definite.
            Disconnected: it ended after that. Indefinite.
            RequestTimedOut: indefinite.
            MessageTooLarge, UnsupportedVersion: the server would not take it. Definite.
            RaftmqError: what the server answered.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        call = WaitedCall(self._calls.next_number(), type(body), timeout=timeout_seconds)
        call.head = self._encode(call.number, body, payload, trace)
        call.payload = payload
        self._calls.enter(call)
        self._connection.look_by(call.deadline)
        await call.wait(self._calls.forget)
        if isinstance(call.outcome, Answer):
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
        """As `request`, but nobody waits: `on_outcome` is called once, from the task that reads the
        connection, with the answer or an error. It must not wait.

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
        self._calls.enter(call, waits=False)  # what is sent one way after it must not overtake it
        self._connection.look_by(call.deadline)

    def send_one_way(self, body: Request, payload: Payload = ()) -> bool:
        """Send what is never answered; False if it is not sent: the channel has ended, or is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the server would not take it.
        """
        if self.is_ended or self._outbox.queued_bytes >= self._limits.bytes_in_flight_max:
            return False
        self._outbox.put(self._encode(NOBODY, body, payload, None), payload)
        self._outbox.flush()
        return True

    def _encode(
        self, number: int, body: Request, payload: Payload, trace: Mapping[str, str] | None
    ) -> bytes:
        """The frame but for its payload. Raises what is the matter with it."""
        if self.is_ended:
            raise Unreachable(f"{self.name}: the connection had ended before: {self.reason}")
        return self._offer.encode(number, body, payload, trace)

    def _send(self, call: Call) -> None:
        self._outbox.put(call.head, call.payload)
        self._outbox.flush(at_once=len(self._calls) == 1)

    async def _read(self) -> None:
        while frames := await self._connection.receive():
            self._outbox.cork()  # what is asked because of an answer leaves together
            for frame in frames:
                self._on_frame(frame)
            del frame, frames  # or their payloads would be kept until the next one comes
            self._outbox.uncork()

    def _on_frame(self, frame: Frame) -> None:
        answer = decode_response(frame.header)
        self.metadata_version = max(self.metadata_version, answer.metadata_version)
        self._calls.on_answer(answer, frame.payload)

    def _look(self, now: float) -> float:
        limits, heard_at = self._limits, self._connection.heard_at
        expires_at = self._calls.expire(now)
        # While a long request leaves, its server has nothing to say; that it takes it is life.
        alive_at = max(heard_at, self._outbox.pushed_at)
        if now >= alive_at + limits.silence_seconds_max:
            reason = f"silent for {limits.silence_seconds_max:g} s"
            self._connection.end(reason, is_fault=True)
        ping_at = max(heard_at, self._pinged_at) + limits.ping_seconds
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
    """A channel over `stream`, which is closed on the way out, after Hello.

    The body is not cancelled when the connection ends: its requests raise.

    Raises:
        RaftmqError: there was no Hello, see `Channel.greet`.
    """
    channel = Channel(stream, name=name, limits=limits or RpcLimits(), run_sync=run_sync)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        try:
            await channel.greet(hello)
            yield channel
        except Exception as error:  # would reach the caller in a group otherwise
            failure = error
        finally:
            channel.end("done")
    if failure is not None:
        raise failure
