"""Anomaly: a group with retries has not done all, in a cluster in which nothing is broken.

Counts keys of each group: those that it has not read to their end, and its topic of retries where
something waits. Judges runs that came to their final reads, before which fresh members had time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.retry_account import RetryGroup

SHOWN_MAX = 5  # offsets of what waits


def check(account: Account) -> list[Finding]:
    found = Findings("unfinished-retries")
    groups = account.retries.groups.values() if "final" in account.phases else ()
    for group in groups:
        if group.left is None:
            continue
        for lag in group.left.lags:
            found.add(partial(_lag_sentence, group, lag))
        if group.left.pending:
            found.add(partial(_pending_sentence, group, group.left.pending))
    return [found.finding()]


def _lag_sentence(group: RetryGroup, lag: tuple[str, int | None, int | None]) -> str:
    key, committed, end = lag
    return f"group {group.name!r}, key {key!r}: committed up to {committed}, and ends at {end}"


def _pending_sentence(group: RetryGroup, pending: Sequence[int]) -> str:
    more = "" if len(pending) <= SHOWN_MAX else f" and {len(pending) - SHOWN_MAX} more"
    shown = f"{list(pending[:SHOWN_MAX])}{more}"
    return f"group {group.name!r}: in its topic of retries {shown} still wait"
