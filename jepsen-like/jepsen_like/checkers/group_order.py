"""Anomaly: a group member got records out of order, or did not begin at the committed offset.

Counts steps from one record to the next while one member owns a partition. The first step is that
from the committed offset that it fetched; without one it begins at the beginning. Offsets at which
nothing was ever seen may be empty.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import NOTHING

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount
    from jepsen_like.checkers.group_columns import Group, Ownership


def check(account: Account) -> list[Finding]:
    found = Findings("group-order")
    for group in account.groups.groups.values():
        for name, owns in group.ownerships.items():
            if key := account.keys.get(name):
                for own in owns:
                    _check_ownership(group, key, own, found)
    return [found.finding()]


def _check_ownership(group: Group, key: KeyAccount, own: Ownership, found: Findings) -> None:
    """`expected`: the next offset, where it is known."""
    expected = 0 if own.start == NOTHING else own.start
    for offset in chain.from_iterable(taken.offsets for taken in own.taken):
        if expected is not None:
            _check_step(group, key, own, expected, offset, found)
        expected = offset + 1


def _check_step(
    group: Group, key: KeyAccount, own: Ownership, expected: int, offset: int, found: Findings
) -> None:
    if offset < expected:
        found.add(partial(_sentence, group, key, own, offset, f"after offset {expected - 1}"))
    elif offset > expected:
        skipped = key.order.first_held(max(expected, key.log_start), offset)
        if skipped is not None:
            what = f"though offset {skipped} holds {key.order.at[skipped]!r}"
            found.add(partial(_sentence, group, key, own, offset, what))


def _sentence(group: Group, key: KeyAccount, own: Ownership, offset: int, what: str) -> str:
    event = next(taken.completed for taken in own.taken if offset in taken.offsets)
    begin = "" if own.start is None else f" and began at {max(own.start, 0)}"
    return (
        f"group {group.name!r}, key {key.key!r}: {own}{begin}; it was handed out offset {offset} "
        f"in event {event}, {what}"
    )
