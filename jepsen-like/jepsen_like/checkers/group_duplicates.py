"""Anomaly: a record handed out twice within a group, though its partition kept its owner.

Counts hand-outs. With commits before the work there must never be a second one. With other modes
there may be one after a member has lost, given up or left its partitions, or has crashed: a figure
only. Twice to the same continuous owner is `group_order`'s.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import BEFORE, End

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.group_columns import Group, Ownership, Taken


class _HandOut(NamedTuple):
    own: Ownership
    taken: Taken


def check(account: Account) -> list[Finding]:
    found, again = Findings("group-duplicate"), 0
    for group in account.groups.groups.values():
        for key in group.ownerships:
            again += _check_key(group, key, found)
    return [found.finding(handed_out_again=again)]


def _check_key(group: Group, key: str, found: Findings) -> int:
    """How many were handed out again, and may have been."""
    last: dict[int, _HandOut] = {}
    again = 0
    for own, taken in group.owned(key):
        now = _HandOut(own, taken)
        for offset in taken.offsets:
            before = last.get(offset)
            last[offset] = now
            if before is None:
                continue
            if _may_be(group, before, now):
                again += 1
            else:
                found.add(partial(_sentence, group, key, offset, before, now))
    return again


def _may_be(group: Group, before: _HandOut, now: _HandOut) -> bool:
    if group.commit == BEFORE:
        return False
    if before.own is now.own:
        return True  # a matter of order
    return before.own.ended < now.taken.completed or before.own.end is End.LOST


def _sentence(group: Group, key: str, offset: int, before: _HandOut, now: _HandOut) -> str:
    return (
        f"group {group.name!r} (commit {group.commit!r}), key {key!r}: offset {offset} was handed "
        f"out in event {before.taken.completed} ({before.own}), and again in event "
        f"{now.taken.completed} ({now.own})"
    )
