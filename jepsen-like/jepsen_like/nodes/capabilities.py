"""Probes for disk faults (loop mounts, power cuts, tmpfs): can this machine inject them?

Each probe returns why it does not work here, or "" if it does.
"""

from __future__ import annotations

import os
from functools import cache

from jepsen_like.nodes.disk import loop_disk, memory_disk
from jepsen_like.nodes.mounts import DiskError


@cache
def loop_mounts() -> str:
    """mkfs.ext4, loop devices and mount."""
    try:
        with loop_disk(size_mib=8) as disk:
            (disk.mount_point / "probe").write_bytes(b"x")
    except (DiskError, OSError) as error:
        return f"no loop-mounted ext4{_as_whom()}: {error}"
    return ""


@cache
def power_cuts() -> str:
    """The ioctl that stops a file system at once: what was not synced must be gone after it."""
    if loop_mounts():
        return loop_mounts()
    try:
        with loop_disk(size_mib=8) as disk:
            (disk.mount_point / "probe").write_bytes(b"x")
            disk.cut_power()
            survived = (disk.mount_point / "probe").exists()
    except (DiskError, OSError) as error:
        return f"no power cuts (EXT4_IOC_SHUTDOWN){_as_whom()}: {error}"
    return "power cuts lose nothing here" if survived else ""


@cache
def memory_disks() -> str:
    """tmpfs of a chosen size."""
    try:
        with memory_disk(size_mib=1):
            return ""
    except (DiskError, OSError) as error:
        return f"no tmpfs mount{_as_whom()}: {error}"


def _as_whom() -> str:
    return "" if os.geteuid() == 0 else f" (needs root, this is user {os.geteuid()})"
