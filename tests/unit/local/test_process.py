"""Processes are recognised by more than their number, and gone only when nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from raftmq.local.process import Process, has_ended, process_of, send, this_process, wait_end

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its input ends."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_that_runs(child: subprocess.Popen[bytes]) -> None:
    """It can be told from others, and has not ended."""
    process = process_of(child.pid)
    assert process != this_process()
    assert process == process_of(child.pid)
    assert not has_ended(process)
    assert not wait_end(process, 0.001)


def test_this_process() -> None:
    """Runs, obviously."""
    assert this_process().pid == os.getpid()
    assert not has_ended(this_process())


def test_a_process_that_ends(child: subprocess.Popen[bytes]) -> None:
    """Whoever waits learns of it; nobody is there to be signalled any more."""
    process = process_of(child.pid)
    assert send(process, signal.SIGTERM)
    assert wait_end(process)
    assert has_ended(process)
    assert not send(process, signal.SIGKILL)


def test_a_child_that_nobody_asked_for_its_status() -> None:
    """A zombie has ended; its number is free again once that was seen."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    process = process_of(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not send(process, signal.SIGKILL)
    assert wait_end(process, 10.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    assert has_ended(process)


@pytest.mark.parametrize("started", ["another-boot/1", ""])
def test_a_stranger_with_the_same_number(child: subprocess.Popen[bytes], started: str) -> None:
    """It is never signalled, and not taken for the one that was written down."""
    written = Process(child.pid, started)
    assert not send(written, signal.SIGKILL)
    assert has_ended(written)
    assert not has_ended(process_of(child.pid))
