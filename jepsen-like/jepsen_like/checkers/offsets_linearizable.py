"""Anomaly: commits and fetches of a group's offset that are not linearizable.

Counts partitions of groups. A commit is a write, a fetched offset is a read; times are indexes of
events. A history that needs too long a search counts as wrong: it is not known to be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.group_columns import NOTHING
from jepsen_like.checkers.linearizable import NoVerdict, check_key
from jepsen_like.checkers.registers import Kind, Operation, Outcome
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.group_columns import Group

OUTCOMES = {Type.OK: Outcome.OK, Type.FAIL: Outcome.FAIL, Type.INFO: Outcome.INFO}


def check(account: Account) -> list[Finding]:
    found, without_verdict, count = Findings("offset-linearizable"), 0, 0
    for group in account.groups.groups.values():
        for key in group.keys:
            operations = list(_operations(group, key))
            count += len(operations)
            try:
                violation = check_key(operations, initial=NOTHING)
            except NoVerdict as error:
                without_verdict += 1
                found.add(f"{group.name}/{key} has no verdict: {error}".__str__)
            else:
                if violation is not None:
                    found.add(violation.__str__)
    return [found.finding(commits_and_fetches=count, without_verdict=without_verdict)]


def _operations(group: Group, key: str) -> Iterator[Operation]:
    """Numbered in place of processes: a client commits and fetches side by side."""
    register, number = f"{group.name}/{key}", 0
    for commit in group.commits:
        if key in commit.offsets:
            number += 1
            yield Operation(
                process=number,
                kind=Kind.WRITE,
                key=register,
                outcome=OUTCOMES[commit.outcome],
                invoked_at=commit.invoked,
                returned_at=commit.completed,
                value=commit.offsets[key],
            )
    for fetch in group.fetches:
        if key in fetch.offsets:
            number += 1
            yield Operation(
                process=number,
                kind=Kind.READ,
                key=register,
                outcome=Outcome.OK,
                invoked_at=fetch.invoked,
                returned_at=fetch.completed,
                value=fetch.offsets[key],
            )
