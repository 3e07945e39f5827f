"""Opens a crashed disk and examines the logs: is everything there that was owed, do they go on?

Owns the way of one crashed disk through further openings: one may be interrupted by another crash,
then the logs are checked and perhaps used, then the directory is closed or crashes once more and
everything is checked again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.partition.storage.directory import open_log_directory
from tests.simulation.crash_case import Case, Failure
from tests.simulation.crash_expectation import Expectation, stored_batches
from tests.simulation.crash_script import EPOCH_MS, LOGS, ROOT, make_batches
from tests.simulation.deterministic import run, run_inline
from tests.simulation.disk_faults import PowerCut, crash_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from tests.simulation.crash_case import Mode
    from tests.simulation.disk import SimulatedFiles

INTERRUPTED = 0.3  # probability that an opening is crashed, too
CRASHED_AGAIN = 0.7  # probability of a crash in place of a close at the end
OPENING_OPERATIONS = 40  # an opening seldom needs more
LATER_MS = EPOCH_MS + 100_000_000


def crashed(disk: SimulatedFiles, mode: Mode, random: Random) -> SimulatedFiles:
    """What a crash of this kind would leave of `disk` now."""
    return disk.photograph(random, power_lost=mode != "kill", reorder=mode == "reorder")


class Photograph(NamedTuple):
    """What a crash leaves, and what the logs owed at that moment.

    Attributes:
        power_lost: only what was reported durable is owed.
        may_be_damaged: a failed sync took bytes from the middle of data that was not promised.
    """

    case: Case
    disk: SimulatedFiles
    owed: dict[str, Expectation]
    power_lost: bool
    may_be_damaged: bool = False

    def examine(self) -> Failure | None:
        try:
            Examination(self).perform()
        except Exception as error:  # any error of the log is a finding
            return Failure(self.case, error)
        return None


class Examination:
    """The further life of what is on a photograph."""

    def __init__(self, photograph: Photograph) -> None:
        case, self._disk, self._owed, self._power_lost, self._may_be_damaged = photograph
        self._random = case.random("examination")
        self._modes: tuple[Mode, ...] = ("kill", "power", "reorder")
        if case.mode != "reorder":
            self._modes = ("kill", "power")

    def perform(self) -> None:
        """Raises what is wrong, for example a Violation."""
        random = self._random
        if random.random() < INTERRUPTED:
            self._open_interrupted()
        self._open(appends=random.random() < 0.7, closes=random.random() < 0.3)
        if random.random() < CRASHED_AGAIN:
            self._crash()
            self._open(appends=False, closes=False)

    def _open_interrupted(self) -> None:
        number = self._random.randrange(1, OPENING_OPERATIONS)
        self._disk.interrupt = crash_at(number, self._random.choice(("before", "torn", "after")))
        self._run(self._open_only)
        self._crash()

    def _crash(self) -> None:
        mode = self._random.choice(self._modes)
        self._power_lost = self._power_lost or mode != "kill"
        self._disk = crashed(self._disk, mode, self._random)

    def _open(self, *, appends: bool, closes: bool) -> None:
        self._run(partial(self._check, appends=appends, closes=closes))
        self._power_lost = False

    def _run(self, use: Callable[[LogDirectory], Awaitable[None]]) -> None:
        async def main() -> None:
            async with open_log_directory(
                ROOT, files=self._disk, run_sync=run_inline, now_ms=lambda: LATER_MS
            ) as directory:
                await use(directory)

        with suppress(PowerCut):
            run(str(self._random.random()), main)

    async def _open_only(self, directory: LogDirectory) -> None:
        await directory.open_logs(LOGS)

    async def _check(self, directory: LogDirectory, *, appends: bool, closes: bool) -> None:
        """From now on only what the logs say now is owed."""
        for log in await directory.open_logs(LOGS):
            owed = self._owed[log.name]
            served = owed.check(
                log,
                random=self._random,
                power_lost=self._power_lost,
                may_be_damaged=self._may_be_damaged,
            )
            start = log.log_start_offset
            owed = self._owed[log.name] = Expectation(served, [], 0, start, start)
            if appends and not log.damage:
                await self._append(directory, log, owed)
            owed.observe(log)
        if closes:
            self._owe_everything()
        else:
            self._disk.crash()

    def _owe_everything(self) -> None:
        """After a clean close all of it is durable."""
        for owed in self._owed.values():
            owed.promised = owed.end_offset

    async def _append(self, directory: LogDirectory, log: PartitionLog, owed: Expectation) -> None:
        epoch = max(log.epochs.latest, 0)
        sent, placed = make_batches(self._random, log, epoch=epoch, timestamp=LATER_MS)
        owed.begin_append(stored_batches(placed))
        log.append(sent, leader_epoch=epoch, now_ms=LATER_MS, now=trio.current_time())
        owed.complete_append()
        await directory.flusher.wait_durable(log, log.log_end_offset)
