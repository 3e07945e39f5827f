"""Requests that somebody waits for: in flight, or in line for a place there.

Owns correlation ids, deadlines and the waiting. No request has a cancel scope, a timer or a task of
its own: one task looks at all deadlines (`expire`), and an answer wakes the task that waits for it.

Invariants: a request is answered once, by a reply, the clock or the end of the connection; one that
nobody waits for any more is forgotten, and its late answer is dropped.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import RemoteProtocolError, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.rpc.reply import Answer, Payload
    from raftmq.wire.bodies import Request


class Call:
    """One request and, once it is known, what came of it."""

    __slots__ = (
        "_task", "deadline", "head", "number", "on_outcome", "outcome", "payload", "request",
        "timeout",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        request: type[Request],
        timeout: float,
        on_outcome: Callable[[Answer | RaftmqError], None] | None = None,
    ) -> None:
        self.on_outcome = on_outcome
        self.number, self.request, self.timeout = number, request, timeout
        self.deadline = trio.current_time() + timeout
        self.head, self.payload = b"", _NOTHING
        self.outcome: Answer | RaftmqError | None = None
        self._task: trio.lowlevel.Task | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        elif self._task is not None:
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

    def __len__(self) -> int:
        return len(self._in_flight) + len(self._in_line)

    def new(
        self,
        request: type[Request],
        *,
        timeout_seconds: float,
        on_outcome: Callable[[Answer | RaftmqError], None] | None = None,
    ) -> Call:
        """A call that is to be `enter`ed at once. Somebody waits for it, or is told."""
        return Call(next(self._numbers), request, timeout_seconds, on_outcome)

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
        self._send(call)
        call.head, call.payload = b"", _NOTHING

    def send_next(self) -> None:
        """Whoever is in line and has room."""
        while self._in_line and len(self._in_flight) < self._in_flight_max and self._may_send():
            number = next(iter(self._in_line))
            self._send_one(self._in_line.pop(number))

    def find(self, number: int) -> Call | None:
        """The call that an answer is for; None if nobody waits for it any more.

        Raises:
            RemoteProtocolError: nobody ever asked that.
        """
        call = self._in_flight.get(number)
        if call is None and (number > self._number_max or number in self._in_line):
            raise RemoteProtocolError(f"an answer to request {number}, which was not sent")
        return call

    def settle(self, call: Call, outcome: Answer | RaftmqError) -> None:
        self.forget(call)
        call.settle(outcome)

    def forget(self, call: Call) -> None:
        """Nobody waits for it any more."""
        if self._in_flight.pop(call.number, None) is None:
            self._in_line.pop(call.number, None)
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
        self._in_flight, self._in_line = {}, {}
        for call, error_of in failed:
            call.settle(error_of(call))


_NOTHING: Payload = ()
