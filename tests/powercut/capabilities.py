"""What this machine can do for the tests on a real kernel, each found out by doing it once.

Owns the probe of strace; those of disks are `jepsen_like.nodes.capabilities`. Each returns why a
thing does not work here, or "" if it does. `require` skips the test that lacks something, by name;
in CI a skip is a failure (tests/conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.capabilities import loop_mounts as loop_mounts
from jepsen_like.nodes.capabilities import memory_disks as memory_disks
from jepsen_like.nodes.capabilities import power_cuts as power_cuts

if TYPE_CHECKING:
    from collections.abc import Callable

_SYNC_ONCE = "import os; os.fdatasync(os.open({path!r}, os.O_RDONLY))"


def require(*probes: Callable[[], str]) -> None:
    for probe in probes:
        reason = probe()
        if reason:
            pytest.skip(reason)


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
