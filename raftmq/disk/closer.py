"""Background closing of deleted files: a thread for `close`, which may take long in the kernel.

With the last descriptor of a removed file the kernel frees its pages and its space on the disk: a
tenth of a second for a hundred megabytes. The event loop or a flush that drops the last reference
must not wait for that. Files that still have a name are closed at once: that is quick, and a lock
must end with its descriptor.

Owns the thread and its queue, one for the process, as there is one table of descriptors.
Invariants: `close` never waits, raises nothing, and may be called from a finalizer; without a
thread (before `start`, in a forked child, at the end of the process) it closes in the caller. The
end of the process does not wait for the thread.
"""

from __future__ import annotations

import logging
import os
import threading
from queue import SimpleQueue

# Descriptors in the queue. Beyond it the caller closes, and waits: back-pressure, so that a process
# does not run out of descriptors faster than they are closed.
WAITING_MAX = 1024

logger = logging.getLogger("raftmq.disk")


class Closer:
    """Made once, see `CLOSER`."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Also in a forked child: the thread exists in the parent only, which closes the queue."""
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._is_started = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Descriptors in the queue, without the one that is being closed."""
        return self._queue.qsize()

    def start(self) -> None:
        """May be called repeatedly; not from a finalizer, which could deadlock on the lock."""
        with self._lock:
            if not self._is_started:  # several data directories of one process share the thread
                threading.Thread(target=self._serve, name="raftmq-closer", daemon=True).start()
                self._is_started = True

    def close(self, descriptor: int) -> None:
        """Close now, or by the thread if that may take long."""
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
        return False  # `_close` gets the same error, and logs it


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError as error:
        # Only unsynced bytes can be lost by it: what was acknowledged was synced before.
        logger.error("not closed in order: descriptor=%d reason=%s", descriptor, error)


CLOSER = Closer()
os.register_at_fork(after_in_child=CLOSER._begin)
