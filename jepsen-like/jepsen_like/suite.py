"""The ladder: the runs of a level, one after the other as processes, and a table of them.

Owns which runs make a level. Each run is a process of its own, so that its namespaces and mounts
end with it in any case. Level 1 is for every change, level 2 for a night, level 3 for a release:
fourteen minutes, about three hours, a day.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from subprocess import run as run_process
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jepsen_like.report.folder import RunFolder
from jepsen_like.report.ladder import ladder_table
from jepsen_like.settings import BadSettings, RunSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PROCESSES = ("kill", "pause", "freezer")
NETWORK = ("partition", "stranded-leader", "reset", "packets")
ABSENCES = ("part-kill", "pause-kill")
POWER = ("powercut", "fsync-kill")
DISKS = ("fsync-eio", "fsync-slow", "disk-stall", "disk-full")
DATA = ("bitflip", "truncate", "journal-damage", "old-directory")
# No reader gets a scheduled batch where it stands, so that none finds what rots in it.
FILES = tuple(kind for kind in DATA if kind != "bitflip")
EVERYTHING = (*PROCESSES, *NETWORK, *ABSENCES, *POWER, *DISKS, *DATA, "clock")

PROGRAM = Path(__file__).parents[1]
FAULT_EVENTS, RECOVERY_PACE = 20, 2.5
OWNERS = 12  # of transaction ids: so many blocks under way that most faults hit an open one


@dataclass(frozen=True)
class Rung:
    """Attributes:
    settings: their seed is added to the first one of the ladder.
    """

    name: str
    settings: RunSettings


def _queue(*kinds: str, seconds: float, **others: object) -> RunSettings:
    return replace(RunSettings(nemesis=kinds, time_limit=seconds), **others)


def _metadata(*kinds: str, seconds: float) -> RunSettings:
    return RunSettings(workload="metadata", nemesis=kinds, time_limit=seconds)


def _groups(*kinds: str, seconds: float) -> RunSettings:
    return RunSettings(workload="groups", nemesis=kinds, time_limit=seconds)


def _reruns(*kinds: str, seconds: float) -> RunSettings:
    return RunSettings(workload="reruns", nemesis=kinds, time_limit=seconds)


def _schedule(*kinds: str, seconds: float, **others: object) -> RunSettings:
    return replace(RunSettings(workload="schedule", nemesis=kinds, time_limit=seconds), **others)


def _retries(*kinds: str, seconds: float, pace: float = 4.0) -> RunSettings:
    return RunSettings(workload="retries", nemesis=kinds, time_limit=seconds, pace=pace)


def _transactions(*kinds: str, seconds: float, pace: float = 4.0) -> RunSettings:
    return RunSettings(
        workload="transactions", nemesis=kinds, time_limit=seconds, pace=pace, processes=OWNERS
    )


def _recovery(*kinds: str) -> RunSettings:
    """Each kind so often, and all whole in between: for figures."""
    return RunSettings(nemesis=kinds, fault_events=FAULT_EVENTS, pace=RECOVERY_PACE)


FIRST = (
    Rung("processes and network", _queue("kill", "pause", "partition", seconds=120)),
    Rung("power and disks", _queue(*POWER, *DISKS, seconds=90)),
    Rung("damage", _queue("kill", *DATA, seconds=60)),
    Rung("metadata", _metadata("kill", "pause", "partition", seconds=40)),
    Rung("groups", _groups("kill", "pause", "partition", seconds=60)),
    Rung("reruns", _reruns("kill", "pause", "partition", seconds=40)),
    Rung("transactions", _transactions("kill", "pause", "partition", seconds=60)),
    Rung("schedule", _schedule("kill", "pause", "partition", "clock", seconds=60)),
    Rung("retries", _retries("kill", "pause", "partition", "powercut", seconds=60)),
)
SECOND = (
    Rung("processes in turn", _recovery(*PROCESSES)),
    Rung("network in turn", _recovery(*NETWORK)),
    Rung("absences in turn", _recovery(*ABSENCES)),
    Rung("power in turn", _recovery(*POWER)),
    Rung("disks in turn", _recovery(*DISKS)),
    Rung("data in turn", _recovery(*DATA)),
    Rung("clocks in turn", _recovery("clock")),
    Rung("power alone", _queue(*POWER, seconds=240, pace=2.5)),
    Rung("everything", _queue(*EVERYTHING, seconds=240)),
    Rung("everything on five nodes", _queue(*EVERYTHING, seconds=240, nodes=5)),
    Rung("metadata", _metadata(*PROCESSES, *NETWORK, "powercut", seconds=180)),
    Rung("groups", _groups(*PROCESSES, *NETWORK, *POWER, seconds=240)),
    Rung(
        "leaders killed",
        replace(
            _recovery("kill"),
            whom=("leader", "controller", "leader-and-controller"),
            fault_events=60,
        ),
    ),
    Rung("power of all", replace(_recovery("powercut"), whom=("all",), fault_events=12)),
    Rung("reruns", _reruns(*PROCESSES, *NETWORK, *ABSENCES, *POWER, seconds=240)),
    Rung(
        "transactions",
        _transactions(*PROCESSES, *NETWORK, *ABSENCES, *POWER, seconds=600, pace=2.5),
    ),
    Rung("transactions and damage", _transactions("kill", *DATA, "clock", seconds=480)),
    Rung(
        "transactions in turn",
        replace(_recovery(*PROCESSES, *NETWORK, *POWER), workload="transactions", processes=OWNERS),
    ),
    Rung(
        "schedule",
        _schedule(*PROCESSES, *NETWORK, *ABSENCES, *POWER, seconds=300, pace=2.5),
    ),
    Rung(
        "schedule, clocks, disks and damage",
        _schedule("kill", "clock", *DISKS, *FILES, seconds=240),
    ),
    Rung(
        "retries",
        _retries(*PROCESSES, *NETWORK, *ABSENCES, *POWER, "clock", seconds=300, pace=2.5),
    ),
)
THIRD = tuple(
    Rung(f"everything {number}", _queue(*EVERYTHING, seconds=1800, nodes=3 + 2 * (number % 2)))
    for number in range(48)
)
LEVELS = {1: FIRST, 2: SECOND, 3: THIRD}


def chosen(level: int, words: Collection[str]) -> tuple[int, ...]:
    """Numbers of rungs, of which the lowest one is 1.

    Args:
        words: that name them; none: all.

    Raises:
        BadSettings: a word is no such number.
    """
    numbers = {f"{number}": number for number in range(1, len(LEVELS[level]) + 1)}
    unknown = sorted(set(words) - set(numbers))
    if unknown:
        raise BadSettings(f"rungs = {','.join(unknown)}: expected 1 to {len(numbers)}")
    return tuple(number for word, number in numbers.items() if word in words or not words)


def climb(level: int, *, rungs: Collection[int], first_seed: int, folder: Path) -> str:
    """These runs of a level, even after one that failed; the outcome of the worst."""
    ladder = LEVELS[level]
    folder = folder / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-level-{level}"
    runs, began_at = list[RunFolder](), time.monotonic()
    try:
        for number in rungs:
            rung = ladder[number - 1]
            runs.append(RunFolder(folder / f"{number:02}-{rung.name.replace(' ', '-')}"))
            settings = replace(rung.settings, seed=first_seed + number - 1)
            _say(f"[{number}/{len(ladder)}] {rung.name}: {settings.command}")
            run_process([*_command(settings), "--folder", str(runs[-1].path)], check=False)
            _say(f"    {runs[-1].headline()}")
    finally:  # also after Ctrl-C, of the runs that were done
        _tell(runs, folder, time.monotonic() - began_at)
    return worst(run.outcome() for run in runs)


def _tell(runs: list[RunFolder], folder: Path, seconds: float) -> None:
    table = ladder_table(runs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table)
    sys.stdout.write(f"{table}\n{seconds:.0f} seconds in all; {folder}\n")


def _command(settings: RunSettings) -> list[str]:
    return [sys.executable, str(PROGRAM), *settings.command.split()[2:]]


def worst(outcomes: Iterable[str]) -> str:
    """A run that proves nothing is no success, and no failure either."""
    found = set(outcomes)
    return next(outcome for outcome in ("failed", "unknown", "passed") if outcome in found)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
