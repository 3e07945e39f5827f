"""Anomalies of readers at the committed level: aborted or open transactions read, records left out.

`aborted-transaction-read` (G1a) counts records that were read, though their transaction was
answered to be aborted, nobody had asked for its commit, or the log marks them so.
`precommitted-read` counts those that were read before anybody asked for the commit, or that no
marker ends. `transaction-skip` counts records that a reader stepped over, though their transaction
was committed; at the uncommitted level, any. `transaction-order` counts values of one transaction
that stand in another order than they were sent in.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from jepsen_like.checkers.columns import NOT_SEEN
from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.transaction_columns import Mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Read, Session, Value
    from jepsen_like.checkers.transaction_columns import Transaction


def check(account: Account) -> list[Finding]:
    aborted, early = Findings("aborted-transaction-read"), Findings("precommitted-read")
    skips, order = Findings("transaction-skip"), Findings("transaction-order")
    if account.transactions:
        for key in account.keys.values():
            check_key = _KeyCheck(account, key)
            check_key.values(aborted, early)
            check_key.skips(skips)
        for one in account.transactions.all:
            _check_order(account, one, order)
    return [found.finding() for found in (aborted, early, skips, order)]


class _KeyCheck:
    def __init__(self, account: Account, key: KeyAccount) -> None:
        self._key, self._of = key, account.transactions
        self._marks = self._of.marks.get(key.key, {})

    def values(self, aborted: Findings, early: Findings) -> None:
        """Each record once, by the first reader that got it."""
        told: set[int] = set()
        for read in self._key.reads:
            if not read.session.is_committed:
                continue
            for offset, value in zip(read.offsets, read.values, strict=True):
                number = self._key.in_transaction(value)
                if number is None or offset in told:
                    continue
                one, mark = self._of.by_number[number], self._marks.get(offset)
                if one.is_aborted or mark is Mark.ABORT:
                    told.add(offset)
                    aborted.add(partial(self._read_sentence, read, offset, value, one, mark))
                elif read.completed < one.commit_asked or mark is Mark.OPEN:
                    told.add(offset)
                    early.add(partial(self._read_sentence, read, offset, value, one, mark))

    def skips(self, found: Findings) -> None:
        positions: dict[Session, int] = {}
        for read in self._key.reads:
            session = read.session
            is_first = self._key.key in session.from_beginning
            before = positions.get(session, NOT_SEEN if is_first else None)
            for offset in read.offsets:
                if before is not None:
                    for at in self._left_out(session, before + 1, offset):
                        found.add(partial(self._skip_sentence, read, at, offset))
                before = offset
            assert before is not None
            positions[session] = before

    def _left_out(self, session: Session, start: int, end: int) -> Iterator[int]:
        """Offsets in [start, end) that the reader should have got."""
        order, start = self._key.order, max(start, self._key.log_start)
        while (at := order.first_held(start, end)) is not None:
            number = self._key.in_transaction(order.at[at])
            if number is not None:
                is_committed = self._of.by_number[number].is_committed
                is_committed |= self._marks.get(at) is Mark.COMMIT
                if is_committed or not session.is_committed:
                    yield at
            start = at + 1

    def _read_sentence(
        self, read: Read, offset: int, value: Value, one: Transaction, mark: Mark | None
    ) -> str:
        log = f", and the log says {mark}" if mark else ""
        return (
            f"key {self._key.key!r}: process {read.session.process} read {value!r} at offset "
            f"{offset} in event {read.completed}, of {one}, of which the commit was asked in "
            f"event {one.commit_asked:g}{log}"
        )

    def _skip_sentence(self, read: Read, at: int, offset: int) -> str:
        value = self._key.order.at[at]
        number = self._key.in_transaction(value)
        assert number is not None
        return (
            f"key {self._key.key!r}: process {read.session.process} came to offset {offset} in "
            f"event {read.completed} without {value!r} at offset {at}, of "
            f"{self._of.by_number[number]}"
        )


def _check_order(account: Account, one: Transaction, found: Findings) -> None:
    places: dict[str, list[tuple[int, Value]]] = {}
    for sent in one.sent:
        place = account.keys[sent.key].order.first(sent.value)
        if place is not None:
            places.setdefault(sent.key, []).append((place, sent.value))
    for key, placed in places.items():
        for (before, value), (after, following) in pairwise(placed):
            if after <= before:
                found.add(
                    lambda key=key, v=value, f=following, b=before, a=after: (  # type: ignore[misc]
                        f"key {key!r}: {one} sent {v!r} before {f!r}, but they stand at offsets "
                        f"{b} and {a}"
                    )
                )
