"""The version order of a key: the value at each offset, by the observations that count.

Owns which observations count: polls, which return committed records, with any outcome;
acknowledgements of all; and replicas below their own high watermark. Not an acknowledgement of
fewer: its record may be replaced before it is committed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.checkers.columns import KeyAccount, Replica, Value


class VersionOrder:
    """Attributes:
    observed: by offset, what clients saw there first.
    at: the same, and what replicas hold.
    conflicts: by offset, all values seen there, where they are more than one.
    offsets: those that hold something, rising.
    copies: by value, its offsets, where they are more than one.
    """

    def __init__(self, account: KeyAccount) -> None:
        self.at: dict[int, Value] = {}
        self.conflicts: dict[int, list[Value]] = {}
        self._account = account
        self._take_clients(account)
        self.observed = self.at
        if account.replicas:
            self.at = self.at.copy()
        for replica in account.replicas.values():
            self._take_replica(replica)
        self.offsets = sorted(self.at)
        self._first = {self.at[offset]: offset for offset in reversed(self.offsets)}
        self.copies = self._copies()

    def _take_clients(self, account: KeyAccount) -> None:
        for read in account.reads:
            self._hold(read.offsets, read.values)
        placed = [(at, value) for value, at in account.acknowledged.items() if at is not None]
        if placed:
            self._hold(*zip(*placed, strict=True))

    def _take_replica(self, replica: Replica) -> None:
        end = replica.high_watermark
        held = {at: value for at, value in replica.held().items() if value is not None and at < end}
        self._hold(list(held.keys()), list(held.values()))

    def _hold(self, offsets: Sequence[int], values: Sequence[Value]) -> None:
        known = list(map(self.at.setdefault, offsets, values))
        if known == list(values):
            return
        for offset, first, value in zip(offsets, known, values, strict=True):
            if first != value:
                seen = self.conflicts.setdefault(offset, [first])
                if value not in seen:
                    seen.append(value)

    def _copies(self) -> dict[Value, list[int]]:
        if len(self._first) == len(self.offsets) and not self.conflicts:
            return {}
        places: dict[Value, list[int]] = {}
        for offset in self.offsets:
            for value in self.conflicts.get(offset) or (self.at[offset],):
                places.setdefault(value, []).append(offset)
        # Of two values at one offset, only one was in `_first`.
        self._first = {value: offsets[0] for value, offsets in places.items()}
        return {value: offsets for value, offsets in places.items() if len(offsets) > 1}

    def first(self, value: Value) -> int | None:
        return self._first.get(value)

    def last(self, value: Value) -> int | None:
        return self.copies[value][-1] if value in self.copies else self._first.get(value)

    def first_held(self, start: int, end: int) -> int | None:
        """The first offset in [start, end) that holds something."""
        place = bisect_left(self.offsets, start)
        is_inside = place < len(self.offsets) and self.offsets[place] < end
        return self.offsets[place] if is_inside else None

    def count(self, start: int, end: int) -> int:
        """How many offsets in [start, end) hold something."""
        return bisect_left(self.offsets, end) - bisect_left(self.offsets, start)

    def witness(self, offset: int, value: Value) -> str:
        """Who says that `value` stood there: the first reader, sender and replica of them."""
        return ", ".join(self._witnesses(offset, value))

    def _witnesses(self, offset: int, value: Value) -> Iterator[str]:
        for read in self._account.reads:
            if offset in read.offsets and (offset, value) in zip(*read[3:], strict=True):
                yield f"read in event {read.completed}"
                break
        for send in self._account.sends:
            if value in send.values and (value, offset) in send.acknowledged():
                yield f"acknowledged in event {send.completed}"
                break
        for replica in self._account.replicas.values():
            if replica.held().get(offset) == value:
                yield f"kept by node {replica.node} in event {replica.event}"
                break
