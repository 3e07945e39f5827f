"""How late scheduled records came: counts and percentiles, for the figures of a verdict.

Lateness is from the due time to the end of the poll that brought the record first, in all, and
apart for those around which nothing was broken. For these also to the delivery, by the clock of the
leader, as the record says.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.schedule_account import Scheduled

# Before the due time, without a fault: leaders are chosen anew, replicas come back.
CALM_SECONDS = 10.0
PERCENTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def figures(account: Account) -> dict[str, int]:
    """Milliseconds, and counts; empty where nothing was scheduled."""
    scheduled = account.schedule.scheduled
    if not scheduled:
        return {}
    read = [one for one in scheduled if one.first is not None]
    calm = [one for one in read if _is_calm(account, one)]
    return {
        "scheduled records acknowledged": sum(one.is_acknowledged for one in scheduled),
        "scheduled records delivered": delivered_count(account),
        "scheduled records cancelled": cancelled_count(account),
        "scheduled records not due": sum(
            one.is_acknowledged and one.first is None and not one.may_be_cancelled
            for one in scheduled
        ),
        **_milliseconds("late", [late for one in read for late in _lateness(one)]),
        "delivered in calm": len(calm),
        **_milliseconds("late in calm", [late for one in calm for late in _lateness(one)]),
        **_milliseconds(
            "late at the leader in calm",
            [late for one in calm for late in _leader_lateness(account, one)],
        ),
    }


def delivered_count(account: Account) -> int:
    return sum(one.first is not None for one in account.schedule.scheduled)


def cancelled_count(account: Account) -> int:
    return sum(one.cancelled is not None for one in account.schedule.scheduled)


def percentile(values: list[float], share: float) -> float:
    """By nearest rank: one of them. There is one."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _is_calm(account: Account, one: Scheduled) -> bool:
    assert one.first is not None, "it was read"
    began = min(one.due, one.first.time) - CALM_SECONDS  # it may be early, by a wrong clock
    return account.schedule.is_quiet(began, one.first.time)


def _lateness(one: Scheduled) -> Iterator[float]:
    if one.first is not None:
        yield one.first.time - one.due


def _leader_lateness(account: Account, one: Scheduled) -> Iterator[float]:
    assert one.first is not None, "it was read"
    stamp = account.schedule.stamps.get(one.key.key, {}).get(one.first.offset)
    if stamp is not None:
        yield stamp.at - stamp.due


def _milliseconds(what: str, seconds: list[float]) -> dict[str, int]:
    if not seconds:
        return {}
    return {
        f"ms {what} {name}": round(1000 * percentile(seconds, share))
        for name, share in PERCENTILES.items()
    }
