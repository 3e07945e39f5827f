"""Bugs planted in a real cluster, and whether a run finds them.

    python -m tests.jepsen_like.planted_runs [--bug NAME ...] [--seed N] [--folder DIR]

Owns the command, and `find`, which plays one run in a process of its own: a run changes its process
for good. Exits with 1 if a bug was not found, or if nothing of it was ever called.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from jepsen_like.planted.patch import CALLED, PLANTED, places_told
from jepsen_like.planted.real import BUGS
from jepsen_like.report.folder import RunFolder
from jepsen_like.run import run

RUN_SECONDS_MAX = 600.0


class Found(NamedTuple):
    """Attributes:
    findings: names of all that was found.
    as_expected: one of those that shall find this bug is among them.
    uncalled: what the bug has patched, and no process of the run has called.
    is_in_vain: that is all of it; some may be for other disks, or other faults.
    seconds: of the whole run.
    """

    bug: str
    findings: tuple[str, ...]
    as_expected: bool
    uncalled: tuple[str, ...]
    is_in_vain: bool
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.as_expected and not self.is_in_vain

    def __str__(self) -> str:
        said = ", ".join(self.findings) or "NOTHING"
        said += "; planted in vain" if self.is_in_vain else ""
        said += f"; nothing called {', '.join(self.uncalled)}" if self.uncalled else ""
        mark = "found" if self.is_good else "MISSED"
        return f"{mark:7}{self.bug:36}{self.seconds:4.0f} s  {said}"


def find(bug: str, folder: Path, *, seed: int | None = None) -> Found:
    """What its run comes to. The folder stays."""
    began_at, seeds = time.monotonic(), [] if seed is None else ["--seed", str(seed)]
    command = [sys.executable, "-m", "tests.jepsen_like.planted_runs", "--play", bug, *seeds]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert (folder / "verdict.json").exists(), done.stderr[-3000:]
    run_folder, seconds = RunFolder(folder), time.monotonic() - began_at
    findings = tuple(found.name for found in run_folder.read().verdict.failures)
    logs = [path.read_text(errors="replace") for path in run_folder.nodes_path.glob("*.log")]
    said = "".join([done.stderr, *logs])
    places, called = places_told(PLANTED, said), places_told(CALLED, said)
    return Found(
        bug,
        findings,
        as_expected=bool({*findings} & {*BUGS[bug].found_as}),
        uncalled=tuple(sorted(places - called)),
        is_in_vain=bool(places) and not called,
        seconds=seconds,
    )


def play(bug: str, folder: Path, seed: int | None) -> None:
    settings = BUGS[bug].settings
    run(settings if seed is None else replace(settings, seed=seed), folder, bug=bug)


def main() -> int:
    arguments = parse_arguments()
    if arguments.play:
        play(arguments.play, arguments.folder, arguments.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="raftmq-planted-") as temporary:
        missed = 0
        for bug in arguments.bug:
            found = find(bug, (arguments.folder or Path(temporary)) / bug, seed=arguments.seed)
            missed += not found.is_good
            sys.stdout.write(f"{found}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(arguments.bug) - missed} of {len(arguments.bug)} found\n")
    return 1 if missed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen_like.planted_runs")
    parser.add_argument("--bug", nargs="+", choices=list(BUGS), default=list(BUGS))
    parser.add_argument("--seed", type=int, default=None, help="in place of each bug's own")
    parser.add_argument("--folder", type=Path, default=None, help="to keep the runs in")
    parser.add_argument("--play", choices=list(BUGS), default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
