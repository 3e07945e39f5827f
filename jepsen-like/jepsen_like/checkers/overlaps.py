"""Anomaly: two members of a group owned one partition at the same time.

Counts, by key: a member that was assigned a partition which another one, by its own events, still
owned; records handed out to a member after another one of the same or a later generation had been
assigned the partition; and records handed out to members without it. Of a loss a member is notified
late: then only the hand-outs count. All times are of one clock, in one process with all members.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import End

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.group_columns import Group, Ownership, Taken


def check(account: Account) -> list[Finding]:
    found, ownerships = Findings("overlap"), 0
    for group in account.groups.groups.values():
        for key, owns in group.ownerships.items():
            ownerships += len(owns)
            _check_ends(group, key, owns, found)
            _check_taken(group, key, owns, found)
        for key, taken in group.unowned:
            found.add(partial(_unowned_sentence, group, key, taken))
    return [found.finding(times_a_partition_was_given=ownerships)]


def _check_ends(group: Group, key: str, owns: list[Ownership], found: Findings) -> None:
    """Of consecutive owners only: who keeps a partition too long overlaps with the next one."""
    for before, after in pairwise(owns):
        if before.end is not End.LOST and after.began < before.ended:
            found.add(partial(_own_sentence, group, key, before, after))


def _check_taken(group: Group, key: str, owns: list[Ownership], found: Findings) -> None:
    begins = [own.began for own in owns]
    for number, own in enumerate(owns[:-1]):
        following = owns[number + 1 :]
        for taken in own.taken:
            count = bisect_left(begins, taken.completed) - number - 1
            later = [
                one
                for one in following[:count]
                if one.member != own.member and one.generation >= own.generation
            ]
            if later:
                found.add(partial(_taken_sentence, group, key, own, taken, later[0]))


def _own_sentence(group: Group, key: str, before: Ownership, after: Ownership) -> str:
    return f"group {group.name!r}, key {key!r}: {before}; {after}"


def _taken_sentence(group: Group, key: str, own: Ownership, taken: Taken, later: Ownership) -> str:
    what = f"offset {taken.offsets[0]} was handed out in event {taken.completed}"
    return f"group {group.name!r}, key {key!r}: {what} to one of two: {own}; {later}"


def _unowned_sentence(group: Group, key: str, taken: Taken) -> str:
    return (
        f"group {group.name!r}, key {key!r}: offset {taken.offsets[0]} was handed out in event "
        f"{taken.completed} to {taken.member}, which did not have the partition"
    )
