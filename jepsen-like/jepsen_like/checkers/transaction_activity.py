"""How much a run with transactions did: decisions, take-overs, faults while something was open.

Owns what is counted, and how much of it a run must reach to prove anything. Says nothing of right
and wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.checkers.columns import NOT_SEEN
from jepsen_like.checkers.transaction_columns import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Read
    from jepsen_like.checkers.transaction_account import TransactionAccount
    from jepsen_like.checkers.transaction_columns import Stroke, Transaction

LATE_SECONDS = 1.0  # as long as nothing but a fault holds up a decision


class TransactionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, or what it must have done.

    Attributes:
        decisions: transactions with effects that were committed or aborted.
        aborts: of these.
        take_overs: an id was opened while the owner before it had something open.
        strokes: faults that hit the leader of a partition in which something was open.
        late: commits that a reader at the end of a partition did not get for more than a second.
        installed: snapshots of the quorum that nodes have installed.
    """

    decisions: int = 0
    aborts: int = 0
    take_overs: int = 0
    strokes: int = 0
    late: int = 0
    installed: int = 0

    def few(self, wanted: TransactionCounts) -> Iterator[str]:
        """Sentences; none: it is enough."""
        for name, least in msgspec.structs.asdict(wanted).items():
            if (count := getattr(self, name)) < least:
                yield f"{count} {_WORDS[name]}, {least} are wanted"


_WORDS = {
    "decisions": "transactions were decided",
    "aborts": "transactions were aborted",
    "take_overs": "ids were taken over with a transaction open",
    "strokes": "faults hit a partition with a transaction open",
    "late": "commits were seen more than a second late",
    "installed": "snapshots of the quorum were installed",
}


def counts(account: Account) -> TransactionCounts:
    of = account.transactions
    decided = [one for one in of.single if one.has_effects and (one.is_aborted or one.is_committed)]
    return TransactionCounts(
        decisions=len(decided),
        aborts=sum(one.is_aborted for one in decided),
        take_overs=_take_overs(account),
        strokes=sum(_hits_open(account, stroke) for stroke in of.strokes),
        late=len({one for key in account.keys.values() for one in _late_in(account, key)}),
        installed=of.installed,
    )


def _take_overs(account: Account) -> int:
    of, began = account.transactions, dict[object, list[tuple[int, float]]]()
    for one in of.single:
        if one.sent:
            began.setdefault(one.owner, []).append((one.sent[0].send.invoked, one.told_at))
    count = 0
    for owners in of.owners.values():
        for place, owner in enumerate(owners):
            opened = owner.completed
            spans = (span for before in owners[:place] for span in began.get(before, ()))
            count += opened < NEVER and any(start < opened < end for start, end in spans)
    return count


def _hits_open(account: Account, stroke: Stroke) -> bool:
    for one in account.transactions.single:
        if one.began < stroke.event < one.told_at:
            sent = (s for s in one.sent if s.send.invoked < stroke.event)
            if any(_leader(account.keys[s.key], stroke.event) in stroke.nodes for s in sent):
                return True
    return False


def _leader(key: KeyAccount, event: int) -> int | None:
    """By what nodes had said until then."""
    said = [
        (epoch, at, node)
        for epoch, nodes in key.leads.items()
        for node, at in nodes.items()
        if at < event
    ]
    return max(said)[2] if said else None


def _late_in(account: Account, key: KeyAccount) -> Iterator[int]:
    """Commits of which a reader that was at the end got a record later than that."""
    of, last = account.transactions, dict[object, int]()
    told: set[object] = set()
    for read in key.reads:
        process = read.session.process
        if not read.session.is_committed or of.reader_of(read) is not None:
            continue
        for value in read.values:
            number = key.in_transaction(value)
            if number is None or value in told:
                continue
            told.add(value)
            one = of.by_number[number]
            if one.is_committed and _is_late(of, one, read, last.get(process, NOT_SEEN)):
                yield number
        last[process] = read.completed


def _is_late(of: TransactionAccount, one: Transaction, read: Read, last: int) -> bool:
    """Between its `last` read of the key and this one, a poll that began a second after the commit
    did not bring it.
    """
    told_at = int(one.told_at)
    late = bisect_left(of.times, of.times[told_at] + LATE_SECONDS, lo=told_at)
    polls = of.polls[read.session.process]
    next_poll = bisect_left(polls, max(late, last + 1), key=lambda poll: poll.invoked)
    return next_poll < len(polls) and polls[next_poll].invoked < read.invoked
