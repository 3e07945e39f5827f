"""Slices with a break after each: for a worker thread that computes for seconds.

Whoever wants the interpreter back from a thread that computes waits 5 ms for it, and the loop asks
anew after every system call. A thread that lets go by itself after every slice, about a
millisecond, slows the loop down several times less.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def with_breaks(slices: Iterable[bytes]) -> Iterator[bytes]:
    for data in slices:
        yield data
        time.sleep(0)
