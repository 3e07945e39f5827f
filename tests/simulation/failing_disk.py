"""The failure sweep of partition logs: let one disk operation fail, restart, and examine.

Owns the failures: a full disk for writes and new files, an I/O error for everything else, where
a failed sync also loses the bytes. What is owed is only what was reported durable: after a failure
the log is offline, and the page cache shows things that the disk does not hold.
"""

from __future__ import annotations

import errno
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from raftmq.errors import StorageError
from tests.simulation.crash_case import OPERATIONS, Case, Failure
from tests.simulation.crash_examination import Photograph, crashed
from tests.simulation.crash_script import ROOT, CrashScript
from tests.simulation.deterministic import run
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.disk_faults import Moment


def failures_of(seed: int, numbers: Iterable[int]) -> Iterator[Failure]:
    """Every broken promise after one of these operations failed."""
    for number in numbers:
        failure = FailingDisk(Case(seed, number, "failure")).run()
        if failure:
            yield failure


class FailingDisk:
    """One script on a disk whose operation number `case.at` fails."""

    def __init__(self, case: Case) -> None:
        self._case = case
        mount = ROOT if case.seed % 2 else None
        random = Random(f"{case.seed}/disk")
        self.disk = SimulatedFiles(random, interrupt=self._interrupt, mount=mount)
        self._script = CrashScript(case.seed, self.disk)

    def run(self) -> Failure | None:
        try:
            run(f"{self._case.seed}/script", partial(self._script.run, OPERATIONS))
        except StorageError:
            pass  # the user of the log got the error
        except Exception as error:
            return Failure(self._case, error)
        return self._photograph().examine()

    def _interrupt(self, count: int, moment: Moment) -> None:
        self._script.on_operation(moment)
        if (count, moment) == (self._case.at, "before"):
            operation = self._operation()
            full = operation in ("write", "create", "mkdir")
            self.disk.fail(operation, "*", error=errno.ENOSPC if full else errno.EIO)

    def _operation(self) -> str:
        """Such as "sync": the second word of its line in the trace."""
        return self.disk.trace[self._case.at - 1].split()[1]

    def _photograph(self) -> Photograph:
        """The broker has stopped, in order or not: the process or the machine starts again."""
        random = self._case.random("disk")
        disk = crashed(self.disk, random.choice(("kill", "power")), random)
        may_be_damaged = self._operation() in ("sync", "write_back", "sync_file_system")
        return Photograph(
            self._case,
            disk,
            self._script.observe(),
            power_lost=True,
            may_be_damaged=may_be_damaged,
        )
