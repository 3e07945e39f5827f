"""The crash sweep of partition logs: crash at every disk operation of a script, and examine.

Owns the crashes: at each operation a snapshot of the disk is taken for each mode, which is what
a crash at that moment would leave; afterwards each is examined against what the logs owed then.
Operations that fail instead are in `failing_disk.py`, and a mode of the command.

    python -m tests.simulation.crash_sweep --seeds 100              many scripts, for soak
    python -m tests.simulation.crash_sweep --seed S --at N --mode M [--trace]       one crash
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.crash_case import MODES, OPERATIONS, Case, Failure, Sweep
from tests.simulation.crash_examination import Photograph, crashed
from tests.simulation.crash_script import ROOT, CrashScript
from tests.simulation.deterministic import run
from tests.simulation.disk import SimulatedFiles
from tests.simulation.failing_disk import failures_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.crash_case import Mode
    from tests.simulation.disk_faults import Moment

# What the test suite does at every run; soak goes through many seeds.
SWEEPS = (
    Sweep(0, "kill"),
    Sweep(1, "reorder"),
    Sweep(5, "power"),
    Sweep(9, "kill"),
    Sweep(2024, "kill"),
    Sweep(2001, "reorder"),
)


class Camera:
    """Runs one script and photographs its disk: at each operation, or only at number `at`."""

    def __init__(self, seed: int, modes: Sequence[Mode], at: int | None) -> None:
        self._seed, self._modes, self._at = seed, modes, at
        self.photographs: list[Photograph] = []
        # Half of the disks belong to the data directory, which then may sync all of it at once.
        mount = ROOT if seed % 2 else None
        self.disk = SimulatedFiles(Random(f"{seed}/disk"), interrupt=self._interrupt, mount=mount)
        self._script = CrashScript(seed, self.disk)

    def run_script(self) -> Failure | None:
        """What goes wrong without any crash, if anything does."""
        try:
            run(f"{self._seed}/script", partial(self._script.run, OPERATIONS))
        except Exception as error:
            return Failure(Case(self._seed, self.disk.count, "kill"), error)
        return None

    def _interrupt(self, count: int, moment: Moment) -> None:
        self._script.on_operation(moment)
        if self._at is not None and count != self._at:
            return
        for mode in self._modes:
            case = Case(self._seed, count, mode)
            if moment == self._moment(case):
                disk = crashed(self.disk, mode, case.random("disk"))
                owed = self._script.observe()
                self.photographs.append(Photograph(case, disk, owed, power_lost=mode != "kill"))

    def _moment(self, case: Case) -> Moment:
        is_write = " write " in self.disk.trace[case.at - 1]
        moments: list[Moment] = ["before", "torn", "after"] if is_write else ["before", "after"]
        return case.random("moment").choice(moments)


def failures(seed: int, modes: Sequence[Mode], at: int | None = None) -> Iterator[Failure]:
    """Every crash of one script that breaks a promise, in no order of time, but always the same.

    Most bugs show at a few crashes in a hundred: in this order the first is found soon.
    """
    camera = Camera(seed, [mode for mode in modes if mode != "failure"], at)
    failure = camera.run_script()
    if failure:
        yield failure
    if "failure" in modes:
        yield from failures_of(seed, range(1, OPERATIONS + 1) if at is None else [at])
    Random(seed).shuffle(camera.photographs)
    for photograph in camera.photographs:
        failure = photograph.examine()
        if failure:
            yield failure


def first_failure(sweep: Sweep) -> Failure | None:
    return next(failures(sweep.seed, [sweep.mode]), None)


def main() -> None:
    options = _parser().parse_args()
    if not options.trace:
        logging.disable(logging.CRITICAL)
    modes = [options.mode] if options.mode else MODES
    failed = 0
    for number in range(options.seeds):
        seed = options.seed + number
        found = sorted(failures(seed, modes, options.at), key=lambda failure: failure.case)
        failed += bool(found)
        sys.stderr.write(f"\rseed {seed}: {failed} of {number + 1} scripts failed")
        for failure in found[: options.show]:
            _write_failure(failure, with_traceback=options.trace)
    if options.trace:
        _write_trace(options.seed, options.at)
    sys.stderr.write("\n")
    sys.exit(1 if failed else 0)


def _write_failure(failure: Failure, *, with_traceback: bool) -> None:
    sys.stdout.write(f"\n{failure}\n")
    if with_traceback:
        sys.stdout.write("".join(traceback.format_exception(failure.error)))


def _write_trace(seed: int, at: int | None) -> None:
    camera = Camera(seed, [], at)
    camera.run_script()
    sys.stdout.write("\n".join(camera.disk.trace[:at]) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first script")
    parser.add_argument("--seeds", type=int, default=1, help="how many scripts")
    parser.add_argument("--at", type=int, help="crash at this operation only")
    parser.add_argument("--mode", choices=MODES, help="crash in this way only")
    parser.add_argument("--show", type=int, default=3, help="failures to print for each seed")
    parser.add_argument("--trace", action="store_true", help="print operations and tracebacks")
    return parser


if __name__ == "__main__":
    main()
