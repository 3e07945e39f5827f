"""Requests that somebody waits for: in flight, or in line for a place there. Pure.

Owns correlation ids and deadlines. No request has a cancel scope, a timer or a task of its own: one
task looks at all deadlines (`expire`), and an answer tells whoever waits for it.

Invariants: a request is answered once, by a reply, the clock or the end of the connection; one that
nobody waits for any more is forgotten, and its late answer is dropped.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from raftmq.errors import RemoteProtocolError, RequestTimedOut, error_for
from raftmq.rpc.reply import NOBODY, Answer
from raftmq.wire.apis import PATIENT
from raftmq.wire.envelopes import decode_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.rpc.reply import Payload
    from raftmq.wire.bodies import Request
    from raftmq.wire.envelopes import ResponseHeader


class Call:
    """One request and, once it is known, what came of it."""

    __slots__ = (
        "deadline", "head", "number", "on_outcome", "outcome", "payload", "request", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        request: type[Request],
        *,
        timeout: float,
        now: float,
        on_outcome: Callable[[Answer | RaftmqError], None] | None = None,
    ) -> None:
        self.on_outcome = on_outcome
        self.number, self.request, self.timeout = number, request, timeout
        self.deadline = now + timeout
        self.head, self.payload = b"", _NOTHING
        self.outcome: Answer | RaftmqError | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome
        if self.on_outcome is not None:
            self.on_outcome(outcome)


class Calls:
    """`send` is called with each call once it may leave; `may_send` says whether there is room."""

    def __init__(
        self, *, in_flight_max: int, send: Callable[[Call], None], may_send: Callable[[], bool]
    ) -> None:
        self._in_flight_max, self._send, self._may_send = in_flight_max, send, may_send
        self._numbers = count(1)  # 0 is nobody's
        self._number_max = 0
        self._in_flight: dict[int, Call] = {}
        self._in_line: dict[int, Call] = {}  # oldest first
        self._patient = 0  # of those in flight

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._in_line)

    def next_number(self) -> int:
        """Of a call that is to be `enter`ed at once."""
        return next(self._numbers)

    def enter(self, call: Call, *, waits: bool = True) -> None:
        """Send it when it is its turn; or now, if it is one of few that never wait in line."""
        self._number_max = call.number
        if not waits:
            self._send_one(call)
            return
        self._in_line[call.number] = call
        self.send_next()

    def _send_one(self, call: Call) -> None:
        self._in_flight[call.number] = call
        self._patient += _is_patient(call)
        self._send(call)
        call.head, call.payload = b"", _NOTHING

    def send_next(self) -> None:
        """Whoever is in line and has room."""
        while self._in_line and self._has_place() and self._may_send():
            number = next(iter(self._in_line))
            self._send_one(self._in_line.pop(number))

    def _has_place(self) -> bool:
        """Those that wait for others do not count, here as on the other side."""
        return len(self._in_flight) - self._patient < self._in_flight_max

    def find(self, number: int) -> Call | None:
        """The call that an answer is for; None if nobody waits for it any more.

        Raises:
            RemoteProtocolError: nobody ever asked that.
        """
        call = self._in_flight.get(number)
        if call is None and (number > self._number_max or number in self._in_line):
            raise RemoteProtocolError(f"an answer to request {number}, which was not sent")
        return call

    def on_answer(self, answer: ResponseHeader, payload: bytes | memoryview) -> None:
        """Settle the call that it is for, if anybody waits for that one.

        Raises:
            RemoteProtocolError: it is no answer to anything that was asked.
        """
        number = answer.correlation_id
        call = None if number == NOBODY else self.find(number)
        if call is None:
            return
        if answer.error:
            self.settle(call, error_for(answer.error, answer.message))
        else:
            body = decode_reply(call.request.reply, answer.body)
            self.settle(call, Answer(body, payload, answer.metadata_version, answer.throttle_ms))

    def settle(self, call: Call, outcome: Answer | RaftmqError) -> None:
        self.forget(call)
        call.settle(outcome)

    def forget(self, call: Call) -> None:
        """Nobody waits for it any more."""
        if self._in_flight.pop(call.number, None) is None:
            self._in_line.pop(call.number, None)
        else:
            self._patient -= _is_patient(call)
        self.send_next()

    def expire(self, now: float) -> float:
        """Settle what is too late; returns when the next one will be."""
        for call in [*self._in_flight.values(), *self._in_line.values()]:
            if call.deadline <= now:
                what = f"{call.request.__name__}: no answer within {call.timeout:g} s"
                self.settle(call, RequestTimedOut(what))
        calls = (*self._in_flight.values(), *self._in_line.values())
        return min((call.deadline for call in calls), default=math.inf)

    def fail(
        self,
        sent: Callable[[Call], RaftmqError],
        in_line: Callable[[Call], RaftmqError],
    ) -> None:
        """The connection has ended: nobody is answered any more."""
        failed = [(call, sent) for call in self._in_flight.values()]
        failed += [(call, in_line) for call in self._in_line.values()]
        self._in_flight, self._in_line, self._patient = {}, {}, 0
        for call, error_of in failed:
            call.settle(error_of(call))


def _is_patient(call: Call) -> bool:
    return call.request.api_key in PATIENT


_NOTHING: Payload = ()
