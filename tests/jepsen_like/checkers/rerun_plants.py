"""Takes a history of runs in which nothing is wrong, and makes one thing wrong in all logs.

Owns the planters of what only producers with names can bring: what they plant may show as other
kinds as well. An IndexError says that there is no place for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.jepsen_like.checkers.plants import Tampered


def _rows(history: Tampered, kind: Type) -> dict[int, list[int]]:
    """By generation, of those with a run that has ended so."""
    begun = {
        event.process: event.value
        for event in history.of("send", Type.INVOKE)
        if "name" in event.value
    }
    ended = [begun[event.process] for event in history.of("send", kind) if event.process in begun]
    return {value["generation"]: value["values"] for value in ended}


def _held(history: Tampered) -> list[Any]:
    batches = history.of("replica")[0].value["batches"]
    return [value for *_, values in batches for value in values]


def _told(history: Tampered) -> set[int]:
    """Offsets that somebody was told of."""
    ended = [*history.of("send"), *history.of("send", Type.INFO)]
    told = [event.value["offsets"] for event in ended if event.value]
    return {offset for offsets in told for offset in offsets if offset is not None}


def _append(history: Tampered, value: int) -> None:
    for event in history.of("replica"):
        offset = len(event.value["batches"])
        event.value["batches"].append([offset, 1, hash(value), [value]])
        event.value["high_watermark"] = offset + 1


def _put(history: Tampered, offset: int, value: int | None) -> None:
    for event in history.of("replica"):
        event.value["batches"][offset][3] = [value]


def twice(history: Tampered) -> None:
    """A run that was fenced gets one more row in, which stands there already."""
    held = _held(history)
    rows = [row for rows in _rows(history, Type.OK).values() for row in rows if row in held]
    _append(history, history.pick(rows))


def missing(history: Tampered) -> None:
    """A row was skipped that stands nowhere."""
    held, told = _held(history), _told(history)
    rows = [row for rows in _rows(history, Type.OK).values() for row in rows]
    offset = history.pick([held.index(row) for row in rows if held.index(row) not in told])
    _put(history, offset, None)


def hole(history: Tampered) -> None:
    """What comes after a row arrived, and the row has not; nobody was told of an end."""
    held, told, finished = _held(history), _told(history), _rows(history, Type.OK)
    open_rows = [
        pair
        for generation, rows in _rows(history, Type.INFO).items()
        for pair in pairwise(rows)
        if generation not in finished
    ]
    places = [held.index(row) for row, after in open_rows if row in held and after in held]
    _put(history, history.pick([place for place in places if place not in told]), None)


def out_of_order(history: Tampered) -> None:
    """Two rows have changed their places."""
    held, told = _held(history), _told(history)
    pairs = [pair for rows in _rows(history, Type.OK).values() for pair in pairwise(rows)]
    places = [(held.index(one), held.index(other)) for one, other in pairs]
    first, second = history.pick([pair for pair in places if told.isdisjoint(pair)])
    one, other = held[first], held[second]
    _put(history, first, other)
    _put(history, second, one)


def old_generation(history: Tampered) -> None:
    """A row of a generation that nobody has finished comes when a later one has begun."""
    held, finished = _held(history), _rows(history, Type.OK)
    begun = [generation for generation, rows in finished.items() if rows]
    left = [
        next(row for row in rows if row not in held)
        for generation, rows in _rows(history, Type.INFO).items()
        if generation < max(begin for begin in begun) and not set(rows) <= set(held)
    ]
    _append(history, history.pick(left))


RERUN_PLANTS: dict[str, Callable[[Tampered], None]] = {
    "a row that stands twice": twice,
    "a row that is missing": missing,
    "a row that was left out": hole,
    "rows out of order": out_of_order,
    "a row of an old generation": old_generation,
}
