"""Figures from measured times: percentiles, and what the disk itself takes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIR_BYTES = 300  # about what one command of 200 bytes takes in the journal


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def rounded_ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def sync_pairs(directory: Path, count: int) -> list[float]:
    """Seconds of two appends one after the other, each with its fdatasync.

    The least that a command costs: the leader's disk, then the follower's.
    """
    path, times = directory / "pairs", []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(count):
        start = time.perf_counter()
        for _ in range(2):
            os.write(descriptor, bytes(PAIR_BYTES))
            os.fdatasync(descriptor)
        times.append(time.perf_counter() - start)
    os.close(descriptor)
    path.unlink()
    return times


def resident_mib(process_id: int | str = "self") -> int:
    """Of a process, now."""
    status = Path(f"/proc/{process_id}/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) >> 10
