"""Linearizability of a register's history: the search of Wing and Gong with Lowe's improvements.

An operation takes effect only when it must (a completed one needs it), and no state of the search
is visited twice. That keeps the cost of the search low.
Keys are independent and judged alone. Pure.

What a state is: the value of the register, and which of the open operations have had their effect.
An operation whose outcome is unknown may have its effect at any time after its invocation, or
never; it is followed as long as another operation might still have seen its effect. Values should
be unique: then that is not long, and the search is quick. One clock stamps all times; numbers of
events in place of seconds keep the order of those that happen at the same time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jepsen_like.checkers.registers import Outcome, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jepsen_like.checkers.registers import Operation, Value

STATES_MAX = 200_000  # between two completions: seconds of search; beyond, it might take hours
NEIGHBOURS_SHOWN = 10  # operations around a violation, in its message


class NoVerdict(Exception):
    """Too many orders to try. A failure, not a pass: use fewer clients per key, unique values."""


class Violation(NamedTuple):
    """The shortest beginning of a key's history that no order of its operations explains.

    Attributes:
        operation: its end is where that became certain.
        values: what the register could have held at that time.
        beginning: all operations on the key up to there, by invocation.
    """

    key: str
    operation: Operation
    values: list[Value]
    beginning: list[Operation]

    def __str__(self) -> str:
        held = " or ".join(map(repr, self.values))
        near = [op for op in self.beginning if op is not self.operation]
        lines = [f"    {op}" for op in near[-NEIGHBOURS_SHOWN:]]
        return "\n".join(
            [
                f"key {self.key!r} is not linearizable: no order of its first "
                f"{len(self.beginning)} operations allows",
                f"    {self.operation}",
                f"because the register could only hold {held}. Before it, or beside it:",
                *(["    ..."] if len(near) > NEIGHBOURS_SHOWN else []),
                *lines,
            ]
        )


def check(history: Iterable[Operation], *, initial: Value = None) -> Violation | None:
    """The violation that was certain first, of any key; None for a good history.

    Raises:
        NoVerdict: the history of some key is too tangled.
    """
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    found = [check_key(operations, initial=initial) for _, operations in sorted(by_key.items())]
    violations = [violation for violation in found if violation]
    return min(violations, key=lambda found: found.operation.returned_at, default=None)


def check_key(operations: list[Operation], *, initial: Value = None) -> Violation | None:
    """The same for operations of one key."""
    search = _Search(initial)
    operations = sorted(operations, key=lambda operation: operation.invoked_at)
    for _, call, moment in sorted(_events(operations), key=lambda event: event[0]):
        if moment is _Moment.INVOKED:
            search.invoke(call)
        elif moment is _Moment.FORGOTTEN:
            search.forget(call)
        elif not search.complete(call):
            return _violation(operations, call.operation, search)
    return None


def _violation(operations: list[Operation], operation: Operation, search: _Search) -> Violation:
    end = operation.returned_at
    beginning = [other for other in operations if other.invoked_at <= end]
    return Violation(operation.key, operation, sorted(search.values, key=repr), beginning)


class _Moment(Enum):
    """In the order in which events of the same time are taken."""

    INVOKED = 0
    RETURNED = 1
    FORGOTTEN = 2


@dataclass(eq=False, slots=True)
class _Call:
    """An operation that is open; `bit` is its place in a state."""

    operation: Operation
    needs: Value = field(init=False)
    value: Value = field(init=False)
    is_read: bool = field(init=False)
    is_optional: bool = field(init=False)
    bit: int = 0

    def __post_init__(self) -> None:
        operation = self.operation
        self.needs, self.value = operation.needs, operation.value
        self.is_read = operation.is_read
        self.is_optional = operation.outcome is Outcome.INFO

    def can_follow(self, value: Value) -> bool:
        return self.needs is Unknown.VALUE or self.needs == value


_Event: TypeAlias = tuple[tuple[float, int, int], _Call, _Moment]


def _events(operations: list[Operation]) -> Iterator[_Event]:
    """The sides of each operation that matters, each with its place in time."""
    until = _last_needed(operations)
    for number, operation in enumerate(operations):
        if operation.outcome is Outcome.INFO:
            end, moment = until.get(number, -math.inf), _Moment.FORGOTTEN
        else:
            end, moment = operation.returned_at, _Moment.RETURNED
        says_nothing = operation.is_read and operation.needs is Unknown.VALUE
        if end >= operation.invoked_at and not says_nothing:
            call = _Call(operation)
            yield (operation.invoked_at, _Moment.INVOKED.value, number), call, _Moment.INVOKED
            yield (end, moment.value, number), call, moment


def _last_needed(operations: list[Operation]) -> dict[int, float]:
    """Until when the effect of each unknown operation may be seen, if it ever is.

    Later, or if it never is, it is equivalent to one that never happened: operations that do not
    see it fit into the same order without it. An unknown compare-and-set needs a value as long as
    its own effect is needed, so the last need travels back along chains of them.
    """
    until: dict[int, float] = {}
    makers: dict[Value, list[int]] = defaultdict(list)
    for number, operation in enumerate(operations):
        if operation.outcome is Outcome.INFO and not operation.is_read:
            makers[operation.value].append(number)
    needs = [(op.returned_at, op.needs) for op in operations if op.outcome is not Outcome.INFO]
    needs.sort(key=lambda need: need[0])
    while needs:  # the last ones first: that of a value is then the first one met
        end, value = needs.pop()
        for number in makers.pop(value, []):
            until[number] = end
            needs.append((end, operations[number].needs))
    return until


_State: TypeAlias = "tuple[Value, int]"  # the value, and the bits of the calls that took effect


class _Search:
    """All states that the register may be in, given everything up to now."""

    def __init__(self, initial: Value) -> None:
        self._states: set[_State] = {(initial, 0)}
        self._open: dict[int, _Call] = {}
        self._free_bits: list[int] = []

    @property
    def values(self) -> set[Value]:
        return {value for value, _ in self._states}

    def invoke(self, call: _Call) -> None:
        call.bit = self._free_bits.pop() if self._free_bits else 1 << len(self._open)
        self._open[call.bit] = call
        if call.is_read:
            self._states = {self._after_reads(*state) for state in self._states}

    def complete(self, call: _Call) -> bool:
        """Keep the states in which the call took effect; False: there is none."""
        kept = self._reach(call)
        if kept:
            self._states = self._thriftiest(kept)
            self.forget(call)
        return bool(kept)

    def forget(self, call: _Call) -> None:
        del self._open[call.bit]
        self._free_bits.append(call.bit)
        self._states = {(value, done & ~call.bit) for value, done in self._states}

    def _reach(self, call: _Call) -> set[_State]:
        """All states in which the call has just taken effect, or had before."""
        seen, ahead, kept = set(self._states), list(self._states), set[_State]()
        while ahead:
            state = ahead.pop()
            if state[1] & call.bit:
                kept.add(state)
                continue
            new = self._steps(*state) - seen
            seen |= new
            ahead += new
            if len(seen) > STATES_MAX:
                raise NoVerdict(f"more than {STATES_MAX} states at {call.operation}")
        if not kept:
            self._states = seen
        return kept

    def _thriftiest(self, states: set[_State]) -> set[_State]:
        """Without those that differ from another one only by more unknown effects used up."""
        optional = sum(call.bit for call in self._open.values() if call.is_optional)
        if not optional or len(states) == 1:
            return states
        alike: dict[_State, list[int]] = defaultdict(list)
        for value, done in states:
            alike[value, done & ~optional].append(done & optional)
        return {
            (value, done | used)
            for (value, done), uses in alike.items()
            for used in uses
            if not any(less != used and less & used == less for less in uses)
        }

    def _steps(self, value: Value, done: int) -> set[_State]:
        """Where the open writes and compare-and-sets lead from here, one at a time."""
        waiting = [call for bit, call in self._open.items() if not done & bit]
        needed = {call.needs for call in waiting}
        return {
            self._after_reads(call.value, done | call.bit)
            for call in _without_twins(waiting)
            if not call.is_read
            and call.can_follow(value)
            # Without need, an unknown one is left alone: later is as good, and never is better.
            and (call.value in needed or not call.is_optional)
        }

    def _after_reads(self, value: Value, done: int) -> _State:
        """Reads that fit take effect at once: they change no state."""
        for bit, call in self._open.items():
            if call.is_read and call.needs == value:
                done |= bit
        return value, done


def _without_twins(calls: list[_Call]) -> Iterable[_Call]:
    """Of unknown ones that do the same, the first: it does not matter which of them did it."""
    return {
        (call.needs, call.value) if call.is_optional else call: call for call in reversed(calls)
    }.values()
