"""Spans of a history: phases and faults, with begin and end. Pure.

Owns the pairing of their begins and ends. A fault without an end lasts to the end of the history;
one that was skipped is none.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.history.event import NEMESIS, RUN, Type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.event import Event

FAULTS, HEAL, FINAL, END = "faults", "heal", "final", "end"


class Phase(NamedTuple):
    """`[begin, end)` in seconds since the run began."""

    name: str
    begin: float
    end: float


class Fault(NamedTuple):
    """Attributes:
    begin, end: half-open, in seconds since the run began.
    whom: the role by which the nemesis chose the targets; may be empty.
    nodes: ids of the targets; empty for a fault of no node in particular.
    is_over: its end is recorded.
    is_felt: it was injected as planned, and had a target.
    """

    kind: str
    begin: float
    end: float
    whom: str
    nodes: tuple[int, ...]
    is_over: bool
    is_felt: bool

    def is_during(self, other: Fault) -> bool:
        return self.begin < other.end and other.begin < self.end


def end_of(history: Sequence[Event]) -> float:
    return history[-1].time if history else 0.0


def phases_of(history: Sequence[Event]) -> list[Phase]:
    """In order; the last one lasts to the end of the history. `END` is no phase but an end."""
    marks = [(_phase_name(event), event.time) for event in history if event.process == RUN]
    marks.append((END, end_of(history)))
    spans = [Phase(name, begin, end) for (name, begin), (_, end) in pairwise(marks)]
    return [phase for phase in spans if phase.name != END]


def _phase_name(event: Event) -> str:
    if event.f != "phase":
        return event.f
    return str(event.value.get("name") if isinstance(event.value, dict) else event.value)


def load_span(history: Sequence[Event]) -> tuple[float, float]:
    """When clients were busy: up to the final reads, or to the end where there are none."""
    phases = phases_of(history)
    begin = min((phase.begin for phase in phases), default=0.0)
    end = min((phase.begin for phase in phases if phase.name == FINAL), default=end_of(history))
    return begin, end


def is_run_to_its_end(history: Sequence[Event]) -> bool:
    return any(
        event.process == RUN and _phase_name(event) in {FINAL, END} for event in reversed(history)
    )


def faults_of(history: Sequence[Event]) -> list[Fault]:
    """By begin."""
    over = end_of(history)
    return [
        Fault(
            kind=begun.f,
            begin=begun.time,
            end=ended.time if ended else over,
            whom=_whom(begun.value),
            nodes=_nodes(begun.value) or (_nodes(ended.value) if ended else ()),
            is_over=ended is not None,
            is_felt=ended is None or _is_felt(ended.value),
        )
        for begun, ended in _pairs(history)
        if ended is None or not _is_skipped(ended)
    ]


def skipped_faults(history: Sequence[Event]) -> Counter[str]:
    """How many of each kind were planned and could not be done."""
    return Counter(begun.f for begun, ended in _pairs(history) if ended and _is_skipped(ended))


def _pairs(history: Sequence[Event]) -> list[tuple[Event, Event | None]]:
    pairs: list[tuple[Event, Event | None]] = []
    for event in history:
        if event.process != NEMESIS:
            continue
        if event.type is Type.INVOKE:
            pairs.append((event, None))
        elif (place := _begun_at(pairs, event)) is not None:
            pairs[place] = (pairs[place][0], event)
    return pairs


def _begun_at(pairs: list[tuple[Event, Event | None]], ended: Event) -> int | None:
    """The oldest that is open: one that hit the same nodes, else any of that kind."""
    same = [i for i, (begun, end) in enumerate(pairs) if end is None and begun.f == ended.f]
    nodes = _nodes(ended.value)
    exact = [i for i in same if nodes and _nodes(pairs[i][0].value) == nodes]
    return next(iter(exact or same), None)


def _is_felt(value: Any) -> bool:  # noqa: ANN401 - as the history has it
    """False where it failed, or its target did not run anyway."""
    told = value if isinstance(value, dict) else {}
    return not told.get("error") and all(told.get(how, True) for how in ("killed", "stopped"))


def _is_skipped(ended: Event) -> bool:
    if isinstance(ended.value, dict) and ended.value.get("skipped"):
        return True
    told = ended.value if isinstance(ended.value, str) else ended.error
    return (told or "").startswith("skipped")


def _whom(value: Any) -> str:  # noqa: ANN401 - as the history has it
    """With a "?" where the role's holder was not known, and a node was drawn."""
    if not isinstance(value, dict):
        return ""
    return str(value.get("whom") or "") + ("?" if value.get("guessed") else "")


def _nodes(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - as the history has it
    nodes = value.get("nodes") if isinstance(value, dict) else None
    return tuple(nodes or ())
