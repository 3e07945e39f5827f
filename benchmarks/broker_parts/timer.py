"""A timer of the kernel that rings again and again, for loads that keep a schedule.

Trio sleeps in `epoll_wait`, whose time-out is in whole milliseconds, rounded up: what is due every
millisecond would be sent late, and its lateness be counted as latency. A timer's descriptor becomes
readable within microseconds of its time. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_COUNT_BYTES = 8  # what a read brings: how often it has rung


class KernelTimer:
    """See `open_timer`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def wait(self) -> int:
        """How often it has rung since the last call, at least once."""
        await trio.lowlevel.wait_readable(self._descriptor)
        return int.from_bytes(os.read(self._descriptor, _COUNT_BYTES), sys.byteorder)


@contextmanager
def open_timer(*, first_ns: int, period_ns: int) -> Iterator[KernelTimer]:
    """Rings at `first_ns`, of `time.monotonic_ns`, and from then on each `period_ns`."""
    descriptor = _create()
    try:
        _set(descriptor, first_ns, period_ns)
        yield KernelTimer(descriptor)
    finally:
        os.close(descriptor)


if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set(descriptor: int, first_ns: int, period_ns: int) -> None:
        os.timerfd_settime_ns(descriptor, flags=_ABSOLUTE, initial=first_ns, interval=period_ns)

else:
    _LIBC = ctypes.CDLL(None, use_errno=True)
    _SECOND_NS = 1_000_000_000

    def _create() -> int:
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC are defined as these
        return _checked(_LIBC.timerfd_create(time.CLOCK_MONOTONIC, flags))

    def _set(descriptor: int, first_ns: int, period_ns: int) -> None:
        # struct itimerspec: the interval, then the first time, each as seconds and nanoseconds.
        times = (ctypes.c_long * 4)(
            *divmod(period_ns, _SECOND_NS),
            *divmod(first_ns, _SECOND_NS),
        )
        _checked(_LIBC.timerfd_settime(descriptor, _ABSOLUTE, times, None))

    def _checked(answer: int) -> int:
        if answer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return answer
