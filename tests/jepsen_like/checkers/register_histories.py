"""Histories of registers for the checker's tests, and a judge that is too slow to be wrong.

Owns three makers: small random histories without rhyme or reason, histories recorded from a
register that works, and the brute force that tries every order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.checkers.registers import Kind, Operation, Outcome, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from jepsen_like.checkers.registers import Value

    Then: TypeAlias = Callable[[Operation, Value, float], None]


def small_history(random: Random) -> list[Operation]:
    """Up to six operations on values 0 to 2, a good part of them overlapping."""
    return [_small_operation(random, number) for number in range(random.randint(2, 6))]


def _small_operation(random: Random, process: int) -> Operation:
    kind = random.choice(list(Kind))
    start, value, expected = random.randint(0, 8), random.randint(0, 2), random.randint(0, 2)
    outcome = random.choices(list(Outcome), weights=[4, 1, 2])[0]
    is_refused = kind is Kind.CAS and outcome is Outcome.FAIL and random.random() < 0.7
    return Operation(
        process=process,
        kind=kind,
        key="x",
        outcome=outcome,
        invoked_at=start,
        returned_at=math.inf if outcome is Outcome.INFO else start + random.randint(1, 5),
        value=value if kind is not Kind.READ or random.random() < 0.9 else None,
        expected=expected if kind is Kind.CAS else None,
        found=random.randint(0, 2) if is_refused else Unknown.VALUE,
    )


def brute_force(operations: list[Operation], value: Value = None) -> bool:
    """Whether some order explains all answers: whoever may come first is tried as the first."""
    must = [op for op in operations if op.outcome is not Outcome.INFO]
    if not must:
        return True
    first_return = min(op.returned_at for op in must)
    return any(
        brute_force([other for other in operations if other is not op], after)
        for op in operations
        if op.invoked_at <= first_return
        for after in _effects(op, value)
    )


def _effects(op: Operation, value: Value) -> list[Value]:
    """The values that the register may have after `op`; none: it cannot come now."""
    if op.outcome is Outcome.FAIL:
        return [value] if op.found in (Unknown.VALUE, value) else []
    if op.kind is Kind.WRITE:
        return [op.value]
    if op.kind is Kind.CAS:
        return [op.value] if value == op.expected else []
    return [value] if value == op.value or op.outcome is Outcome.INFO else []


def recorded(
    random: Random, length: int, *, clients: int = 5, unknown_share: float = 0.0
) -> list[Operation]:
    """`length` operations on a register that works (see Recorder), and those still open then."""
    recorder = Recorder(random, clients, unknown_share)
    while len(recorder.history) < length:
        recorder.step()
    return [*recorder.history, *recorder.open.values()]


class Recorder:
    """A register that takes each operation at one moment; every value written is new.

    A client that does not hear how it ended goes on as another process. The operation takes effect
    at some time, perhaps long after, or never.
    """

    def __init__(self, random: Random, clients: int, unknown_share: float) -> None:
        self.history: list[Operation] = []
        self.open: dict[int, Operation] = {}  # by process
        self._random, self._unknown_share = random, unknown_share
        self._value: Value = None
        self._numbers = count(1)
        self._ahead: list[tuple[float, int, Callable[[float], None]]] = []
        for process in range(clients):
            self._later(0.0, partial(self._begin, process))

    def step(self) -> None:
        now, _, action = heappop(self._ahead)
        action(now)

    def _later(self, now: float, action: Callable[[float], None], mean: float = 1.0) -> None:
        when = now + self._random.expovariate(1 / mean)
        heappush(self._ahead, (when, next(self._numbers), action))

    def _begin(self, process: int, now: float) -> None:
        kind = self._random.choice(list(Kind))
        expected = self._value if self._random.random() < 0.8 else -1
        operation = Operation(
            process=process,
            kind=kind,
            key="x",
            outcome=Outcome.INFO,
            invoked_at=now,
            value=None if kind is Kind.READ else next(self._numbers),
            expected=expected if kind is Kind.CAS else None,
        )
        if self._random.random() < self._unknown_share:
            self._lose(operation, now)
        else:
            self.open[process] = operation
            self._later(now, partial(self._take, operation, self._end))

    def _lose(self, operation: Operation, now: float) -> None:
        self.history.append(operation)
        if self._random.random() < 0.5:
            self._later(now, partial(self._take, operation, None), mean=10.0)
        self._later(now, partial(self._begin, next(self._numbers)))

    def _take(self, operation: Operation, then: Then | None, now: float) -> None:
        found = self._value
        fits = operation.kind is not Kind.CAS or found == operation.expected
        if operation.kind is not Kind.READ and fits:
            self._value = operation.value
        if then:
            self._later(now, partial(then, operation, found))

    def _end(self, operation: Operation, found: Value, now: float) -> None:
        refused = operation.kind is Kind.CAS and found != operation.expected
        ended = replace(
            operation,
            returned_at=now,
            outcome=Outcome.FAIL if refused else Outcome.OK,
            value=found if operation.kind is Kind.READ else operation.value,
            found=found if refused else Unknown.VALUE,
        )
        del self.open[operation.process]
        self.history.append(ended)
        self._later(now, partial(self._begin, operation.process))
