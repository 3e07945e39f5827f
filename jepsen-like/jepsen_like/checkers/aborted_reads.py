"""Anomaly: a value whose send failed for certain was read, or is in a log (aborted read).

Counts values. A value that was also sent by an operation that may have happened is no anomaly.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Send, Value


def check(account: Account) -> list[Finding]:
    found = Findings("aborted-read")
    for key in account.keys.values():
        for send in (*key.sends, *key.scheduled):
            _check_send(key, send, found)
    return [found.finding()]


def _check_send(key: KeyAccount, send: Send, found: Findings) -> None:
    for value in send.failed:
        is_there = value in key.read_values or value in key.kept_values
        if is_there and value not in key.senders:
            found.add(partial(_sentence, key, send, value))


def _sentence(key: KeyAccount, send: Send, value: Value) -> str:
    return (
        f"key {key.key!r}, value {value!r}: its send certainly failed (event {send.completed}), "
        f"but it was found: {key.sighting(value)}"
    )
