"""Anomaly: a reader got records out of order, twice, or with gaps, within a poll or between polls.

Counts steps from one record to the next. A step back, or to the same offset, is nonmonotonic. A
step forward is a skip where a record was in between that is not deleted; an offset at which nothing
was ever seen may be empty. After an assign, a crash or a poll of unknown outcome the reader may be
anywhere; an assign "from the beginning" sets it before the first record. Records in transactions
are left out rightly where they were aborted: whether they were is another checker's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING

from jepsen_like.checkers.columns import NOT_SEEN
from jepsen_like.checkers.finding import Finding, Findings

if TYPE_CHECKING:
    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.columns import KeyAccount, Read, Session

BEFORE_ALL = -1  # the position of a reader that was assigned from the beginning


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The two that may be wrong with a step, within polls or between them."""

    skip: Findings
    nonmonotonic: Findings


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a reader is: the last offset it was given, and the poll that gave it."""

    offset: int
    event: int


def check(account: Account) -> list[Finding]:
    external = _Kinds(Findings("poll-skip"), Findings("nonmonotonic-poll"))
    internal = _Kinds(Findings("int-poll-skip"), Findings("int-nonmonotonic-poll"))
    for key in account.keys.values():
        _KeyCheck(key, external, internal).run()
    kinds = external, internal
    return [found.finding() for kind in kinds for found in (kind.skip, kind.nonmonotonic)]


@dataclass(eq=False, slots=True)
class _KeyCheck:
    key: KeyAccount
    external: _Kinds
    internal: _Kinds
    positions: dict[Session, _Position] = field(default_factory=dict)

    def run(self) -> None:
        for read in self.key.reads:
            if before := self._position(read.session):
                self._step(self.external, read, before, read.offsets[0])
            if not self._is_in_order(read.offsets):
                for offset, following in pairwise(read.offsets):
                    self._step(self.internal, read, _Position(offset, read.completed), following)
            self.positions[read.session] = _Position(read.offsets[-1], read.completed)

    def _is_in_order(self, offsets: tuple[int, ...]) -> bool:
        """Every record between the first and the last, and none twice: most reads are so."""
        start, end, count = offsets[0], offsets[-1] + 1, len(offsets)
        is_dense = end - start == count or self.key.order.count(start, end) == count
        return is_dense and all(map(lt, offsets, offsets[1:]))

    def _position(self, session: Session) -> _Position | None:
        if session in self.positions:
            return self.positions[session]
        is_first = self.key.key in session.from_beginning
        return _Position(BEFORE_ALL, NOT_SEEN) if is_first else None

    def _step(self, kinds: _Kinds, read: Read, before: _Position, offset: int) -> None:
        if offset <= before.offset:
            kinds.nonmonotonic.add(partial(self._back, read, before, offset))
        elif offset > before.offset + 1:
            start = max(before.offset + 1, self.key.log_start)
            skipped = self._first_skipped(start, offset)
            if skipped is not None:
                kinds.skip.add(partial(self._skip, read, before, offset, skipped))

    def _first_skipped(self, start: int, end: int) -> int | None:
        """The first offset in [start, end) with a record outside of transactions."""
        order = self.key.order
        while (at := order.first_held(start, end)) is not None:
            if self.key.in_transaction(order.at[at]) is None:
                return at
            start = at + 1
        return None

    def _back(self, read: Read, before: _Position, offset: int) -> str:
        value = read.values[read.offsets.index(offset)]
        return f"{self._was(read, before)} and then offset {offset}, value {value!r}{_in(read)}"

    def _skip(self, read: Read, before: _Position, offset: int, skipped: int) -> str:
        order = self.key.order
        left_out = f"offset {skipped} holds {order.at[skipped]!r}"
        witness = order.witness(skipped, order.at[skipped])
        return (
            f"{self._was(read, before)} and then offset {offset}{_in(read)}, "
            f"though {left_out} ({witness})"
        )

    def _was(self, read: Read, before: _Position) -> str:
        reader = f"key {self.key.key!r}: process {read.session.process}"
        if before.offset == BEFORE_ALL:
            return f"{reader} began at the beginning"
        return f"{reader} read offset {before.offset} in event {before.event}"


def _in(read: Read) -> str:
    return f" in event {read.completed}"
