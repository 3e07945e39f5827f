"""Anomaly: a commit of an old generation succeeded after the group had moved on (zombie member).

Counts commits. A group has moved on for certain once a member has seen a later generation, or has
committed in it, before the commit was invoked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.group_columns import Commit, Group


class _Proof(NamedTuple):
    """That there was a generation when `event` came."""

    event: float
    generation: int


def check(account: Account) -> list[Finding]:
    found, refused = Findings("zombie-commit"), 0
    for group in account.groups.groups.values():
        _check_group(group, found)
        refused += sum(commit.outcome is Type.FAIL for commit in group.commits)
    return [found.finding(commits_refused=refused)]


def _check_group(group: Group, found: Findings) -> None:
    proofs = sorted(_proofs(group), reverse=True)
    newest = _Proof(-1, -1)
    for commit in sorted(group.commits, key=lambda commit: commit.invoked):
        while proofs and proofs[-1].event < commit.invoked:
            proof = proofs.pop()
            newest = max(newest, proof, key=lambda proof: proof.generation)
        if commit.outcome is Type.OK and 0 <= commit.generation < newest.generation:
            found.add(partial(_sentence, group, commit, newest))


def _proofs(group: Group) -> Iterator[_Proof]:
    for owns in group.ownerships.values():
        for own in owns:
            yield _Proof(own.began, own.generation)
    for commit in group.commits:
        if commit.outcome is Type.OK:
            yield _Proof(commit.completed, commit.generation)


def _sentence(group: Group, commit: Commit, newest: _Proof) -> str:
    return (
        f"group {group.name!r}: {commit.member} committed in generation {commit.generation}, begun "
        f"in event {commit.invoked} and done in event {commit.completed:g}, though event "
        f"{newest.event:g} had told of generation {newest.generation}"
    )
