"""Writes histories of groups with retries by hand, all of the key "k", with a clock of their own.

Value n stands at offset n. There are two groups, "g" at least once and "t" exactly once, or what
the script is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import WATCH, Type
from tests.jepsen_like.checkers.schedule_script import ScheduleScript

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jepsen_like.history.record_fate import RecordFate

LEAST, ONCE = "g", "t"
ATTEMPTS, PAUSES = 3, (1.0, 2.0)
FINAL_READER = 9


class RetryScript(ScheduleScript):
    def __init__(self, *groups: str, can_reject: bool = True, count: int = 0) -> None:
        """`groups`: none: both; each has a member of its name and "1". `count`: of records."""
        super().__init__()
        self._numbers = 0
        for group in groups or (LEAST, ONCE):
            told = {"group": group, "keys": ["k"], "attempts": ATTEMPTS, "pauses": PAUSES}
            told |= {"is_exactly_once": group == ONCE, "can_reject": can_reject}
            self._add(WATCH, Type.OK, "retry-group", told)
            self.work(f"{group}1")
        self._count = 0
        if count:
            self.send_many(count)

    def send_many(self, count: int) -> None:
        self._count = count
        super().send_many(count)

    # -- members, whose names begin with that of their group -------------------------------

    def work(self, member: str) -> None:
        self.tell(member, "worker", {"group": member[0]})

    def tell(self, member: str, f: str, value: Any = None) -> None:
        self._add(member, Type.INFO, f, value)

    def begin_handling(
        self,
        member: str,
        offset: int,
        fate: RecordFate,
        attempt: int = 1,
        *,
        is_back: bool | None = None,
        stamp: tuple[float, float] | None = None,
    ) -> int:
        """`stamp`: when it was due and delivered; its number."""
        self._numbers += 1
        told: dict[str, Any] = {"number": self._numbers, "key": "k", "offset": offset}
        told |= {"value": offset, "fate": fate.value, "attempt": attempt}
        told["is_back"] = attempt > 1 if is_back is None else is_back
        if stamp is not None:
            told |= {"due": stamp[0], "at": stamp[1]}
        self.begin(member, "handle", told)
        return self._numbers

    def end_handling(self, member: str, number: int, end: str, kind: Type = Type.OK) -> None:
        self.end(member, "handle", {"number": number, "end": end}, kind)

    def handle(
        self,
        member: str,
        offset: int,
        fate: RecordFate,
        attempt: int = 1,
        *,
        end: str = "done",
        kind: Type = Type.OK,
        is_back: bool | None = None,
        stamp: tuple[float, float] | None = None,
    ) -> None:
        number = self.begin_handling(member, offset, fate, attempt, is_back=is_back, stamp=stamp)
        self.end_handling(member, number, end, kind)

    # -- the end ---------------------------------------------------------------------------

    def read_all(self) -> None:
        """The last reads."""
        self.phase("final")
        self.assign(process=FINAL_READER)
        self.poll([(offset, offset) for offset in range(self._count)], process=FINAL_READER)

    def left(
        self, group: str, lags: Sequence[tuple[str, int, int]] = (), pending: Sequence[int] = ()
    ) -> None:
        told = {"group": group, "lags": [list(lag) for lag in lags], "pending": list(pending)}
        self._add(WATCH, Type.OK, "left", told)

    def letters(self, group: str, letters: Iterable[tuple[int, RecordFate, int, str]] = ()) -> None:
        """Each with its offset, attempts and error."""
        rows = [
            [at, "k", offset, offset, fate.value, attempts, error]
            for at, (offset, fate, attempts, error) in enumerate(letters)
        ]
        self._add(WATCH, Type.OK, "letters", {"group": group, "rows": rows})

    def results(self, offsets: Iterable[tuple[int, RecordFate]] = ()) -> None:
        rows = [
            [["r-0", at], "k", offset, offset, fate.value]
            for at, (offset, fate) in enumerate(offsets)
        ]
        self._add(WATCH, Type.OK, "results", {"group": ONCE, "rows": rows})
