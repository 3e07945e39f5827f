"""Groups with retries under faults: histories without any wrong.

Owns what is legal and looks suspicious: attempts that end by a crash, or have no effect, and are
made again; records that are moved twice, or set aside twice, at least once; retries that come early
as a leader's clock was ahead; records that are set aside as sessions have ended with them. Seeded:
the same seed makes the same history.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate
from tests.jepsen_like.checkers.retry_script import ATTEMPTS, LEAST, ONCE, PAUSES, RetryScript

if TYPE_CHECKING:
    from random import Random

    from jepsen_like.history.event import Event

RECORDS = 24
STEP_SECONDS = 0.3  # between records, on the average
AGAIN_SECONDS = 4.0  # until another member has what one did not finish
AHEAD_SECONDS = 60.0
DEATHS = 3  # after which a record is set aside


class _Due(NamedTuple):
    """What is handed out next."""

    time: float
    order: int
    group: str
    offset: int
    number: int


class RetryModel:
    def __init__(self, random: Random) -> None:
        self._random, self.script = random, RetryScript(count=RECORDS)
        fates = list(RecordFate)
        self._fates = [random.choice(fates) for _ in range(RECORDS)]
        self._due: list[_Due] = []
        self._order = 0
        self._lives = {LEAST: 1, ONCE: 1}
        self._deaths = {LEAST: 0, ONCE: 0}
        self._letters: dict[str, list[tuple[int, RecordFate, int, str]]] = {LEAST: [], ONCE: []}
        self._results: list[tuple[int, RecordFate]] = []
        self._is_ahead = False

    def play(self) -> list[Event]:
        self.script.phase("load")
        for group in (LEAST, ONCE):
            time = 0.0
            for offset in range(RECORDS):
                time += self._random.expovariate(1 / STEP_SECONDS)
                self._hand_out(time, group, offset, 1)
        while self._due:
            one = heappop(self._due)
            self.script.now = max(self.script.now, one.time)
            self._turn_clock()
            self._handle(one)
        if self._is_ahead:
            self._turn_clock(is_sure=True)
        self._finish()
        return self.script.events

    def _hand_out(self, time: float, group: str, offset: int, number: int) -> None:
        self._order += 1
        heappush(self._due, _Due(time, self._order, group, offset, number))

    def _turn_clock(self, *, is_sure: bool = False) -> None:
        if not is_sure and self._random.random() > 0.02:
            return
        kind = Type.INFO if self._is_ahead else Type.INVOKE
        self.script.fault("clock", kind, offset_ms=1000 * AHEAD_SECONDS)
        self._is_ahead = not self._is_ahead

    # -- members ---------------------------------------------------------------------------

    def _handle(self, one: _Due) -> None:
        fate, group = self._fates[one.offset], one.group
        member = f"{group}{self._lives[group]}"
        number = self.script.begin_handling(member, one.offset, fate, one.number)
        how = self._random.random()
        if how < 0.05:
            self._crash(member, group)
            if group == LEAST and self._deaths[group] >= DEATHS and self._random.random() < 0.5:
                error = f"its process died {DEATHS} times"
                self._letters[group].append((one.offset, fate, one.number - 1 + DEATHS, error))
            else:
                self._again(one)
            return
        if how < 0.1:
            self.script.end_handling(member, number, self._end_of(fate, one.number), Type.FAIL)
            self._again(one)
            return
        is_known = self._random.random() < 0.9 or self._end_of(fate, one.number) == "done"
        kind = Type.OK if is_known else Type.INFO
        self.script.end_handling(member, number, self._end_of(fate, one.number), kind)
        self._end(one, fate)
        if group == LEAST and self._random.random() < 0.05:  # it was not committed
            self._again(one)

    def _again(self, one: _Due) -> None:
        self._hand_out(self.script.now + AGAIN_SECONDS, one.group, one.offset, one.number)

    def _crash(self, member: str, group: str) -> None:
        self.script.tell(member, self._random.choice(("crash", "gone")))
        self._deaths[group] += 1
        self._lives[group] += 1
        self.script.work(f"{group}{self._lives[group]}")

    def _end_of(self, fate: RecordFate, number: int) -> str:
        if fate.is_good_at(number):
            return "done"
        return "letter" if number == ATTEMPTS or fate is RecordFate.REJECTED else "moved"

    def _end(self, one: _Due, fate: RecordFate) -> None:
        end = self._end_of(fate, one.number)
        if end == "letter":
            self._letters[one.group].append((one.offset, fate, one.number, "ValueError: no"))
        elif end == "done" and one.group == ONCE:
            self._results.append((one.offset, fate))
        elif end == "moved":
            pause = 0.0 if self._is_ahead else PAUSES[one.number - 1]
            late = self._random.expovariate(2.0)
            self._hand_out(self.script.now + pause + late, one.group, one.offset, one.number + 1)

    # -- the end ---------------------------------------------------------------------------

    def _finish(self) -> None:
        self.script.phase("heal")
        self.script.read_all()
        for group, letters in self._letters.items():
            self.script.left(group)
            self.script.letters(group, letters)
        self.script.results(self._results)


def clean_retry_history(random: Random) -> list[Event]:
    return RetryModel(random).play()
