"""A task with a name that is run again and again: histories without any wrong.

Owns what is legal and looks suspicious: runs that are broken off, of which nobody knows how far
they came; runs that go on beside the next one, and are fenced; rows that are skipped, so that
nobody is told where they stand; generations that nobody finishes; rows of others in between.
Seeded: the same seed makes the same history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import Type
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    from random import Random

    from jepsen_like.history.event import Event

GENERATIONS, RUNS_MAX, ROWS_MAX = 4, 4, 8
KNOWN_SHARE = 0.5  # of rows that arrived, of which a run was told before it was broken off
FINISHED_SHARE = 0.7  # of generations
NODES = (1, 2, 3)


class RerunScript(Script):
    """Writes short histories of a producer with the name "task", by hand: all to the key "k"."""

    def __init__(self) -> None:
        super().__init__()
        self._processes = 100

    def begin_run(self, generation: int, rows: list[int]) -> int:
        """Its process."""
        self._processes += 1
        asked: dict[str, Any] = {"key": "k", "acks": -1, "values": rows, "is_idempotent": True}
        self.begin(self._processes, "send", {**asked, "name": "task", "generation": generation})
        return self._processes

    def end_run(
        self, process: int, kind: Type = Type.OK, offsets: list[int | None] | None = None
    ) -> None:
        """`offsets`: None of rows that it has skipped, or was not told of."""
        self.end(process, "send", {"offsets": offsets} if offsets else None, kind)

    def run(self, generation: int, rows: list[int], kind: Type = Type.OK) -> None:
        self.end_run(self.begin_run(generation, rows), kind)

    def replicas(self, values: list[int | None]) -> None:
        """All nodes have the same log; None: a fence."""
        for node in NODES:
            self.replica(node, values)


@dataclass(eq=False)
class _Run:
    process: int
    offsets: list[int | None] = field(default_factory=list)


class RerunModel:
    """Plays a history of one partition."""

    def __init__(self, random: Random) -> None:
        self._random, self.script = random, RerunScript()
        self._log: list[int | None] = []
        self._value = 0

    def play(self) -> list[Event]:
        for generation in range(GENERATIONS):
            rows = [self._next_value() for _ in range(self._random.randint(1, ROWS_MAX))]
            self._work_off(2 * generation, rows)
        self.script.replicas(self._log)
        return self.script.events

    def _work_off(self, generation: int, rows: list[int]) -> None:
        count, overtaken = 0, list[_Run]()
        for _ in range(self._random.randint(0, RUNS_MAX)):
            run = self._begin(generation, rows, count)
            count += self._append(run, rows[count : self._random.randint(count, len(rows))])
            overtaken.append(run)
            self._break_off(overtaken, rows)
        if self._random.random() < FINISHED_SHARE:
            run = self._begin(generation, rows, count)
            self._append(run, rows[count:])
            self.script.end_run(run.process, offsets=run.offsets)
        for run in overtaken:
            self._end_early(run, rows)

    def _begin(self, generation: int, rows: list[int], count: int) -> _Run:
        """Its fence stands behind what was there; so much is skipped."""
        self._log.append(None)
        return _Run(self.script.begin_run(generation, rows), [None] * count)

    def _append(self, run: _Run, rows: list[int]) -> int:
        for row in rows:
            if self._random.random() < 0.3:
                self._others()
            run.offsets.append(len(self._log))
            self._log.append(row)
        return len(rows)

    def _others(self) -> None:
        value, offset = self._next_value(), len(self._log)
        self._log.append(value)
        self.script.send([value], [offset], is_idempotent=True)

    def _break_off(self, runs: list[_Run], rows: list[int]) -> None:
        """At once, or some time later."""
        for run in runs[:]:
            if self._random.random() < 0.5:
                runs.remove(run)
                self._end_early(run, rows)

    def _end_early(self, run: _Run, rows: list[int]) -> None:
        told = [at if self._random.random() < KNOWN_SHARE else None for at in run.offsets]
        self.script.end_run(run.process, Type.INFO, told + [None] * (len(rows) - len(told)))

    def _next_value(self) -> int:
        self._value += 1
        return self._value


def clean_rerun_history(random: Random) -> list[Event]:
    return RerunModel(random).play()
