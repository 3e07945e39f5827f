"""One process of a node: start it, see that it is ready, signal it, wait for its end.

Owns the process and the thread that reads its pipe until the pipe ends. Ended means gone: no thread
of the process still has a file open. Its creator must end it.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from threading import Event, Thread
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

END_SECONDS_MAX = 60.0  # longer means stuck
_READY = b"ready: "


class NodeFailed(Exception):
    """A node did not do what every node does: which one, and what."""


class NodeProcess:
    """Attributes:
    ready: set when it has said so, and when it has ended.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: IO[bytes], environment: Mapping[str, str]
    ) -> None:
        """Must be called in a thread that lives on: the process dies with it."""
        self._name = name
        self.ready = Event()
        self._said_ready = False
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """A paused one is."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How it has ended; negative for a signal."""
        return self._process.poll()

    @property
    def has_been_ready(self) -> bool:
        return self._said_ready

    def wait_ready(self, timeout_seconds: float) -> bool:
        self.ready.wait(timeout_seconds)
        return self._said_ready and self.is_alive

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait_end(self, timeout_seconds: float = END_SECONDS_MAX) -> int:
        """Its exit status, once nothing of it is left.

        Raises:
            NodeFailed: it does not end.
        """
        self._reader.join(timeout_seconds)
        if self._reader.is_alive():
            raise NodeFailed(f"{self._name}, process {self.pid}, does not end")
        status = self._process.wait(END_SECONDS_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        said = b""
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            said += data
            if not self._said_ready and said.startswith(_READY):
                self._said_ready = True
                self.ready.set()
        self.ready.set()
