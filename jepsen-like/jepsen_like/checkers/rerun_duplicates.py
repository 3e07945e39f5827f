"""Anomaly: rows of a named producer that are not in the log once and in order after all runs.

Counts rows. All runs of one generation send the same rows of a key in the same order, so each is in
the log once at most, behind all rows before it, which are all there, and behind all generations
before; once a run has ended without an error, all are there. Rows that may have been deleted are
not judged: a name may be forgotten with them. Without the replicas' logs missing rows are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Send, Value

Label: TypeAlias = tuple[str, int]  # name and generation


@dataclass(eq=False)
class _Generation:
    """What it has in one key. `finished`: the event in which the first run had ended."""

    label: Label
    rows: list[Value] = field(default_factory=list)
    finished: int | None = None

    def take(self, send: Send) -> None:
        self.rows = max(self.rows, send.values, key=len)
        if send.outcome is Type.OK and self.finished is None:
            self.finished = send.completed

    def __str__(self) -> str:
        name, generation = self.label
        return f"generation {generation} of {name!r}"


def runs(account: Account) -> Iterator[Send]:
    """What each run was to send to each key."""
    sends = chain.from_iterable(key.sends for key in account.keys.values())
    return (send for send in sends if send.label is not None)


def finished_count(account: Account) -> int:
    """Generations of which a run was told that it has ended."""
    return len({send.label for send in runs(account) if send.outcome is Type.OK})


def check(account: Account) -> list[Finding]:
    found, rows = Findings("rerun-duplicate"), 0
    for key in account.keys.values():
        if key.log_start == 0:
            for generations in _by_name(key).values():
                rows += sum(len(generation.rows) for generation in generations)
                _check_name(key, generations, found)
    return [found.finding(rows_judged=rows)]


def _by_name(key: KeyAccount) -> dict[str, list[_Generation]]:
    generations: dict[Label, _Generation] = {}
    for send in key.sends:
        if send.label is not None:
            generations.setdefault(send.label, _Generation(send.label)).take(send)
    by_name: dict[str, list[_Generation]] = {}
    for label in sorted(generations):
        by_name.setdefault(label[0], []).append(generations[label])
    return by_name


def _check_name(key: KeyAccount, generations: list[_Generation], found: Findings) -> None:
    for generation in generations:
        for value in generation.rows:
            if value in key.order.copies:
                found.add(partial(_copies_sentence, key, generation, value))
        if key.replicas:
            for value in _missing(key, generation):
                found.add(partial(_missing_sentence, key, generation, value))
    _check_order(key, generations, found)


def _missing(key: KeyAccount, generation: _Generation) -> list[Value]:
    """All rows of a finished generation; else those before a row that is in the log."""
    places = [key.order.first(value) for value in generation.rows]
    end = len(places)
    if generation.finished is None:
        end = max((index for index, place in enumerate(places) if place is not None), default=0)
    pairs = zip(generation.rows[:end], places[:end], strict=True)
    return [value for value, place in pairs if place is None]


def _check_order(key: KeyAccount, generations: list[_Generation], found: Findings) -> None:
    """Along the log: a row behind a later row is out of order."""
    rows = [(generation, value) for generation in generations for value in generation.rows]
    places = ((key.order.first(value), number) for number, (_, value) in enumerate(rows))
    latest = -1
    for _, number in sorted((place, number) for place, number in places if place is not None):
        if number < latest:
            found.add(partial(_order_sentence, key, *rows[number], rows[latest][1]))
        latest = max(latest, number)


def _copies_sentence(key: KeyAccount, generation: _Generation, value: Value) -> str:
    order = key.order
    places = "; ".join(f"{at} ({order.witness(at, value)})" for at in order.copies[value])
    return f"key {key.key!r}, {generation}: row {value!r} is at offsets {places}"


def _missing_sentence(key: KeyAccount, generation: _Generation, value: Value) -> str:
    why = f"a run was told in event {generation.finished} that all stand there"
    if generation.finished is None:
        why = "rows that come after it stand there"
    return f"key {key.key!r}, {generation}: row {value!r} is in no log, though {why}"


def _order_sentence(key: KeyAccount, generation: _Generation, value: Value, before: Value) -> str:
    first = key.order.first
    return (
        f"key {key.key!r}, {generation}: row {value!r} stands at offset {first(value)}, behind "
        f"{before!r}, which comes after it, at offset {first(before)}"
    )
