"""Anomalies of shared transactions: versions in parts, lost, done twice, or by members left out.

A version is one transaction of all members that its commit lists. As `torn-transaction` count
listings of which some records can be seen in the end and some not; as `lost-transaction` versions
that somebody was told to be committed, and of which nothing is there. What a member sent that no
commit lists is an aborted transaction's. As `version-twice` count versions with two listings that
can both be seen, or were both told to be the first; that are opened again; that a client was told
to be done although nobody can have committed it, or a higher one; and those of another number of
rows than anybody has asked for. As `zombie-end`: listings of a member that was closed before.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers.transaction_columns import Told

if TYPE_CHECKING:
    from jepsen_like.checkers.finding import Findings
    from jepsen_like.checkers.transaction_account import TransactionAccount
    from jepsen_like.checkers.transaction_listings import (
        Done,
        Listing,
        Opened,
        SharedAccount,
        VersionKey,
    )


def check_effects(of: TransactionAccount, torn: Findings, lost: Findings) -> None:
    seen = {listing: _seen(of, listing) for listing in of.shared.listings}
    for listing, (there, missing) in seen.items():
        if there and missing:
            torn.add(partial(_torn_sentence, listing, there, missing))
    by_key = _by_key(of.shared)
    told: set[VersionKey] = set()
    for done in of.shared.dones:
        listings = by_key[done.key]
        known = [seen[one] for one in listings if one.may_have_happened]
        is_there = any(there or not missing for there, missing in known)
        if not is_there and done.key not in told and not _is_skipped(of.shared, done):
            told.add(done.key)
            lost.add(partial(_lost_sentence, done))


def _seen(of: TransactionAccount, listing: Listing) -> tuple[list[int], list[int]]:
    """Members with records that are there in the end, and with some that are not."""
    there, missing = [], []
    for one in of.shared.of(listing):
        looks = {of.is_visible(sent.key, sent.value) for sent in one.sent}
        if True in looks:
            there.append(one.number)
        if False in looks:
            missing.append(one.number)
    return there, missing


def _is_skipped(shared: SharedAccount, done: Done) -> bool:
    """A higher version may have been committed by then, and then this one never was."""
    return any(
        one.key[:2] == done.key[:2]
        and one.key.version > done.key.version
        and one.asked < done.completed
        and one.may_have_happened
        for one in shared.listings
    )


def check_fencing(of: TransactionAccount, ends: Findings, versions: Findings) -> None:
    shared = of.shared
    for key, listings in _by_key(shared).items():
        done = [one for one in listings if _has_happened(of, one)]
        if len(done) > 1:
            versions.add(partial(_twice_sentence, key, done))
        for one in done:
            if closed := shared.closed(one):
                ends.add(partial(_closed_sentence, one, closed))
    for told in shared.dones:
        _check_done(shared, told, versions)


def _has_happened(of: TransactionAccount, listing: Listing) -> bool:
    return listing.told is Told.COMMITTED or bool(_seen(of, listing)[0])


def _check_done(shared: SharedAccount, done: Done, found: Findings) -> None:
    same = [one for one in shared.listings if one.key[:2] == done.key[:2]]
    possible = [one for one in same if one.asked < done.completed and one.may_have_happened]
    if not any(one.key.version >= done.key.version for one in possible):
        found.add(partial(_nobody_sentence, done))
    counts = {count for one in possible if one.key == done.key for count in one.counts}
    if done.rows is not None and done.rows not in counts:
        found.add(partial(_count_sentence, done, counts))
    if again := next((one for one in shared.joined if _is_again(one, done)), None):
        found.add(partial(_again_sentence, again, done))


def _is_again(one: Opened, done: Done) -> bool:
    """It was opened once it was told to be committed; of joins, one told the other."""
    is_lower = one.key[:2] == done.key[:2] and one.key.version <= done.key.version
    return is_lower and done.completed < one.invoked and not done.is_join


def _by_key(shared: SharedAccount) -> dict[VersionKey, list[Listing]]:
    found: dict[VersionKey, list[Listing]] = defaultdict(list)
    for listing in shared.listings:
        found[listing.key].append(listing)
    return found


def _torn_sentence(listing: Listing, there: list[int], missing: list[int]) -> str:
    return f"{listing}: of {there} records are there in the end, of {missing} some are not"


def _lost_sentence(done: Done) -> str:
    return f"{_told(done)}, and of no commit of it anything is there in the end"


def _twice_sentence(key: VersionKey, listings: list[Listing]) -> str:
    return f"{key} was committed by {' and by '.join(map(str, listings))}"


def _closed_sentence(listing: Listing, closed: Opened) -> str:
    return f"{listing} has happened, though {closed.key} was begun or ended in {closed.completed}"


def _nobody_sentence(done: Done) -> str:
    return f"{_told(done)}, but nobody has committed it or a higher one"


def _count_sentence(done: Done, counts: set[int]) -> str:
    return f"{_told(done)}, with {done.rows} rows, but was asked with {sorted(counts)}"


def _again_sentence(one: Opened, done: Done) -> str:
    return f"{one.key} was joined in event {one.completed}, but before {_told(done)}"


def _told(done: Done) -> str:
    return f"{done.key} was told to be committed, in event {done.completed}"
