"""Writes short histories of a consumer group by hand, beside those of a queue.

One group "g" reads the keys "k" and "j", and commits in the way that the script is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import WATCH, Type
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    from collections.abc import Iterable


class GroupScript(Script):
    def __init__(self, *members: str, commit: str = "batch", generation: int = 1) -> None:
        """`members` have joined; the first one has been given "k", in `generation`."""
        super().__init__()
        told = {"group": "g", "keys": ["k", "j"], "commit": commit}
        self._add(WATCH, Type.OK, "group", told)
        self._numbers = 0
        for member in members:
            self._add(member, Type.INFO, "member", {"group": "g"})
        if members:
            self.assign_to(members[0], generation)

    def tell(self, member: str, f: str, value: Any = None) -> None:
        self._add(member, Type.INFO, f, value)

    def assign_to(self, member: str, generation: int = 1, *, keys: Iterable[str] = "k") -> None:
        self.tell(member, "rebalance", {"assigned": list(keys), "generation": generation})

    def take_away(self, member: str, *, how: str = "revoked") -> None:
        self.tell(member, "rebalance", {how: ["k"], "generation": 1})

    def take(self, member: str, offsets: Iterable[int], *, key: str = "k") -> None:
        """Each value is that of its offset."""
        told = list(offsets)
        self.begin(member, "take")
        self.end(member, "take", {"key": key, "offsets": told, "values": told})

    def begin_commit(self, member: str, offset: int, generation: int = 1) -> int:
        self._numbers += 1
        asked = {"number": self._numbers, "group": "g", "generation": generation}
        self.begin(member, "commit", {**asked, "member_id": member, "offsets": [["k", offset]]})
        return self._numbers

    def end_commit(self, member: str, number: int, kind: Type = Type.OK) -> None:
        self.end(member, "commit", {"number": number}, kind)

    def commit(
        self, member: str, offset: int, generation: int = 1, *, kind: Type = Type.OK
    ) -> None:
        self.end_commit(member, self.begin_commit(member, offset, generation), kind)

    def begin_fetch(self, member: str) -> int:
        self._numbers += 1
        self.begin(member, "committed", {"number": self._numbers, "group": "g"})
        return self._numbers

    def end_fetch(self, member: str, number: int, offset: int | None) -> None:
        self.end(member, "committed", {"number": number, "offsets": [["k", offset]]})

    def fetch(self, member: str, offset: int | None) -> None:
        self.end_fetch(member, self.begin_fetch(member), offset)
