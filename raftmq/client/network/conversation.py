"""One connection's protocol: requests in flight, timeouts, pings; bytes in, bytes out. Pure.

Owns what settles each request: its answer, its timeout, or the end of the connection; and when the
broker is pinged or given up. Moves no bytes and reads no clock: `channel.py` does; `wake` says that
there is something to send, `on_end` that the connection is over.

An error says what is known: definite where nothing was sent or the broker refused, indefinite where
the request may have been carried out (Disconnected, RequestTimedOut).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.client.network.outgoing import Outgoing
from raftmq.errors import Disconnected, RemoteProtocolError, Unreachable
from raftmq.rpc.protocol import Call, Calls, Offer
from raftmq.rpc.reply import NOBODY
from raftmq.wire.envelopes import decode_response, encode_request
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Ping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.errors import RaftmqError
    from raftmq.rpc.protocol import RpcLimits
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import HelloReply

# The same bytes each time: a ping has no correlation id, as its answer matches no call.
PING = encode_request(NOBODY, Ping())


class Conversation:
    """One connection's state. It is over once `reason` is set.

    Attributes:
        outgoing: bytes to be sent; the sender calls `on_sent`.
        reason: why it is over; empty before.
        is_fault: the broker has violated the protocol, or is silent.
    """

    def __init__(
        self,
        name: str,
        limits: RpcLimits,
        *,
        now: float,
        wake: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.name, self._limits, self._wake, self._on_end = name, limits, wake, on_end
        self.reason, self.is_fault = "", False
        self.outgoing = Outgoing()
        self._heard_at, self._pinged_at = now, -math.inf
        self._offer = Offer(name, frame_bytes_max=limits.frame_bytes_max)
        self._frames = FrameReader(
            frame_bytes_max=limits.frame_bytes_max, header_bytes_max=limits.header_bytes_max
        )
        self._calls = Calls(
            in_flight_max=limits.requests_in_flight_max, send=self._send, may_send=self._has_room
        )

    @property
    def is_over(self) -> bool:
        return bool(self.reason)

    # -- requests --------------------------------------------------------------------------

    def ask(
        self,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
        now: float,
        on_outcome: Callable[[Answer | RaftmqError], None],
    ) -> Call:
        """Send a request. `on_outcome` is called once, unless the call is forgotten before.

        Raises:
            Unreachable, MessageTooLarge, UnsupportedVersion: nothing was sent. Definite.
        """
        self._check_open()
        number = self._calls.next_number()
        call = Call(number, type(body), timeout=timeout_seconds, now=now, on_outcome=on_outcome)
        call.head, call.payload = self._offer.encode(number, body, payload), payload
        self._calls.enter(call)
        return call

    def forget(self, call: Call) -> None:
        """The caller was cancelled; a request that was not sent yet never is."""
        self._calls.forget(call)

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """Send a request without an answer; False: not sent, as it is over or the queue is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the broker would not accept it.
        """
        if self.is_over or not self._has_room():
            return False
        self._put(self._offer.encode(NOBODY, body, payload), payload)
        return True

    def on_hello(self, told: HelloReply) -> None:
        """From now on requests are checked against the versions and limits that the broker has
        named.
        """
        self._offer.on_hello(told)

    # -- bytes -----------------------------------------------------------------------------

    def receive(self, data: bytes, *, now: float) -> None:
        """Bytes that have arrived; b"" at the end. Invalid bytes end the connection."""
        self._heard_at = now
        if not data:  # end of file
            self.end("the other side hung up")
            return
        try:
            for frame in self._frames.receive(data):
                self._calls.on_answer(decode_response(frame.header), frame.payload)
        # After invalid bytes the frames that follow cannot be found.
        except RemoteProtocolError as error:
            self.end(str(error), is_fault=True)

    def on_sent(self) -> None:
        """All bytes taken from `outgoing` have been written."""
        self.outgoing.on_sent()
        self._calls.send_next()

    def end(self, reason: str, *, is_fault: bool = False) -> None:
        """Fail all requests in flight. Does nothing the second time."""
        if self.is_over:
            return
        self.reason, self.is_fault = reason or "for no reason", is_fault
        self._calls.fail(self._disconnected, self._not_sent)
        self._on_end()

    # -- clocks ----------------------------------------------------------------------------

    def look(self, now: float) -> float:
        """Apply timeouts. Returns when to look again."""
        limits = self._limits
        expires_at = self._calls.expire(now)
        stalls_at = self.outgoing.writes_since + limits.stall_seconds_max
        if now >= stalls_at:  # the broker does not read
            self.end(f"took nothing for {limits.stall_seconds_max:g} s", is_fault=True)
        # While a long request is being written, the broker has nothing to answer; that it reads is
        # a sign of life.
        alive_at = max(self._heard_at, self.outgoing.pushed_at)
        silent_at = alive_at + limits.silence_seconds_max
        if now >= silent_at:
            self.end(f"silent for {limits.silence_seconds_max:g} s", is_fault=True)
        if self.is_over:
            return math.inf
        ping_at = self._maybe_ping(now)
        return min(expires_at, ping_at, silent_at, stalls_at, now + limits.stall_seconds_max)

    def _maybe_ping(self, now: float) -> float:
        """Ping a silent connection. Returns when the next ping is due."""
        ping_at = max(self._heard_at, self._pinged_at) + self._limits.ping_seconds
        if now < ping_at:  # heard or pinged lately
            return ping_at
        self._put(PING)
        self._pinged_at = now
        return now + self._limits.ping_seconds

    # -- inside ----------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return self.outgoing.queued_bytes < self._limits.bytes_in_flight_max

    def _check_open(self) -> None:
        if self.is_over:
            raise Unreachable(f"{self.name}: the connection had ended before: {self.reason}")

    def _send(self, call: Call) -> None:
        self._put(call.head, call.payload)  # type: ignore[arg-type]  # `ask` takes buffers only

    def _put(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        self.outgoing.put(head, payload)
        self._wake()

    def _disconnected(self, call: Call) -> Disconnected:
        return Disconnected(f"{self.name}: no answer to {call.request.__name__}: {self.reason}")

    def _not_sent(self, call: Call) -> Unreachable:
        what = f"{self.name}: {call.request.__name__} was not sent"
        return Unreachable(f"{what}: {self.reason}")
