"""The judge of one task of named producers: rows of its generations, and what consumers saw.

Owns the rows of each generation, drawn once. Once a run has ended without an error, each row of its
generation is exactly once in its partition, in order, and behind all generations before; a producer
that goes on after a later run has fenced it gets nothing in. Logs are judged by `task_logs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.brokers.history_runs import Label
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.sdk_tasks import Run
    from tests.simulation.brokers.world import World


class Row(NamedTuple):
    """`index`: among those of its generation in its partition."""

    spot: Spot
    index: int
    value: bytes


@dataclass(eq=False)
class Generation:
    """Attributes:
    rows: in the order in which each run hands them in.
    is_finished: a run has ended without an error.
    """

    label: Label
    topic: str
    rows: list[Row] = field(default_factory=list)
    is_finished: bool = False

    def of(self, spot: Spot) -> list[bytes]:
        return [row.value for row in self.rows if row.spot == spot]

    @property
    def spots(self) -> list[Spot]:
        return list(dict.fromkeys(row.spot for row in self.rows))


class TaskLedger:
    """Attributes:
    under_way: runs that go on, the newest last.
    runs: how many there were.
    refused: how many of them were told that another one goes on.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self.generations: list[Generation] = []
        self.under_way: list[Run] = []
        self.runs = self.refused = 0

    @property
    def finished(self) -> int:
        return sum(generation.is_finished for generation in self.generations)

    @property
    def has_done_enough(self) -> bool:
        return self.finished > 0 and self.runs > len(self.generations)

    def draw(self, random: Random, topic: str, rows_max: int) -> Generation:
        """The next generation, with rows for some partitions."""
        last = self.generations[-1].label.generation if self.generations else 0
        label = Label(self.name, last + random.choice((1, 1, 7)))
        found = Generation(label, topic)
        spots = [spot for spot in self._world.spots() if spot.topic == topic]
        counts = dict.fromkeys(spots, 0)
        padding = "." * random.randint(0, self._world.plan.padding_bytes)
        for _ in range(random.randint(1, rows_max)):
            spot = random.choice(spots)
            value = f"{self.name}/{label.generation}/{spot.partition}/{counts[spot]}{padding}"
            found.rows.append(Row(spot, counts[spot], value.encode()))
            counts[spot] += 1
        self.generations.append(found)
        return found

    # Runs

    def begin(self, run: Run) -> None:
        self.runs += 1
        self.under_way.append(run)
        for row in run.generation.rows:
            self._world.ledger.on_row(row.spot, row.value)

    def end(self, run: Run) -> None:
        self.under_way.remove(run)

    def on_told(self, run: Run, row: Row, offset: int, *, is_late: bool) -> None:
        """`is_late`: when it was handed in, another run was fenced already that had begun after
        this one was.
        """
        demand(not is_late, f"{run}: {row} was taken at {offset}, and a later run was fenced")
        ledger = self._world.ledger
        ledger.on_row_told(ledger.of(row.spot).sent[row.value], offset)

    # In the end

    def judge(self) -> None:
        for spot in self._world.spots():
            ledger = self._world.ledger.of(spot)
            if not ledger.may_have_deleted(0):  # and a name forgotten with it
                self._judge_spot(spot)

    def _judge_spot(self, spot: Spot) -> None:
        ledger, places = self._world.ledger.of(spot), list[tuple[bytes, int]]()
        for generation in self.generations:
            values = generation.of(spot)
            found = [ledger.offsets_of(value) for value in values]
            known = [bool(offsets) for offsets in found]
            what = f"{generation.label} in {spot}"
            missing = [value for value, is_known in zip(values, known, strict=True) if not is_known]
            demand(not (generation.is_finished and missing), f"{what}: {missing[:3]} are missing")
            in_line = known == sorted(known, reverse=True)
            demand(
                in_line, f"{what}: of its {len(known)} rows only {known.count(True)} stand there"
            )
            there = zip(values, found, strict=True)
            places += chain.from_iterable([(value, at) for at in ats] for value, ats in there)
        for (before, at), (after, then) in pairwise(places):
            demand(at < then, f"{spot}: {before!r} stands at {at}, and {after!r} at {then}")
