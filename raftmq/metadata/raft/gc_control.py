"""Bounds pauses of Python's garbage collector (gc.freeze), and yields the GIL in worker threads.

An image of a million offsets is over a million objects in no cycle. A full collection traverses all
of them while every task stands still: half a second and more, during which followers hear no
leader. So objects that survive one long collection are frozen: it never visits them again
(decision 0010).

Owns the collector of this process while a node is open, and restores its settings afterwards. The
price: objects that die in a cycle after they were frozen are never freed. Neither images nor
connections form cycles, nor does anything that holds files open
(tests/simulation/brokers/test_deleted_topics.py).
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# Freeze after a full collection that took so long. Shorter ones (the process has few objects) are
# no pause, and freezing them would only keep garbage.
FREEZE_SECONDS = 0.005
# Python's third threshold: a full collection after so many of the middle generation, instead of 10.
# With 10 there are at least 70,000 new objects to traverse each time, which takes 50 ms and more.
THRESHOLD_MIDDLE_COLLECTIONS = 1


class GcControl:
    """The process has one garbage collector: all nodes and threads in it share one object."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._holders = self._pauses = self._hosts = 0
        self._was_enabled = True
        self._thresholds = gc.get_threshold()
        self._began = 0.0

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """While a node is open: objects that made one full collection long are frozen after it."""
        if self._hosts:  # see `left_alone`
            yield
            return
        with self._lock:
            self._holders += 1
            if self._holders == 1:  # the first open node
                self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:  # the last open node is closed
                    self._end()

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """The process belongs to the caller's program (say, its tests): nodes that are opened and
        closed meanwhile freeze nothing. They must be small."""
        with self._lock:
            self._hosts += 1
        try:
            yield
        finally:
            with self._lock:
                self._hosts -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While an image is decoded: it is frozen before any collection traverses it."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:  # the first of several decodings in parallel
                self._was_enabled = gc.isenabled()
                gc.collect(1)  # takes a moment; young garbage would be frozen, too
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if self._pauses == 0:  # the last one
                    # Objects of a host program must not be frozen: see `left_alone`.
                    if self._hosts == 0:
                        gc.freeze()
                    if self._was_enabled:  # a host program may have disabled it
                        gc.enable()

    def _begin(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], THRESHOLD_MIDDLE_COLLECTIONS)
        gc.callbacks.append(self._on_collection)
        # The first full one visits all modules: now, while nobody waits, and not in a request.
        gc.collect()

    def _end(self) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._thresholds)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector, in the thread that triggered it."""
        if info["generation"] < 2:  # only a full collection visits the long-lived objects
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began >= FREEZE_SECONDS:
            gc.freeze()  # the survivors are alive


COLLECTOR = GcControl()


# -- Breaks ---------------------------------------------------------------------------------------
# Yielding the GIL after each slice, in a worker thread that computes for seconds.
#
# A thread that wants the GIL from a computing thread waits 5 ms (sys.getswitchinterval), and the
# event loop must take it again after every system call. A worker that yields it after every slice,
# about a millisecond, slows the loop down several times less.


def with_breaks(slices: Iterable[bytes]) -> Iterator[bytes]:
    for data in slices:
        yield data
        time.sleep(0)  # yields the GIL
