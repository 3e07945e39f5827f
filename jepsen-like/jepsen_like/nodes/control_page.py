"""The control page of a node: sync delays, sync errors, kill countdown and clock offset, by mmap.

Owns the layout: little-endian, every field 8 bytes at a multiple of 8, so that a value is never
read half written. Each field has one writer, the harness or the node; a countdown that has fired is
the exception. Changes take effect at the next sync, or at the next read of the clock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 4096  # the smallest unit of mmap
_MAGIC = 0x31454741504D5152
_MICROSECONDS = 1_000_000


class _Layout(ctypes.LittleEndianStructure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("power_cuts", ctypes.c_int64),  # of the harness, down to `kill_at`
        ("clock_offset_ms", ctypes.c_int64),
        ("sync_delay_us", ctypes.c_int64),
        ("fail_syncs", ctypes.c_int64),
        ("kill_at", ctypes.c_int64),  # the number of a sync, 0 for none
        ("syncs", ctypes.c_int64),  # of the node
    )


class ControlPage:
    """Made by `create` or `open`; outlives the node and is used by its next life.

    Attributes:
        power_cuts: how often the node's machine has lost its power; its boot id.
        clock_offset_ms: what the node's wall clock is ahead of the true one.
        fail_syncs: every sync fails with EIO.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._layout = _Layout.from_buffer(memory)

    @classmethod
    def create(cls, path: Path) -> ControlPage:
        """A page without any fault."""
        path.write_bytes(bytes(PAGE_BYTES))
        page = cls(_mapped(path))
        page._layout.magic = _MAGIC
        return page

    @classmethod
    def open(cls, path: Path) -> ControlPage:
        page = cls(_mapped(path))
        assert page._layout.magic == _MAGIC, f"{path} is no control page"
        return page

    @property
    def power_cuts(self) -> int:
        return int(self._layout.power_cuts)

    @power_cuts.setter
    def power_cuts(self, count: int) -> None:
        self._layout.power_cuts = count

    @property
    def clock_offset_ms(self) -> int:
        return int(self._layout.clock_offset_ms)

    @clock_offset_ms.setter
    def clock_offset_ms(self, offset_ms: int) -> None:
        self._layout.clock_offset_ms = offset_ms

    @property
    def sync_delay_seconds(self) -> float:
        """What every sync takes longer."""
        return int(self._layout.sync_delay_us) / _MICROSECONDS

    @sync_delay_seconds.setter
    def sync_delay_seconds(self, seconds: float) -> None:
        assert seconds >= 0, seconds
        self._layout.sync_delay_us = round(seconds * _MICROSECONDS)

    @property
    def fail_syncs(self) -> bool:
        return bool(self._layout.fail_syncs)

    @fail_syncs.setter
    def fail_syncs(self, fails: bool) -> None:
        self._layout.fail_syncs = int(fails)

    @property
    def kill_at_sync(self) -> int:
        """The node kills itself instead of its n-th sync from now: what is left of n; 0 for never.

        It fires once, and waits through a restart until then.
        """
        return max(0, int(self._layout.kill_at) - self.syncs)

    @kill_at_sync.setter
    def kill_at_sync(self, count: int) -> None:
        assert count >= 0, count
        self._layout.kill_at = self.syncs + count if count else 0

    @property
    def syncs(self) -> int:
        """How many the node's lives have begun."""
        return int(self._layout.syncs)

    def calm(self) -> None:
        """Clear all faults of disk and clock."""
        self.sync_delay_seconds, self.fail_syncs, self.kill_at_sync = 0.0, False, 0
        self.clock_offset_ms = 0

    def count_sync(self) -> bool:
        """The node's: one more begins; whether this is the one to die at. One thread at a time."""
        self._layout.syncs += 1
        if not 0 < self._layout.kill_at <= self._layout.syncs:
            return False
        self._layout.kill_at = 0
        return True


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, PAGE_BYTES)
    finally:
        os.close(descriptor)
