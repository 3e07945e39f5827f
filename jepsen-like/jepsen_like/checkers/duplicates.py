"""Anomaly: one value at two offsets, though its producer was idempotent or its client sent it once.

Counts values. A value of an idempotent producer is in the log once, or not at all, for any outcome
and any number of retries. Of other producers a retry, or an unknown outcome, may leave copies:
those are a figure only. A value that fewer than all acknowledged at one offset, and that is at
another one, must be there twice as well. Values that were never sent are another checker's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Value


def check(account: Account) -> list[Finding]:
    found, allowed = Findings("duplicate"), 0
    for key in account.keys.values():
        for value in key.order.copies:
            if key.stands_once(value):
                found.add(partial(_sentence, key, value))
            else:
                allowed += 1
        for value, told in _moved(key):
            found.add(partial(_moved_sentence, key, value, told))
    return [found.finding(copies_allowed=allowed)]


def _moved(key: KeyAccount) -> Iterator[tuple[Value, int]]:
    """Values, and the offset at which they were acknowledged, and are not."""
    for value, told in key.lightly.items():
        place = key.order.first(value)
        if told is None or place is None or place == told:
            continue
        if value not in key.order.copies and key.stands_once(value):
            yield value, told


def _moved_sentence(key: KeyAccount, value: Value, told: int) -> str:
    sent = key.senders[value]
    return (
        f"key {key.key!r}, value {value!r}, sent once in event {sent.invoked}, was acknowledged at "
        f"offset {told} in event {sent.completed}, but was {key.sighting(value)}"
    )


def _sentence(key: KeyAccount, value: Value) -> str:
    order = key.order
    places = "; ".join(f"{at} ({order.witness(at, value)})" for at in order.copies[value])
    sent = key.senders[value].invoked
    return f"key {key.key!r}, value {value!r}, sent once in event {sent}, is at offsets {places}"
