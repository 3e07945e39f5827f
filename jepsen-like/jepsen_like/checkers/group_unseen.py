"""Anomaly: a promised value was handed out to no member of a group that reads from the beginning.

Counts values, for each group. Judges runs that came to their final reads: until then values may be
late. With commits before the work, records that were being processed when a member died are left
out: below the committed offset that is a figure only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import BEFORE, NOTHING
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Value
    from jepsen_like.checkers.group_columns import Group


def check(account: Account) -> list[Finding]:
    found, left_out, lightly = Findings("group-unseen"), 0, 0
    groups = account.groups.groups.values() if "final" in account.phases else ()
    for group in groups:
        for key in (account.keys[name] for name in group.keys if name in account.keys):
            seen = group.values(key.key)
            for value in _missing(key, key.promised, seen):
                if _may_be_left_out(group, key, value):
                    left_out += 1
                else:
                    found.add(partial(_sentence, group, key, value))
            lightly += len(_missing(key, key.unpromised, seen))
    figures = {"handed_out": account.groups.taken_count, "left_out": left_out}
    return [found.finding(**figures, unseen_lightly=lightly)]


def _missing(
    key: KeyAccount, acknowledged: dict[Value, int | None], seen: set[Value]
) -> list[Value]:
    return [value for value in acknowledged if value not in seen and not key.may_be_deleted(value)]


def _may_be_left_out(group: Group, key: KeyAccount, value: Value) -> bool:
    """It may have been committed by a member that crashed before it was handed out."""
    place = key.place(value)
    if group.commit != BEFORE or place is None:
        return False
    tried = (one for one in group.commits if one.outcome is not Type.FAIL)
    return place < max((one.offsets.get(key.key, NOTHING) for one in tried), default=NOTHING)


def _sentence(group: Group, key: KeyAccount, value: Value) -> str:
    place = key.place(value)
    where = "" if place is None else f" at offset {place}"
    return (
        f"group {group.name!r}, key {key.key!r}, value {value!r}, acknowledged{where} in event "
        f"{key.senders[value].completed}: no member was ever handed it out"
    )
