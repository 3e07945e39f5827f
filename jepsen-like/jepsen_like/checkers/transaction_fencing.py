"""Anomalies of owners and versions: what a replaced owner did, or a version that was done twice.

An owner is replaced once another one of its id, which began to open after it had, was answered.
`zombie-write` counts transactions that are committed, though a record was sent by their owner when
it was replaced; `zombie-end` those of which the commit was first asked then. `version-twice` counts
versions of an id that more than one transaction has committed, or that a client was told to be done
although nobody can have committed it, or a higher one. Versions of shared transactions, which have
members in place of owners, are judged by `transaction_versions`.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers import transaction_versions
from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.transaction_columns import NO_VERSION, Told

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.transaction_account import TransactionAccount
    from jepsen_like.checkers.transaction_columns import Owner, Transaction


def check(account: Account) -> list[Finding]:
    writes, ends, versions = (
        Findings(name) for name in ("zombie-write", "zombie-end", "version-twice")
    )
    of = account.transactions
    for one in of.happened:
        if one.has_effects and not one.is_member:  # else its SDK asked nobody
            _check_zombie(of, one, writes, ends)
    _check_versions(of, versions)
    transaction_versions.check_fencing(of, ends, versions)
    refused = sum(one.is_aborted and one.commit_asked < one.told_at for one in of.all)
    return [writes.finding(), ends.finding(commits_refused=refused), versions.finding()]


def _check_zombie(
    of: TransactionAccount, one: Transaction, writes: Findings, ends: Findings
) -> None:
    late = [sent for sent in one.sent if _successor(of, one.owner, sent.send.invoked)]
    if late:
        successor = _successor(of, one.owner, late[0].send.invoked)
        writes.add(
            lambda: (
                f"{one} is committed, though {late[0].value!r} of it was sent in event "
                f"{late[0].send.invoked}, {_replaced(successor)}"
            )
        )
    if successor := _successor(of, one.owner, one.commit_asked):
        ends.add(
            lambda: (
                f"{one} is committed, though that was asked for in event {one.commit_asked:g}, "
                f"{_replaced(successor)}"
            )
        )


def _successor(of: TransactionAccount, owner: Owner, event: float) -> Owner | None:
    others = of.owners[owner.id]
    return next((by for by in others if owner.is_replaced_before(event, by)), None)


def _replaced(by: Owner | None) -> str:
    assert by is not None
    return f"when process {by.process} had opened the id, which was answered in {by.completed:g}"


def _check_versions(of: TransactionAccount, found: Findings) -> None:
    done: dict[tuple[str, int], list[Transaction]] = defaultdict(list)
    possible: dict[str, int] = defaultdict(lambda: NO_VERSION)
    for one in of.single:
        if one.version == NO_VERSION or one.is_aborted:
            continue
        possible[one.owner.id] = max(possible[one.owner.id], one.version)
        if of.has_happened(one):
            done[one.owner.id, one.version].append(one)
    for (name, version), ones in done.items():
        if len(ones) > 1:
            found.add(partial(_twice_sentence, name, version, ones))
    for one in of.single:
        is_told = one.is_done or one.told is Told.BEFORE
        if is_told and one.version > possible[one.owner.id]:
            found.add(partial(_nobody_sentence, one))


def _twice_sentence(name: str, version: int, ones: list[Transaction]) -> str:
    return f"version {version} of {name!r} was committed by {' and by '.join(map(str, ones))}"


def _nobody_sentence(one: Transaction) -> str:
    return f"{one} was told that its version is done, but nobody has committed it or a higher one"
