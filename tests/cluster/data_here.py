"""Commands that move records, run as processes against brokers of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftmq.errors import GroupIdNotFound
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.testing import Server

PROJECT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
START_SECONDS_MAX = 20.0


class Here:
    """Brokers, and commands that are sent to them.

    A command gets no RAFTMQ_BOOTSTRAP but that of the brokers.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.environment = {**os.environ, "RAFTMQ_BOOTSTRAP": server.bootstrap}
        self._topics = 0

    def topic(self, **options: Any) -> str:
        """A new one."""
        self._topics += 1
        name = f"t{self._topics}"
        with connect(self.server.bootstrap) as mq:
            mq.admin.create_topic(name, **options)
        return name

    def run(
        self, *arguments: object, stdin: bytes = b"", exit_code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Until it ends, in the way that is expected."""
        result = subprocess.run(
            self._command(*arguments),
            cwd=PROJECT,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert result.returncode == exit_code, result
        assert b"Traceback" not in result.stderr
        return result

    def lines(self, topic: str, *arguments: object) -> list[bytes]:
        """All that is there."""
        return self.run("consume", topic, "-e", *arguments).stdout.splitlines()

    @contextmanager
    def running(self, *arguments: object, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | pipes
        with subprocess.Popen(
            self._command(*arguments),
            cwd=PROJECT,
            env=self.environment,
            stderr=subprocess.PIPE,
            **pipes,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, *arguments: object) -> list[str | bytes]:
        words = [word if isinstance(word, bytes) else str(word) for word in arguments]
        return [sys.executable, "-X", "dev", "-m", "raftmq", *words]

    def lags(self, group: str) -> list[int | None]:
        """By partition; none where there is no such group yet."""
        with connect(self.server.bootstrap) as mq, suppress(GroupIdNotFound):
            return [one.lag for one in mq.admin.group_lag(group)]
        return []

    def end_offset(self, topic: str) -> int:
        with connect(self.server.bootstrap) as mq:
            return sum(end or 0 for end in mq.admin.offsets(topic, "latest").values())


def wait_until(is_so: Callable[[], bool], seconds_max: float = START_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[bytes]) -> bytes:
    """It ends at once, with 130 and no traceback. What it said on stderr."""
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    assert process.wait(PATIENCE_SECONDS) == 130
    assert time.monotonic() - start < 5.0
    assert process.stderr is not None
    said = process.stderr.read()
    assert b"Traceback" not in said
    assert said.endswith(b"raftmq: interrupted\n")
    return said
