"""A thread that closes descriptors of removed files.

With the last descriptor of a removed file the kernel gives back its pages and its place on the
disk: a tenth of a second for a hundred megabytes. Whoever drops the last reference, the event loop
or a flush, must not wait for that. What still has a name is closed at once: that costs nothing, and
a lock ends with its descriptor.

Owns the thread and what waits for it, one for the process, as there is one table of descriptors.
Invariants: `close` never waits, raises nothing, and may be called from a finalizer; where there is
no thread (before `start`, in a forked child, at the end of the process) it closes by itself. Nobody
waits for the thread when the process ends.
"""

from __future__ import annotations

import logging
import os
import threading
from queue import SimpleQueue

WAITING_MAX = 1024  # descriptors; beyond that, whoever drops one waits, and so opens no more

logger = logging.getLogger("raftmq.disk")


class Closer:
    """Made once, see `CLOSER`."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Also in a child after a fork, whose parent closes what waits there."""
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._is_started = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Descriptors that are not closed yet, but for the one that is being closed."""
        return self._queue.qsize()

    def start(self) -> None:
        """May be said again and again; not from a finalizer, which may hold any lock."""
        with self._lock:
            if not self._is_started:
                threading.Thread(target=self._serve, name="raftmq-closer", daemon=True).start()
                self._is_started = True

    def close(self, descriptor: int) -> None:
        """Now, or soon if that may take long."""
        if self._is_started and self.waiting < WAITING_MAX and _is_removed(descriptor):
            self._queue.put(descriptor)
        else:
            _close(descriptor)

    def _serve(self) -> None:
        while True:
            _close(self._queue.get())


def _is_removed(descriptor: int) -> bool:
    try:
        return os.fstat(descriptor).st_nlink == 0
    except OSError:
        return False  # closing it will tell


def _close(descriptor: int) -> None:
    """What was written and not synced may be lost; whoever needed it has synced it, or was told."""
    try:
        os.close(descriptor)
    except OSError as error:
        logger.error("not closed in order: descriptor=%d reason=%s", descriptor, error)


CLOSER = Closer()
os.register_at_fork(after_in_child=CLOSER._begin)
