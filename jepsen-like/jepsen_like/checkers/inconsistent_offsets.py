"""Anomaly: one offset of a key with two values; committed records never change.

Counts offsets. Which observations count is for `version_order` to say: an acknowledgement of fewer
than all may be replaced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount


def check(account: Account) -> list[Finding]:
    found = Findings("inconsistent-offsets")
    for key in account.keys.values():
        for offset in sorted(key.order.conflicts):
            found.add(partial(_sentence, key, offset))
    return [found.finding()]


def _sentence(key: KeyAccount, offset: int) -> str:
    values = key.order.conflicts[offset]
    seen = "; ".join(f"{value!r} ({key.order.witness(offset, value)})" for value in values)
    return f"key {key.key!r}, offset {offset} holds {seen}"
