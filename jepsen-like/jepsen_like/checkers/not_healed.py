"""Anomaly: a cluster that did not recover between the end of the faults and the final reads.

Owns the promise that everything heals once no fault is left. Counts keys to which no send succeeded
while all replicas were reported in sync; and once that they never were, or that the watcher got no
answer. Judges runs that came to their final reads, and that had a watcher.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount


def check(account: Account) -> list[Finding]:
    found = Findings("not-healed")
    if {"heal", "final"} <= account.phases.keys():
        looks = account.looks
        if looks.is_silent:
            found.add(lambda: f"{_since(account)}nobody said any more how the replicas were")
        elif looks.is_whole is False and not looks.was_whole:
            found.add(lambda: f"{_since(account)}some replica had never been in sync")
        elif looks.whole_since is not None:
            for key in account.keys.values():
                _check_key(key, looks.whole_since, found)
    return [found.finding()]


def _since(account: Account) -> str:
    healing, final = account.phases["heal"], account.phases["final"]
    return (
        f"nothing was broken from event {healing} on, and when the last reads began, in event "
        f"{final}, "
    )


def _check_key(key: KeyAccount, whole_since: int, found: Findings) -> None:
    """One failed send may be chance; all of them are not."""
    sends = [send for send in key.sends if send.invoked > whole_since]
    if sends and all(send.outcome is not Type.OK for send in sends):
        found.add(partial(_sentence, key, whole_since, len(sends), sends[0].invoked))


def _sentence(key: KeyAccount, whole_since: int, count: int, first: int) -> str:
    return (
        f"key {key.key!r}: all replicas were in sync from event {whole_since} on, but of {count} "
        f"sends since then, the first in event {first}, none ended well"
    )
