"""Freezes whole processes by control groups: the freezer of cgroup v1, or of v2.

Owns groups named after the process that made them, and their removal, also of groups that processes
that have ended left behind. A frozen process of v1 does not even die: thaw it first.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

PREFIX = "raftmq-jepsen-"
MOUNTS = Path("/proc/self/mounts")
_PATIENCE = 2.0  # seconds; a process that waits for a stalled disk freezes when that goes on
_LOOK_SECONDS = 0.002  # between checks of a state that changes within milliseconds
_numbers = itertools.count(1)


class Hierarchy(NamedTuple):
    """Where groups are made, and by which files they are frozen."""

    root: Path
    version: int

    def order(self, group: Path, *, frozen: bool) -> None:
        if self.version == 1:
            (group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        else:
            (group / "cgroup.freeze").write_text(str(int(frozen)))

    def is_frozen(self, group: Path) -> bool:
        if self.version == 1:
            return (group / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()


def find_hierarchies(mounts: str) -> list[Hierarchy]:
    """Of what `/proc/self/mounts` says, the best first."""
    found = []
    for line in mounts.splitlines():
        _, root, kind, options, *_ = line.split()
        if kind == "cgroup" and "freezer" in options.split(","):
            found.append(Hierarchy(Path(root), 1))
        elif kind == "cgroup2":
            found.append(Hierarchy(Path(root), 2))
    return sorted(found, key=lambda hierarchy: hierarchy.version)


class Freezer:
    """One group per node, all below one of this process; `close` removes them."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        remove_leftovers(hierarchy)
        self._folder = hierarchy.root / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._folder.mkdir()

    def admit(self, name: str, pid: int) -> None:
        """What the process starts later belongs to the group, too."""
        (self._folder / name).mkdir(exist_ok=True)
        with suppress(ProcessLookupError):
            (self._folder / name / "cgroup.procs").write_text(str(pid))

    def freeze(self, name: str) -> None:
        """Until it is, or a while: what waits in the kernel freezes when it comes back."""
        self._hierarchy.order(self._folder / name, frozen=True)
        deadline = time.monotonic() + _PATIENCE
        while not self.is_frozen(name) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def is_frozen(self, name: str) -> bool:
        return self._hierarchy.is_frozen(self._folder / name)

    def thaw(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._hierarchy.order(self._folder / name, frozen=False)

    def close(self) -> None:
        remove(self._hierarchy, self._folder)


def remove_leftovers(hierarchy: Hierarchy) -> None:
    """Kill processes that were frozen by a process that has ended."""
    for folder in hierarchy.root.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            remove(hierarchy, folder)


def remove_all_of(hierarchy: Hierarchy, owner: int) -> None:
    """Kill all processes in its groups, and remove these."""
    for folder in hierarchy.root.glob(f"{PREFIX}{owner}-*"):
        remove(hierarchy, folder)


def remove(hierarchy: Hierarchy, folder: Path) -> None:
    """The groups below `folder` with all processes in them, and itself."""
    with suppress(FileNotFoundError):  # another one may be doing the same
        for group in [path for path in folder.iterdir() if path.is_dir()]:
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            hierarchy.order(group, frozen=False)
            _remove_empty(group)
        _remove_empty(folder)


def _remove_empty(group: Path) -> None:
    """Retried: killed processes are in it for a moment."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


def works(hierarchy: Hierarchy) -> str:
    """By doing it: freeze a process that sleeps."""
    try:
        freezer = Freezer(hierarchy)
    except OSError as error:
        return f"no groups of processes below {hierarchy.root}: {error.strerror}"
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        freezer.admit("probe", sleeper.pid)
        freezer.freeze("probe")
        is_frozen = freezer.is_frozen("probe")
    except OSError as error:
        return f"no process can be frozen below {hierarchy.root}: {error.strerror}"
    finally:
        sleeper.kill()
        freezer.close()
        sleeper.wait()
    return "" if is_frozen else f"nothing freezes below {hierarchy.root}"


@cache
def choose_hierarchy() -> tuple[Hierarchy | None, str]:
    """The first that works; or why none does."""
    reasons = []
    for hierarchy in find_hierarchies(MOUNTS.read_text()):
        reason = works(hierarchy)
        if not reason:
            return hierarchy, ""
        reasons.append(reason)
    return None, "; ".join(reasons) or "no cgroup with a freezer is mounted"
