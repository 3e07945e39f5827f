"""Anomaly: a promised value is in no final read, when everything was read once more.

Counts values. Judges keys that a process began to read from the beginning in the phase "final", and
no history without them. Values that were read earlier, but not again, count, too. A value may be
lost, or the final reads gave up too soon. Values in transactions are other checkers'.
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
    found, never_read, lightly = Findings("unseen"), 0, 0
    for key in (account.keys[name] for name in sorted(account.final_keys & account.keys.keys())):
        seen = _seen_since(key, account.phases["final"])
        missing = _missing(key, key.promised, seen)
        for value in missing:
            found.add(partial(_sentence, key, value))
        never_read += sum(value not in key.read_values for value in missing)
        lightly += len(_missing(key, key.unpromised, seen))
    return [found.finding(never_read=never_read, unseen_lightly=lightly)]


def _seen_since(key: KeyAccount, event: int) -> set[Value]:
    return set(chain.from_iterable(read.values for read in key.reads if read.invoked > event))


def _missing(
    key: KeyAccount, acknowledged: dict[Value, int | None], seen: set[Value]
) -> list[Value]:
    if not acknowledged.keys() - seen:
        return []
    return [
        value
        for value in acknowledged
        if value not in seen and key.in_transaction(value) is None and not key.may_be_deleted(value)
    ]


def _sentence(key: KeyAccount, value: Value) -> str:
    place = key.place(value)
    where = "" if place is None else f" at offset {place}"
    before = key.sighting(value) if value in key.read_values else "never read"
    return (
        f"key {key.key!r}, value {value!r}, acknowledged{where} in event "
        f"{key.senders[value].completed}: not in the last reads; before, it was {before}"
    )
