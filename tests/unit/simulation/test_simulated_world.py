"""The frame of simulated worlds: what belongs to the trace, and what happens beside it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from threading import Thread
from typing import NamedTuple

from tests.simulation.network_pipe import Latency
from tests.simulation.simulated_world import SimulatedWorld


class Plan(NamedTuple):
    latency: Latency = Latency()
    seconds: float = 1.0
    kinds: tuple[str, ...] = ()
    disk_seconds: tuple[float, float] = (0.0, 0.0)


class Talk(SimulatedWorld):
    """Something is said in this thread, and something in another one."""

    module = "tests.unit.simulation.test_simulated_world"
    logger = logging.getLogger("raftmq.talk")

    async def main(self) -> None:
        self.logger.info("inside")
        beside = Thread(target=self.logger.info, args=("beside",))
        beside.start()
        beside.join()

    def tuned(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_log(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_what_other_threads_log_is_no_part_of_it() -> None:
    """A broker that other tests have started says something while a world is played."""
    talk = Talk(1, Plan(), wanted=())
    talk.play()
    assert talk.lines == ["inside"]
