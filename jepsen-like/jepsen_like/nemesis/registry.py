"""The registry of faults: names that people type, the class of each, and what this machine can do.

Faults that this cluster cannot inject are left out, loudly, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis import absences, damage, disks, packets, partitions, power, processes
from jepsen_like.nemesis.clocks import Clock
from jepsen_like.nemesis.kinds import KINDS
from jepsen_like.nemesis.old_directory import OldDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jepsen_like.nemesis.fault import Fault, Scene

ALL = "all"
__all__ = ["ALL", "FAULTS", "KINDS", "UnknownKind", "check_kinds", "choose", "lacking"]

FAULTS: dict[str, Callable[[Scene], Fault]] = {
    "kill": processes.Kill,
    "pause": processes.Pause,
    "freezer": processes.Freezer,
    "partition": partitions.Partition,
    "stranded-leader": partitions.Partition,
    "part-kill": absences.PartKill,
    "pause-kill": absences.PauseKill,
    "reset": packets.Reset,
    "packets": packets.Packets,
    "clock": Clock,
    "powercut": power.PowerCut,
    "fsync-kill": disks.SyncKill,
    "fsync-eio": disks.SyncError,
    "fsync-slow": disks.SlowSync,
    "disk-stall": disks.DiskStall,
    "disk-full": disks.DiskFull,
    "bitflip": damage.BitFlip,
    "truncate": damage.Truncate,
    "journal-damage": damage.JournalDamage,
    "old-directory": OldDirectory,
}


class UnknownKind(Exception):
    """No fault has such a name: names it, and all that there are."""


def check_kinds(names: Sequence[str]) -> tuple[str, ...]:
    """In the order of the list, each once; `all` stands for all of them.

    Raises:
        UnknownKind: with all names that are none.
    """
    unknown = [name for name in names if name not in KINDS and name != ALL]
    if unknown:
        raise UnknownKind(
            f"no such fault: {', '.join(unknown)}; there are {', '.join(KINDS)}, and {ALL}"
        )
    return tuple(name for name in KINDS if name in names or ALL in names)


def lacking(names: Sequence[str], capabilities: Mapping[str, str]) -> dict[str, str]:
    """Of these kinds, those that the cluster cannot do, each with the reason."""
    return {name: reason for name in names if (reason := _lack(name, capabilities))}


def choose(
    names: Sequence[str], capabilities: Mapping[str, str], say: Callable[[str], object]
) -> tuple[str, ...]:
    """Those that the cluster can do.

    Args:
        say: called for each that is left out; it is to be loud.
    """
    left_out = lacking(names, capabilities)
    for name, reason in left_out.items():
        say(f"NOT TESTED: {name}: needs {KINDS[name].needs}: {reason}")
    return tuple(name for name in names if name not in left_out)


def _lack(name: str, capabilities: Mapping[str, str]) -> str:
    needs = KINDS[name].needs
    return capabilities.get(needs, "the cluster says nothing of it") if needs else ""
