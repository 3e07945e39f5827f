"""Descriptors of removed files are closed by a thread, for which nobody waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from raftmq.disk import closer
from raftmq.disk.closer import CLOSER, Closer
from raftmq.disk.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS_MAX = 10.0
HERE = threading.main_thread().name
THREAD = "raftmq-closer"
REMOVED = """
import os, sys, threading
from pathlib import Path
from raftmq.disk.closer import CLOSER
from raftmq.disk.files import OsFiles
files, path = OsFiles(), Path(sys.argv[1]) / "file"
def removed():
    file = files.open(path, create=True)
    files.remove(path)
    return file
"""
IN_A_CHILD = """
file = removed()
if os.fork():
    _, status = os.wait()
    sys.exit(os.waitstatus_to_exitcode(status))
descriptor = file.fileno()
del file
try:
    os.fstat(descriptor)
except OSError:
    os._exit(0)
os._exit(1)
"""
STUCK_AT_THE_END = """
closing = threading.Event()
def close(descriptor):
    closing.set()
    threading.Event().wait()
os.close = close
files.at_the_end = removed()
removed()
closing.wait()
"""


class SlowKernel:
    """Where closing takes until `go_on` is set, but in the test's own thread."""

    def __init__(self) -> None:
        self._closed = SimpleQueue[str]()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._close = os.close

    def close(self, descriptor: int) -> None:
        name = threading.current_thread().name
        if name != HERE:
            self.begun.set()
            assert self.go_on.wait(SECONDS_MAX)
        self._close(descriptor)
        self._closed.put(name)

    def closed(self, count: int) -> list[str]:
        """By which threads the next so many are."""
        names = [self._closed.get(timeout=SECONDS_MAX) for _ in range(count)]
        assert self._closed.empty()
        return names


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowKernel]:
    slow = SlowKernel()
    monkeypatch.setattr(os, "close", slow.close)
    yield slow
    slow.go_on.set()


def removed(path: Path) -> int:
    """A descriptor of a file without a name."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    path.unlink()
    return descriptor


def test_what_was_removed_is_closed_by_the_thread(tmp_path: Path, kernel: SlowKernel) -> None:
    """Whoever drops the last reference goes on at once; what has a name is closed there."""
    files = OsFiles()
    here, gone = (files.open(tmp_path / name, create=True) for name in ("here", "gone"))
    files.remove(tmp_path / "gone")
    del here
    assert kernel.closed(1) == [HERE]
    del gone
    assert kernel.begun.wait(SECONDS_MAX)
    assert kernel.closed(0) == []
    kernel.go_on.set()
    assert kernel.closed(1) == [THREAD]


def test_a_lock_ends_when_it_is_dropped(tmp_path: Path, kernel: SlowKernel) -> None:
    """However much the thread has to do: the next one gets it."""
    files = OsFiles()
    CLOSER.close(removed(tmp_path / "gone"))
    lock = files.lock(tmp_path / ".lock")
    del lock
    assert kernel.closed(1) == [HERE]
    assert files.lock(tmp_path / ".lock")
    kernel.go_on.set()
    kernel.closed(2)  # the lock again, and by the thread: else the next test would count that one


def test_not_too_many_wait(
    tmp_path: Path, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound they are closed where they are dropped."""
    monkeypatch.setattr(closer, "WAITING_MAX", 2)
    one = Closer()
    one.start()
    for number in range(5):
        one.close(removed(tmp_path / "gone"))
        if not number:
            assert kernel.begun.wait(SECONDS_MAX)
    assert one.waiting == 2
    assert kernel.closed(2) == [HERE] * 2
    kernel.go_on.set()
    assert kernel.closed(3) == [THREAD] * 3
    assert one.waiting == 0


def test_a_close_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """In the log: a finalizer has nobody to raise it to."""
    descriptor = os.open("/", os.O_RDONLY)
    os.close(descriptor)
    CLOSER.close(descriptor)
    assert f"not closed in order: descriptor={descriptor}" in caplog.text
    assert "Bad file descriptor" in caplog.text


@pytest.mark.parametrize("program", [IN_A_CHILD, STUCK_AT_THE_END], ids=["fork", "end"])
def test_it_outlives_no_process(tmp_path: Path, program: str) -> None:
    """A forked child has no such thread and closes by itself; a process that ends does not wait."""
    ended = subprocess.run(
        # From 3.12 on Python warns of a fork beside a thread, which is what is tried here.
        [sys.executable, "-W", "ignore:This process", "-c", REMOVED + program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
