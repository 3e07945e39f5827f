"""Scheduled records of one partition under faults: histories without any wrong.

Owns what is legal and looks suspicious: records that come late as nobody led, or early as a
leader's clock was ahead; sends and cancels of which nobody knows how they ended; records of a batch
of which some are cancelled; some that are not due in the end. Seeded: the same seed
makes the same history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.schedule_script import Batch, ScheduleScript

if TYPE_CHECKING:
    from random import Random

    from jepsen_like.history.event import Event

OPERATIONS = 80
STEP_SECONDS = 0.4  # between operations, on the average
DELAY_SECONDS_MAX, FAR_SECONDS = 8.0, 1000.0
READERS = (1, 2)


class ScheduleModel:
    def __init__(self, random: Random) -> None:
        self._random, self.script = random, ScheduleScript()
        self._log: list[Batch] = []
        self._settled: set[int] = set()  # base offsets
        self._known: list[tuple[int, int]] = []  # value and offset, of what was acknowledged
        self._at = dict.fromkeys(READERS, 0)  # batches that were read
        self._value, self._epoch, self._ahead = 0, 1, 0.0
        self._is_led = True

    def play(self) -> list[Event]:
        self.script.phase("load")
        for process in READERS:
            self.script.assign(process=process)
        for _ in range(OPERATIONS):
            self.script.now += self._random.expovariate(1 / STEP_SECONDS)
            self._deliver()
            self._random.choices((self._send, self._cancel, self._poll, self._break), (4, 2, 3, 1))[
                0
            ]()
        self._heal()
        return self.script.events

    # -- the leader ------------------------------------------------------------------------

    def _pending(self) -> list[Batch]:
        scheduled = [one for one in self._log if one.at is None and one.base not in self._settled]
        return sorted(scheduled, key=lambda one: (one.due, one.base))

    def _deliver(self) -> None:
        clock = self.script.now + self._ahead
        for one in self._pending():
            if self._is_led and one.due <= clock:
                self._settled.add(one.base)
                if any(value is not None for value in one.values):
                    self._append(list(one.values), one.due, clock)

    def _append(self, values: list[int | None], due: float, at: float | None = None) -> Batch:
        batch = Batch(self._end, self._epoch, values, due, at)
        self._log.append(batch)
        return batch

    @property
    def _end(self) -> int:
        return self._log[-1].end if self._log else 0

    # -- clients ---------------------------------------------------------------------------

    def _send(self) -> None:
        delay = self._random.choice((0.0, 0.3, self._random.uniform(0, DELAY_SECONDS_MAX)))
        if self._random.random() < 0.1:
            delay = FAR_SECONDS
        values, due = self._next_values(), self.script.now + delay
        outcome = self._random.choices((Type.OK, Type.INFO, Type.FAIL), (8, 1, 1))[0]
        offsets: list[int | None] = []
        if outcome is not Type.FAIL and (outcome is Type.OK or self._random.random() < 0.5):
            batch = self._append(list(values), due)
            offsets = list(range(batch.base, batch.end))
        if outcome is not Type.OK:
            self.script.schedule(values, due, None, outcome)
            return
        self.script.schedule(values, due, offsets)
        self._known += [
            (value, at) for value, at in zip(values, offsets, strict=True) if at is not None
        ]

    def _next_values(self) -> list[int]:
        first = self._value + 1
        self._value += self._random.randint(1, 3)
        return list(range(first, self._value + 1))

    def _cancel(self) -> None:
        if not self._known:
            return
        value, offset = self._random.choice(self._known[-12:])
        batch = next(one for one in self._log if one.base <= offset < one.end)
        place = offset - batch.base
        if batch.values[place] is None:
            self.script.cancel(value, offset, Type.FAIL, "cancelled")
        elif batch.base in self._settled:
            self.script.cancel(value, offset, Type.FAIL, "delivered")
        else:
            is_known = self._random.random() < 0.7
            if is_known or self._random.random() < 0.5:
                batch.values[place] = None
            self.script.cancel(value, offset, Type.OK if is_known else Type.INFO)

    def _poll(self) -> None:
        process = self._random.choice(READERS)
        new = self._log[self._at[process] :]
        self._at[process] = len(self._log)
        self.script.read([one for one in new if one.at is not None], process=process)

    # -- faults ----------------------------------------------------------------------------

    def _break(self) -> None:
        """A leader dies, or its clock jumps; or that is over."""
        if not self._is_led or self._ahead:
            self._end_fault()
        elif self._random.random() < 0.5:
            self._is_led = False
            self.script.fault("kill", Type.INVOKE)
        else:
            self._ahead = self._random.choice((-30.0, -1.0, 2.0, 5000.0))
            self.script.fault("clock", Type.INVOKE, offset_ms=1000 * self._ahead)

    def _end_fault(self) -> None:
        if not self._is_led:
            self._is_led, self._epoch = True, self._epoch + 1
            self.script.fault("kill", Type.INFO)
        elif self._ahead:
            self.script.fault("clock", Type.INFO, offset_ms=1000 * self._ahead)
            self._ahead = 0.0

    def _heal(self) -> None:
        self._end_fault()
        self.script.phase("heal")
        self._deliver()
        self.script.now += DELAY_SECONDS_MAX + 3
        self._deliver()
        self.script.phase("final")
        self.script.assign(process=9)
        self.script.read([one for one in self._log if one.at is not None], process=9)
        self.script.pending(
            [
                offset
                for one in self._pending()
                for offset, value in enumerate(one.values, one.base)
                if value is not None
            ]
        )
        self.script.logs(self._log)


def clean_schedule_history(random: Random) -> list[Event]:
    return ScheduleModel(random).play()
