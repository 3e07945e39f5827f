"""Client operations of a history: each invocation paired with its completion. Pure.

Owns the pairing by process and the counting of records in a value. An operation that never
completed ends with the history, as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.checkers.activity import BY_THE_WAY
from jepsen_like.history.event import ACKS_ALL, NAMED_SEND, Type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.history.event import Event

SEND, POLL, ASSIGN, CRASH = "send", "poll", "assign", "crash"


class Operation(NamedTuple):
    """Attributes:
    begin, end: seconds since the run began.
    asked: what the invocation carried.
    value: what the completion carried.
    """

    process: int
    f: str
    begin: float
    end: float
    outcome: Type
    asked: Any
    value: Any
    error: str | None

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def is_answered(self) -> bool:
        """Whether the system served it: it may refuse, without an error."""
        return self.outcome is Type.OK or (self.outcome is Type.FAIL and not self.error)

    @property
    def is_by_the_way(self) -> bool:
        """No use of the queue: an operation without a request, or of the watcher."""
        return self.f in BY_THE_WAY


def operations_of(history: Sequence[Event]) -> list[Operation]:
    """By the time of completion; those that never completed come last."""
    found: list[Operation] = []
    under_way: dict[int, Event] = {}
    for event in history:
        if not isinstance(event.process, int):
            continue
        if event.type is Type.INVOKE:
            under_way[event.process] = event
        else:
            found.append(_paired(under_way.pop(event.process, event), event))
    over = history[-1].time if history else 0.0
    return found + [_never_completed(event, over) for event in under_way.values()]


def _paired(invoked: Event, completed: Event) -> Operation:
    return Operation(
        process=int(invoked.process),
        f=NAMED_SEND if invoked.f == SEND and "name" in invoked.value else invoked.f,
        begin=invoked.time,
        end=completed.time,
        outcome=completed.type,
        asked=invoked.value,
        value=completed.value,
        error=completed.error,
    )


def _never_completed(invoked: Event, over: float) -> Operation:
    error = "never completed"
    return _paired(invoked, invoked)._replace(end=over, outcome=Type.INFO, error=error)


def acknowledged_offsets(operation: Operation) -> list[int]:
    """Of a send: an offset in the answer says that the value there was acknowledged."""
    if (
        operation.f not in (SEND, NAMED_SEND)
        or operation.outcome is Type.FAIL
        or not operation.value
    ):
        return []
    return [offset for offset in operation.value.get("offsets") or () if offset is not None]


def is_full_send(operation: Operation) -> bool:
    """Whether all replicas in sync had to have it before the answer, and readers get it then."""
    asked = operation.value or operation.asked or {}
    return operation.f == SEND and "due" not in asked and asked.get("acks") == ACKS_ALL


def polled_records(operation: Operation) -> Iterator[tuple[str, list[int]]]:
    """For each key the offsets that a poll brought."""
    if operation.f == POLL and operation.outcome is Type.OK and operation.value:
        for key, records in operation.value.get("records") or ():
            yield key, [offset for offset, _ in records]


def polled_count(operation: Operation) -> int:
    return sum(len(offsets) for _, offsets in polled_records(operation))
