"""Finds the switches that this process has started."""

from __future__ import annotations

import os
from pathlib import Path

_SWITCH = b"jepsen_like.network.switch"


def switch_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_my_switch(entry)]


def _is_my_switch(entry: Path) -> bool:
    try:
        command, status = (entry / "cmdline").read_bytes(), (entry / "status").read_text()
    except OSError:  # it has just ended
        return False
    return _SWITCH in command and f"\nPPid:\t{os.getpid()}\n" in status
