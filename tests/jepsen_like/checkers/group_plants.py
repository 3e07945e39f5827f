"""Takes a history of a group in which nothing is wrong, and makes one thing wrong.

Owns one planter, or more, for each kind of finding that only groups can bring: what they plant may
show as other kinds as well. An IndexError says that there is no place for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import Event, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.jepsen_like.checkers.plants import Tampered


def _takes(history: Tampered) -> list[Event]:
    return [event for event in history.of("take") if event.value["offsets"]]


def _insert(history: Tampered, place: int, *events: Event) -> None:
    """Before the event of that number."""
    history.events[place:place] = events
    history.events = [
        Event(index, index / 10, *_rest(event)) for index, event in enumerate(history.events)
    ]


def _rest(event: Event) -> tuple[Any, ...]:
    return event.process, event.type, event.f, event.value, event.node, event.error


def _event(process: Any, kind: Type, f: str, value: Any) -> Event:
    return Event(0, 0.0, process, kind, f, value)


def group_unseen(history: Tampered) -> None:
    """A record is in nobody's hands."""
    offset = history.pick([at for event in _takes(history) for at in event.value["offsets"]])
    for event in _takes(history):
        told = event.value
        if offset in told["offsets"]:
            place = told["offsets"].index(offset)
            del told["offsets"][place], told["values"][place]


def overlap(history: Tampered) -> None:
    """One more member is given what somebody has, and still has later."""
    takes = _takes(history)
    takes = [one for one, after in pairwise(takes) if one.process == after.process]
    event = history.pick(takes)
    told = {"assigned": ["k"], "generation": 1_000}
    _insert(
        history,
        event.index + 1,
        _event("g/late", Type.INFO, "member", {"group": "g"}),
        _event("g/late", Type.INFO, "rebalance", told),
    )


def strange_hand_out(history: Tampered) -> None:
    """Somebody who was given nothing is handed out something."""
    event = history.pick(_takes(history))
    _insert(
        history,
        event.index + 1,
        _event("g/late", Type.INFO, "member", {"group": "g"}),
        _event("g/late", Type.OK, "take", event.value),
    )


def zombie_commit(history: Tampered) -> None:
    """A commit that was refused, or is one more, of the first generation: it is carried out."""
    proofs = [one for one in history.of("rebalance", Type.INFO) if one.value.get("assigned")]
    proof = history.pick(proofs[1:])
    generation = proofs[0].value["generation"]
    asked = {"number": 9_999, "group": "g", "generation": generation, "member_id": "g/1"}
    _insert(
        history,
        proof.index + 1,
        _event("g/1", Type.INVOKE, "commit", {**asked, "offsets": [["k", 0]]}),
        _event("g/1", Type.OK, "commit", {"number": 9_999}),
    )


def commit_back(history: Tampered) -> None:
    """After some commit was done, one of less is done as well."""
    numbers = {event.value["number"] for event in history.of("commit")}
    asked = [
        event
        for event in history.of("commit", Type.INVOKE)
        if event.value["number"] in numbers and event.value["offsets"][0][1] > 0
    ]
    began = history.pick(asked)
    number = began.value["number"]
    ended = next(one for one in history.of("commit") if one.value["number"] == number)
    again = {**began.value, "number": 9_999, "offsets": [["k", began.value["offsets"][0][1] - 1]]}
    _insert(
        history,
        ended.index + 1,
        _event(began.process, Type.INVOKE, "commit", again),
        _event(began.process, Type.OK, "commit", {"number": 9_999}),
    )


def group_duplicate(history: Tampered) -> None:
    """A member that is new is handed out what another one has in hand, and does not give up."""
    overlap(history)
    late = next(event for event in history.events if event.process == "g/late")
    before = [event for event in _takes(history) if event.index < late.index][-1]
    taken = _event("g/late", Type.OK, "take", before.value)
    _insert(history, late.index + 2, taken)
    lost = [
        event
        for event in history.of("rebalance", Type.INFO)
        if event.process == before.process and "lost" in event.value
    ]
    for event in lost:
        event.value["revoked"] = event.value.pop("lost")


def group_order(history: Tampered) -> None:
    """The first of a few records comes last."""
    event = history.pick([one for one in _takes(history) if len(one.value["offsets"]) > 1])
    for column in ("offsets", "values"):
        event.value[column].append(event.value[column].pop(0))


def group_skip(history: Tampered) -> None:
    """A hand-out begins one record too late, and what was left out comes to somebody, once."""
    event = history.pick([one for one in _takes(history) if len(one.value["offsets"]) > 1])
    for column in ("offsets", "values"):
        event.value[column].pop(0)


def offset_linearizable(history: Tampered) -> None:
    """Somebody is told of an offset that nobody has committed."""
    event = history.pick([one for one in history.of("committed") if one.process == "asking"])
    event.value["offsets"][0][1] = 9_999


GROUP_PLANTS: dict[str, tuple[str, Callable[[Tampered], None]]] = {
    "a record that nobody gets": ("group-unseen", group_unseen),
    "two who have a partition": ("overlap", overlap),
    "somebody who has nothing": ("overlap", strange_hand_out),
    "an old generation": ("zombie-commit", zombie_commit),
    "an offset that goes back": ("commit-back", commit_back),
    "a record that comes twice": ("group-duplicate", group_duplicate),
    "records out of order": ("group-order", group_order),
    "a record that is left out": ("group-order", group_skip),
    "an offset of nobody": ("offset-linearizable", offset_linearizable),
}
