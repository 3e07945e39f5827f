"""Anomaly: a value that was never sent was read, or is in a log.

Counts values. A send that failed was tried: its value is another checker's.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Value


def check(account: Account) -> list[Finding]:
    found = Findings("unexpected-read")
    for key in account.keys.values():
        for value in sorted(_unexpected(key), key=repr):
            found.add(partial(_sentence, key, value))
    return [found.finding()]


def _unexpected(key: KeyAccount) -> set[Value]:
    sends = chain(key.sends, key.scheduled)
    attempted = set(chain.from_iterable(send.values for send in sends))
    kept = key.read_values | key.kept_values if key.kept_values else key.read_values
    return {value for value in kept - attempted if value is not None}


def _sentence(key: KeyAccount, value: Value) -> str:
    return f"key {key.key!r}, value {value!r}: nobody sent it, but it was {key.sighting(value)}"
