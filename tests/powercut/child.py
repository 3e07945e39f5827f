"""The parent's hold on a writer process: start it, hear what it tells, kill it.

Owns the process, alone or under strace, and its pipe. Whoever made one ends it (`with`). Killed
means gone: the pipe has ended, so no thread of the process still has a file open.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from tests.powercut.events import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.powercut.events import AnyEvent
    from tests.powercut.writer import Order

PROJECT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds; longer means stuck
_CHUNK_BYTES = 1 << 16


class WriterFailed(Exception):
    """The writer did not do what it was to do: what it said on stderr."""


class WriterProcess:
    """`events` holds everything told so far, in order."""

    def __init__(self, order: Order, *, under: Sequence[str] = ()) -> None:
        self.events: list[AnyEvent] = []
        self._unfinished = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", "tests.powercut.writer", *order.arguments()],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()
        self._stderr.close()

    def hear_until(self, is_enough: Callable[[AnyEvent], bool]) -> AnyEvent:
        """The first event from now on that is enough. Raises WriterFailed if it never comes."""
        seen = len(self.events)
        deadline = time.monotonic() + PATIENCE
        while True:
            for event in self.events[seen:]:
                if is_enough(event):
                    return event
            seen = len(self.events)
            if not self._hear(deadline):
                raise WriterFailed(f"ended or stuck after {self.events[-3:]}: {self.stderr()}")

    def hear_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._hear(deadline):
            pass

    def hear_all(self) -> int:
        """Until it ends by itself; its exit status. Raises WriterFailed if it does not."""
        deadline = time.monotonic() + PATIENCE
        while self._hear(deadline):
            pass
        if time.monotonic() >= deadline:
            raise WriterFailed(f"still runs after {self.events[-3:]}: {self.stderr()}")
        return self._process.wait()

    def kill(self) -> int:
        """SIGKILL, with strace if there is one; its exit status, when nothing of it is left."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
        return self.hear_all()

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-2000:]

    def _hear(self, deadline: float) -> bool:
        """Take in what is told next; False at the end, or when the time is over."""
        patience = max(0.0, deadline - time.monotonic())
        if not select.select([self._pipe], [], [], patience)[0]:
            return False
        data = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        self.events += [decode(line) for line in lines]
        return bool(data)
