"""The course of the demonstration: fill, stream, kill, start again, compare.

Decides nothing about what is right: `result.py` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq import sync

from . import parquet, topics
from .driver_process import DriverProcess
from .result import Interruption, Result
from .totals import add_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from examples.flights.data import Flight
    from examples.flights.view import View
    from raftmq.sync import Client

    from .driver_process import Step

BATCHES = 10
BATCH_KILLED = BATCHES // 2  # or a later one: the first of them that has rows


class Demo:
    """One run, on a cluster without topics.

    Args:
        folder: for what the streaming program writes.
        flights: in the order of time.
    """

    def __init__(self, bootstrap: str, folder: Path, flights: Sequence[Flight], view: View) -> None:
        self._bootstrap, self._folder, self._flights = bootstrap, folder, flights
        self._view = view
        self._records = 0
        self._batches = 0  # that are done

    def run(self) -> Result:
        with sync.connect(self._bootstrap, client_id="spark-demo") as client:
            self._fill(client)
            interruption = self._interrupt(client)
            if interruption is not None:
                interruption = interruption._replace(is_repeated=self._finish(interruption))
            self._view.say("comparing with what plain Python adds up")
            return Result(
                expected=add_up(self._flights),
                topic=topics.read_results(client),
                parquet=parquet.read_results(self._folder / "parquet"),
                batches=self._batches,
                interruption=interruption,
            )

    def _fill(self, client: Client) -> None:
        topics.make_topics(client)
        on_terminal = self._view.console.is_terminal
        self._records = topics.send_flights(client, self._flights, progress=on_terminal)
        self._view.say(
            f"topic {topics.FLIGHTS}: {self._records:,} records, one of them to close the last"
            f" hours, in {topics.PARTITIONS[topics.FLIGHTS]} partitions, in the order of time"
        )

    def _interrupt(self, client: Client) -> Interruption | None:
        """Kill the program between its two writes of a microbatch. If that came too late, as on a
        busy machine, the microbatch is over: then the same with a later one.
        """
        batch_min = BATCH_KILLED
        while (batch := self._run_and_kill(batch_min)) is not None:
            rows = sum(row.batch == batch for row in topics.read_results(client))
            if not self._is_over(batch):
                self._view.say(
                    f"kill -9 of the streaming program in microbatch {batch}:"
                    f" {rows:,} rows of it stand in the topic, and Spark does not know"
                )
                return Interruption(batch, rows)
            batch_min = batch + 1
        return None

    def _run_and_kill(self, batch_min: int) -> int | None:
        """In which microbatch; None: it has ended before."""
        self._view.say("the streaming program is started")
        with self._driver() as driver:
            for step in self._shown(driver):
                if step.word == "written" and step.batch >= batch_min and step.rows:
                    driver.kill()
                    return step.batch
        return None

    def _finish(self, interruption: Interruption) -> bool:
        """Whether the microbatch was run again."""
        self._view.say("it is started again, and goes on from its checkpoint")
        with self._driver() as driver:
            return interruption.batch in [step.batch for step in self._shown(driver)]

    def _driver(self) -> DriverProcess:
        records_max = -(-self._records // BATCHES)
        return DriverProcess(self._bootstrap, self._folder, records_max=records_max)

    def _shown(self, driver: DriverProcess) -> Iterator[Step]:
        with self._view.console.status("Spark is at work"):
            for step in driver.steps():
                if step.word == "done":
                    self._batches = step.batch + 1
                    self._view.say(f"microbatch {step.batch}: {step.rows:,} carriers and hours")
                yield step

    def _is_over(self, batch: int) -> bool:
        """As Spark's checkpoint says."""
        return (self._folder / "checkpoint" / "commits" / str(batch)).exists()
