"""The requesting side of one connection: requests in flight and in line, deadlines, pings. Pure.

Owns correlation ids, what settles each request (its answer, its deadline, the end of the
connection), and when the broker is pinged or given up. Frames come in, bytes go into a queue; two
shells move them and know the time: `trio_channel.py` for brokers, `client/network/channel.py` for
programs. (Kafka: NetworkClient)

No request has a cancel scope, a timer or a task of its own: the shell checks all deadlines with one
alarm (`look`), and an answer wakes its caller.

An error says what is known: definite where nothing was sent or the broker refused, indefinite where
the request may have been carried out (Disconnected, RequestTimedOut).

Invariants: a request is settled once; a cancelled request is forgotten, and its late answer is
dropped.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Protocol

from raftmq.errors import (
    Disconnected,
    RemoteProtocolError,
    RequestTimedOut,
    Unreachable,
    error_for,
)
from raftmq.rpc.protocol import Offer
from raftmq.rpc.reply import NOBODY, Answer
from raftmq.wire.envelopes import decode_reply, decode_response, encode_request
from raftmq.wire.messages.cluster import Ping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raftmq.errors import RaftmqError
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.frames import Frame
    from raftmq.wire.messages.hello import HelloReply

# Requests in flight, up to which each leaves by itself: then a task switch costs more than a system
# call for each. (Measured with one record a request: at more the joining gains.)
AT_ONCE_MAX = 4

# The same bytes each time: a ping has no correlation id, as its answer matches no call.
PING = encode_request(NOBODY, Ping())


class SendQueue(Protocol):
    """Frames that wait to be sent: `Outbox` on trio, `Outgoing` on anyio.

    Attributes:
        queued_bytes: not sent yet.
        pushed_at: when a large write last advanced, which it does only while the broker reads.
        writes_since: since when the present write has not advanced; math.inf without one.
    """

    queued_bytes: int
    pushed_at: float
    writes_since: float

    def put(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame until `flush`."""

    def flush(self, *, at_once: bool = False) -> None:
        """Send what was put; `at_once`: nothing more will come soon."""


class Call:
    """One request and, once it is known, its outcome. `Conversation.ask` fills in the rest."""

    __slots__ = (
        "deadline", "head", "number", "on_outcome", "outcome", "payload", "request", "timeout",
    )  # fmt: skip

    number: int
    request: type[Request]
    head: bytes
    payload: Sequence[Buffer]

    def __init__(
        self,
        *,
        timeout: float,
        now: float,
        on_outcome: Callable[[Answer | RaftmqError], None] | None = None,
    ) -> None:
        self.timeout, self.deadline = timeout, now + timeout
        self.on_outcome = on_outcome
        self.outcome: Answer | RaftmqError | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome
        if self.on_outcome is not None:
            self.on_outcome(outcome)


class Conversation:
    """One connection's state. It is over once `reason` is set.

    Attributes:
        reason: why it is over; empty before.
        is_fault: the broker has violated the protocol, or is silent.
        heard_at: when the last byte arrived; the shell sets it.
    """

    def __init__(
        self,
        name: str,
        limits: RpcLimits,
        queue: SendQueue,
        *,
        now: float,
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called once, before the requests in flight fail."""
        self.name, self._limits, self._queue, self._on_end = name, limits, queue, on_end
        self.reason, self.is_fault = "", False
        self.heard_at, self._pinged_at = now, -math.inf
        self._offer = Offer(name, frame_bytes_max=limits.frame_bytes_max)
        self._numbers = count(1)  # 0 marks requests without an answer
        self._number_max = 0
        self._in_flight: dict[int, Call] = {}
        self._in_line: dict[int, Call] = {}  # waiting for a place in flight, oldest first
        self._patient = 0  # long polls and other delayed requests among those in flight

    @property
    def is_over(self) -> bool:
        return bool(self.reason)

    # -- requests --------------------------------------------------------------------------

    def ask(
        self,
        call: Call,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        trace: Mapping[str, str] | None = None,
        waits: bool = True,
    ) -> None:
        """Send a request when it is its turn. The call is settled once, unless it is forgotten
        before.

        Args:
            payload: follows the body; its buffers must not change before the call is settled.
            waits: with False it is sent at once, ahead of the line: a one-way request that is sent
                after it must not overtake it.

        Raises:
            Unreachable, MessageTooLarge, UnsupportedVersion: nothing was sent. Definite.
        """
        if self.reason:
            raise Unreachable(f"{self.name}: the connection had ended before: {self.reason}")
        call.number, call.request = next(self._numbers), type(body)
        call.head, call.payload = self._offer.encode(call.number, body, payload, trace), payload
        self._number_max = call.number
        if not waits:
            self._send(call)
            return
        self._in_line[call.number] = call
        self.send_next()

    def forget(self, call: Call) -> None:
        """The call is settled, or its caller was cancelled; its place goes to the next. A request
        that was not sent yet never is.
        """
        if self._in_flight.pop(call.number, None) is None:
            self._in_line.pop(call.number, None)
        else:
            self._patient -= call.request.is_patient
        self.send_next()

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """Send a request without an answer; False: not sent, as it is over or the queue is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the broker would not accept it.
        """
        # Dropped rather than queued: a one-way request says what the next one will say anew.
        if self.reason or not self._has_room():
            return False
        self._put(self._offer.encode(NOBODY, body, payload), payload)
        return True

    def send_next(self) -> None:
        """Send from the line as long as there are places and bytes; the shell calls it when bytes
        have left.
        """
        while self._in_line and self._has_place() and self._has_room():
            self._send(self._in_line.pop(next(iter(self._in_line))))

    def on_hello(self, told: HelloReply) -> None:
        """From now on requests are checked against the versions and limits that the broker has
        named.
        """
        self._offer.on_hello(told)

    # -- answers ---------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        """Settle the call that the frame answers, if that is still waited for.

        Raises:
            RemoteProtocolError: it is no answer, or to no request that was sent. The shell ends the
                connection.
        """
        answer = decode_response(frame.header)
        number = answer.correlation_id
        call = None if number == NOBODY else self._asked(number)
        if call is None:  # one-way sign of life, or a caller that gave up
            return
        outcome: Answer | RaftmqError
        if answer.error:
            outcome = error_for(answer.error, answer.message)
        else:
            body = decode_reply(call.request.reply, answer.body)
            outcome = Answer(body, frame.payload, answer.metadata_version, answer.throttle_ms)
        self._settle(call, outcome)

    def end(self, reason: str, *, is_fault: bool = False) -> None:
        """Fail all requests. Does nothing the second time."""
        if self.reason:
            return
        self.reason, self.is_fault = reason or "for no reason", is_fault
        self._on_end()
        sent, in_line = self._in_flight.values(), self._in_line.values()
        # Emptied first: a callback may forget calls.
        self._in_flight, self._in_line, self._patient = {}, {}, 0
        for call in sent:
            what = f"{self.name}: no answer to {call.request.__name__}"
            call.settle(Disconnected(f"{what}: {self.reason}"))
        for call in in_line:
            what = f"{self.name}: {call.request.__name__} was not sent"
            call.settle(Unreachable(f"{what}: {self.reason}"))

    # -- clocks ----------------------------------------------------------------------------

    def look(self, now: float) -> float:
        """Apply timeouts. Returns when to look again."""
        limits = self._limits
        expires_at = self._expire(now)
        stalls_at = self._queue.writes_since + limits.stall_seconds_max
        if now >= stalls_at:  # the broker does not read
            self.end(f"took nothing for {limits.stall_seconds_max:g} s", is_fault=True)
        # While a long request is being written, the broker has nothing to answer; that it reads is
        # a sign of life.
        silent_at = max(self.heard_at, self._queue.pushed_at) + limits.silence_seconds_max
        # Neither answers nor pongs: the process hangs, or the link is cut without a reset.
        if now >= silent_at:
            self.end(f"silent for {limits.silence_seconds_max:g} s", is_fault=True)
        if self.is_over:
            return math.inf
        ping_at = self._maybe_ping(now)
        return min(expires_at, ping_at, silent_at, stalls_at, now + limits.stall_seconds_max)

    def _maybe_ping(self, now: float) -> float:
        """Ping a silent connection. Returns when the next ping is due."""
        ping_at = max(self.heard_at, self._pinged_at) + self._limits.ping_seconds
        if now < ping_at:  # heard or pinged lately
            return ping_at
        self._put(PING)
        self._pinged_at = now
        return now + self._limits.ping_seconds

    def _expire(self, now: float) -> float:
        """Fail the calls whose deadline has passed; returns the next deadline."""
        # A list: settling changes both dicts. In line first: none is sent that is late already.
        for call in [*self._in_line.values(), *self._in_flight.values()]:
            # Gone if a callback has forgotten it, or ended the connection.
            is_waiting = call.number in self._in_flight or call.number in self._in_line
            if call.deadline <= now and is_waiting:  # slow, hanging, or the answer is lost
                what = f"{call.request.__name__}: no answer within {shown_seconds(call.timeout)}"
                self._settle(call, RequestTimedOut(what))
        calls = (*self._in_flight.values(), *self._in_line.values())
        return min((call.deadline for call in calls), default=math.inf)

    # -- inside ----------------------------------------------------------------------------

    def _has_place(self) -> bool:
        """Delayed requests do not count, here as in the window of the server: a consumer's long
        poll must not take the place of a commit."""
        return len(self._in_flight) - self._patient < self._limits.requests_in_flight_max

    def _has_room(self) -> bool:
        return self._queue.queued_bytes < self._limits.bytes_in_flight_max

    def _send(self, call: Call) -> None:
        self._in_flight[call.number] = call
        self._patient += call.request.is_patient
        self._queue.put(call.head, call.payload)
        call.head, call.payload = b"", ()  # the buffers need not live until the answer
        # One of few leaves in this very step; among many the writing task joins them.
        self._queue.flush(at_once=len(self._in_flight) + len(self._in_line) <= AT_ONCE_MAX)

    def _put(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        self._queue.put(head, payload)
        self._queue.flush()

    def _asked(self, number: int) -> Call | None:
        """The call that an answer belongs to; None if its caller gave up meanwhile."""
        call = self._in_flight.get(number)
        # A forgotten call had a number that was given out; anything else is a broken peer.
        if call is None and (number > self._number_max or number in self._in_line):
            raise RemoteProtocolError(f"an answer to request {number}, which was not sent")
        return call

    def _settle(self, call: Call, outcome: Answer | RaftmqError) -> None:
        self.forget(call)
        call.settle(outcome)


def shown_seconds(seconds: float) -> str:
    """`4.9 s`: a time-out is often what was left of another one, to the microsecond."""
    # From 99.5 on `.2g` would write 1e+02.
    return f"{seconds:.0f} s" if seconds >= 99.5 else f"{seconds:.2g} s"
