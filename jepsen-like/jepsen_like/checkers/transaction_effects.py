"""Anomalies of effects: transactions in parts, lost, or with two results of one input.

`torn-transaction` (G1b) counts transactions of which some effects can be seen in the end and some
not: records, and offsets of groups. `lost-transaction` counts those that were answered to be
committed, and of which nothing is there; `lost-transaction-offset` offsets of groups that stand
behind a committed end. `duplicate-effect` counts inputs that have two visible results. Judges what
final readers or logs were there for.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.checkers import transaction_versions
from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.transaction_columns import Input

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.transaction_account import GroupKey, TransactionAccount
    from jepsen_like.checkers.transaction_columns import GroupOffset, Sent, Transaction


def check(account: Account) -> list[Finding]:
    torn, lost = Findings("torn-transaction"), Findings("lost-transaction")
    behind, twice = Findings("lost-transaction-offset"), Findings("duplicate-effect")
    results = 0
    if of := account.transactions:
        for one in of.all:
            _check_records(of, one, torn, lost)
        transaction_versions.check_effects(of, torn, lost)
        _check_offsets(of, torn, behind)
        results = _check_results(account, torn, twice)
    return [torn.finding(), lost.finding(), behind.finding(), twice.finding(results_seen=results)]


def _check_records(
    of: TransactionAccount, one: Transaction, torn: Findings, lost: Findings
) -> None:
    """An aborted one that can be seen is another checker's, unless it is seen in part only."""
    looks = [(of.is_visible(sent.key, sent.value), sent) for sent in one.sent]
    seen = [sent for is_visible, sent in looks if is_visible]
    unseen = [sent for is_visible, sent in looks if is_visible is False]
    if seen and unseen:
        torn.add(partial(_torn_sentence, one, seen, unseen))
    elif unseen and one.is_committed:
        lost.add(lambda: f"{one}: of its {len(unseen)} records none is there in the end")


def _torn_sentence(one: Transaction, seen: list[Sent], unseen: list[Sent]) -> str:
    there, gone = seen[0], unseen[0]
    return (
        f"{one}: {len(seen)} of its records are there in the end, as {there.value!r} of key "
        f"{there.key!r}, and {len(unseen)} are not, as {gone.value!r} of key {gone.key!r}"
    )


# -- offsets -----------------------------------------------------------------------------------


def _check_offsets(of: TransactionAccount, torn: Findings, behind: Findings) -> None:
    if of.group_offsets is None:
        return
    ends: dict[GroupKey, list[tuple[Transaction, GroupOffset]]] = defaultdict(list)
    for one in of.all:
        for told in one.offsets:
            ends[told.group, told.key].append((one, told))
    for place, told_of in ends.items():
        final = of.group_offsets.get(place, -1)
        for one, told in told_of:
            if of.has_happened(one) and told.offset > final:
                which = behind if one.is_committed else torn
                which.add(partial(_behind_sentence, one, told, final))
        owners = [one for one, told in told_of if told.offset == final]
        if final >= 0 and owners and not any(_may_have_moved(of, one) for one in owners):
            torn.add(partial(_moved_sentence, owners[0], place, final))


def _may_have_moved(of: TransactionAccount, one: Transaction) -> bool:
    """One of unknown outcome that sent records was committed only if these are there."""
    if one.is_aborted:
        return False
    looks = [of.is_visible(*value) for value in one.values()]
    return one.is_committed or not looks or None in looks or any(looks)


def _behind_sentence(one: Transaction, told: GroupOffset, final: int) -> str:
    return (
        f"{one} took group {told.group!r} to offset {told.offset} of key {told.key!r}, but in the "
        f"end it is at {final}"
    )


def _moved_sentence(one: Transaction, place: GroupKey, final: int) -> str:
    group, key = place
    return (
        f"group {group!r} is at offset {final} of key {key!r}, which only {one} asked for, of "
        "which nothing else is there"
    )


# -- results -----------------------------------------------------------------------------------


def _check_results(account: Account, torn: Findings, twice: Findings) -> int:
    """How many results can be seen."""
    of = account.transactions
    results: dict[Input, list[Sent]] = {}
    tried: set[GroupKey] = set()
    for one in of.all:
        for sent in one.sent:
            if sent.of is not None:
                tried.add((sent.of.group, sent.of.key))
                if of.is_visible(sent.key, sent.value):
                    results.setdefault(sent.of, []).append(sent)
    for source, found in results.items():
        if len(found) > 1:
            twice.add(partial(_twice_sentence, source, found))
    for group, key in sorted(tried):
        _check_inputs(account, (group, key), results, torn)
    return len(results)


def _check_inputs(
    account: Account, place: GroupKey, results: dict[Input, list[Sent]], torn: Findings
) -> None:
    """What the group has left behind has a result, each of it."""
    of, (group, name) = account.transactions, place
    if of.group_offsets is None or name not in of.final_keys:
        return
    end, order = of.group_offsets.get(place, -1), account.keys[name].order
    for offset in order.offsets:
        source = Input(group, name, offset)
        if offset < end and order.at[offset] in of.seen_finally[name] and source not in results:
            torn.add(partial(_no_result_sentence, source, end))


def _twice_sentence(source: Input, found: list[Sent]) -> str:
    there = "; ".join(f"{sent.value!r} of key {sent.key!r}" for sent in found)
    return f"the record at offset {source.offset} of key {source.key!r} has the results {there}"


def _no_result_sentence(source: Input, end: int) -> str:
    return (
        f"group {source.group!r} is at offset {end} of key {source.key!r}, but of the record at "
        f"offset {source.offset} there is no result"
    )
