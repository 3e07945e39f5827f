"""The parent's hold on one process of a cluster: start it, hear what it tells, signal it, kill it.

Owns the process, alone or under strace, and the thread that reads its pipe until the pipe ends.
Killed means gone: no thread of the process still has a file open. Whoever starts one ends it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROJECT = Path(__file__).parents[2]
END_SECONDS_MAX = 60.0  # longer means stuck
_CHUNK_BYTES = 1 << 16


class NodeFailed(Exception):
    """A node did not do what it was to do: what it said on stderr."""


class NodeProcess:
    """`hear` is called for each line, in the thread that reads; `on_end` there, too, at the end."""

    def __init__(
        self,
        node_id: int,
        command: Sequence[str],
        *,
        hear: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self.has_ended = False
        self._hear, self._on_end = hear, on_end
        self._last_words = ""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `bury`
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: whoever waits for an answer will see
            os.write(self._process.stdin.fileno(), word.encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        """To the process, and to strace if there is one."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait_end(self) -> int:
        """Its exit status, once nothing of it is left. Raises NodeFailed if it does not end."""
        self._reader.join(END_SECONDS_MAX)
        if self._reader.is_alive():
            raise NodeFailed(f"node {self._node_id} does not end: {self.stderr()}")
        return self._process.wait(END_SECONDS_MAX)

    def bury(self) -> int:
        """SIGKILL, if it has not ended yet; its exit status."""
        try:
            if self._process.returncode is None:
                self.signal(signal.SIGKILL)
            return self.wait_end()
        finally:
            self._last_words = self.stderr()
            for file in (self._process.stdin, self._process.stdout, self._stderr):
                assert file is not None
                file.close()

    def stderr(self) -> str:
        """What it has said so far, the end of it."""
        if self._stderr.closed:
            return self._last_words
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        unfinished = b""
        while data := os.read(self._process.stdout.fileno(), _CHUNK_BYTES):
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                self._hear(line)
        self.has_ended = True
        self._on_end()
