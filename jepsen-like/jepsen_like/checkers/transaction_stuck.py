"""Anomaly: a transaction that holds up readers, or a commit that is not settled, at the very end.

Counts partitions whose last stable offset is below the high watermark, and ids with unsettled
commits, a minute after everything was repaired and when no client was left.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account


def check(account: Account) -> list[Finding]:
    found = Findings("stuck-transaction")
    for key, stable, end in account.transactions.stable or ():
        if stable < end:
            found.add(partial(_sentence, key, stable, end))
    for name in account.transactions.unsettled:
        found.add(partial("the last commit of {!r} is not settled".format, name))
    return [found.finding()]


def _sentence(key: str, stable: int, end: int) -> str:
    return (
        f"key {key!r}: no client is left, but the last stable offset is {stable}, and the high "
        f"watermark {end}"
    )
