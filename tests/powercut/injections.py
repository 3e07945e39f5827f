"""strace command lines that make the disk misbehave at a chosen system call.

Owns the spelling. strace counts the calls of each thread and each kind on their own. Only what is
below `path` is touched where one is given, so that a test knows which log it hits.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.powercut.content import TOPIC

if TYPE_CHECKING:
    from pathlib import Path

WRITES = "pwritev,pwritev2,pwrite64"
SYNCS = "fdatasync,fsync,syncfs"


def first_segment(root: Path, partition: int) -> Path:
    """Where the partition's first batches go."""
    return root / "topics" / TOPIC / f"Partition-{partition}" / f"{0:020}.log"


def killed_at_sync(number: int) -> list[str]:
    return _strace("-e", f"trace={SYNCS}", "-e", f"inject={SYNCS}:signal=SIGKILL:when={number}")


def failing_sync(path: Path, number: int) -> list[str]:
    """The `number`-th and all later syncs of this file say EIO and do nothing."""
    inject = f"inject={SYNCS}:error=EIO:when={number}+"
    return _strace("-P", str(path), "-e", f"trace={SYNCS}", "-e", inject)


def failing_syncs(number: int) -> list[str]:
    """The same for a thread's syncs of whatever file."""
    return _strace("-e", f"trace={SYNCS}", "-e", f"inject={SYNCS}:error=EIO:when={number}+")


def slow_sync(path: Path, seconds: float, when: str) -> list[str]:
    inject = f"inject={SYNCS}:delay_enter={seconds * 1e6:.0f}:when={when}"
    return _strace("-P", str(path), "-e", f"trace={SYNCS}", "-e", inject)


def failing_call(call: str, number: int, output: Path) -> list[str]:
    """The `number`-th call of that kind in a thread says ENOSPC, once; `output` tells which."""
    inject = f"inject={call}:error=ENOSPC:when={number}"
    return _strace("-e", f"trace={call}", "-e", inject, output=str(output))


def failing_write(path: Path) -> list[str]:
    """No write to this file succeeds."""
    inject = f"inject={WRITES}:error=ENOSPC"
    return _strace("-P", str(path), "-e", f"trace={WRITES}", "-e", inject)


def counted_syncs(output: Path) -> list[str]:
    """Write every sync to `output`."""
    return _strace("-e", f"trace={SYNCS}", output=str(output))


def _strace(*options: str, output: str = os.devnull) -> list[str]:
    return ["strace", "-f", "-qq", "-o", output, *options]
