"""What this machine can do for the tests on a real kernel, each found out by doing it once.

Owns the probes; each returns why a thing does not work here, or "" if it does. `require` skips
the test that lacks something, by name; in CI a skip is a failure (tests/conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.powercut.disk import DiskError, loop_disk, memory_disk

if TYPE_CHECKING:
    from collections.abc import Callable

_SYNC_ONCE = "import os; os.fdatasync(os.open({path!r}, os.O_RDONLY))"


def require(*probes: Callable[[], str]) -> None:
    for probe in probes:
        reason = probe()
        if reason:
            pytest.skip(reason)


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


@cache
def strace() -> str:
    """strace, allowed to trace and to make a system call fail."""
    inject = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=fdatasync:error=EDQUOT"]
    command = [*inject, sys.executable, "-S", "-c", _SYNC_ONCE.format(path=__file__)]
    try:
        traced = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no strace: {error}"
    if "Disk quota exceeded" in traced.stderr:
        return ""
    return f"strace does not inject failures: {traced.stderr.strip()[-200:]}"


def _as_whom() -> str:
    return "" if os.geteuid() == 0 else f" (needs root, this is user {os.geteuid()})"
