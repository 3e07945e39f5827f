"""Anomaly: a group's committed offset went back without a commit that asked for it.

Counts observations, a commit that succeeded or an offset that was fetched, that are lower than one
that had completed before they began. Those that overlap have no order. A member that commits before
records are handed out may give back records that were not: that is allowed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import BEFORE, NOTHING
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.group_columns import Commit, Group, Ownership, Taken


class _Seen(NamedTuple):
    """`what`: a description with the process; `is_return`: gives back records not handed out."""

    offset: int
    invoked: int
    completed: float
    what: str
    is_return: bool = False


def check(account: Account) -> list[Finding]:
    found = Findings("commit-back")
    for group in account.groups.groups.values():
        for key in group.keys:
            _check_key(group, key, list(_observations(group, key)), found)
    return [found.finding()]


def _observations(group: Group, key: str) -> Iterator[_Seen]:
    taken = [one for _, one in group.owned(key)]
    for commit in group.commits:
        if key in commit.offsets and commit.outcome is Type.OK:
            what = f"committed by {commit.member}, generation {commit.generation},"
            is_return = group.commit == BEFORE and _is_return(group, key, commit, taken)
            yield _Seen(commit.offsets[key], commit.invoked, commit.completed, what, is_return)
    for fetch in group.fetches:
        if key in fetch.offsets:
            what = f"fetched by {fetch.member}"
            yield _Seen(fetch.offsets[key], fetch.invoked, fetch.completed, what)


def _is_return(group: Group, key: str, commit: Commit, taken: list[Taken]) -> bool:
    """The same owner may have committed more than it handed out, and give that back."""
    offset = commit.offsets[key]
    had_since = max(
        (own.began for own in group.ownerships.get(key, ()) if _is_before(own, commit)),
        default=commit.invoked,
    )
    had_more = any(
        one.member == commit.member
        and had_since < one.invoked < commit.invoked
        and one.outcome is not Type.FAIL
        and one.offsets.get(key, NOTHING) > offset
        for one in group.commits
    )
    return had_more and not any(
        one.completed < commit.invoked and one.offsets[-1] >= offset for one in taken
    )


def _is_before(own: Ownership, commit: Commit) -> bool:
    return own.member == commit.member and own.began < commit.invoked


def _check_key(group: Group, key: str, observations: list[_Seen], found: Findings) -> None:
    by_end = sorted(observations, key=lambda seen: seen.completed, reverse=True)
    highest: _Seen | None = None
    begins_at: float = NOTHING  # what was seen before belongs to what was given back
    for seen in sorted(observations, key=lambda seen: seen.invoked):
        while by_end[-1].completed < seen.invoked:
            ended = by_end.pop()
            is_new = ended.is_return or ended.invoked > begins_at
            if is_new and (highest is None or ended.offset > highest.offset):
                highest = ended
        if seen.is_return:
            highest, begins_at = None, seen.completed
        elif highest is not None and seen.offset < highest.offset:
            found.add(partial(_sentence, group, key, highest, seen))


def _sentence(group: Group, key: str, before: _Seen, seen: _Seen) -> str:
    return (
        f"group {group.name!r}, key {key!r}: offset {before.offset} was {before.what} in event "
        f"{before.completed:g}, and then {seen.offset} was {seen.what} in event {seen.completed:g}"
        f", begun in event {seen.invoked}"
    )
