"""Python's garbage collector beside millions of objects that live on.

An image of a million offsets is over a million objects in no cycle. A full collection passes over
all of them while every task stands still: half a second and more, as long as followers wait for
their leader. So what the collector has passed over once is frozen: it never looks at it again.

Owns the collector of this process while a node is open, and puts it back afterwards. The price:
what dies in a cycle after it was frozen is never freed. Neither images nor connections make any,
nor does what holds files open (tests/simulation/brokers/test_deleted_topics.py).
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


FREEZE_SECONDS = 0.005  # a full collection that took so long
# The third number: a full collection after so many of the middle ones, instead of 10. With 10
# there are at least 70,000 new objects to pass over each time, which takes 50 ms and more.
THRESHOLD_MIDDLE_COLLECTIONS = 1


class GcControl:
    """One for the process, as there is one garbage collector; nodes and threads share it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._holders = self._pauses = self._hosts = 0
        self._was_enabled = True
        self._thresholds = gc.get_threshold()
        self._began = 0.0

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """For as long as a node is open: no full collection takes long twice."""
        if self._hosts:
            yield
            return
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    self._end()

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """The process is somebody else's: nodes that are opened meanwhile, and closed before the
        end, freeze nothing. They must be small."""
        with self._lock:
            self._hosts += 1
        try:
            yield
        finally:
            with self._lock:
                self._hosts -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While an image is made: it is frozen before anything passes over it."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._was_enabled = gc.isenabled()
                gc.collect(1)  # a moment; what is dead by now would be frozen, too
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if self._pauses == 0:
                    if self._hosts == 0:
                        gc.freeze()
                    if self._was_enabled:
                        gc.enable()

    def _begin(self) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], THRESHOLD_MIDDLE_COLLECTIONS)
        gc.callbacks.append(self._on_collection)

    def _end(self) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._thresholds)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector, in whichever thread it runs."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began >= FREEZE_SECONDS:
            gc.freeze()  # what is left is alive


COLLECTOR = GcControl()


# -- Breaks ---------------------------------------------------------------------------------------
# Slices with a break after each: for a worker thread that computes for seconds.
#
# Whoever wants the interpreter back from a thread that computes waits 5 ms for it, and the loop
# asks anew after every system call. A thread that lets go by itself after every slice, about a
# millisecond, slows the loop down several times less.


def with_breaks(slices: Iterable[bytes]) -> Iterator[bytes]:
    for data in slices:
        yield data
        time.sleep(0)
