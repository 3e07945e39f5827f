"""The thread of one writer: what comes back, and what a cancelled caller waits for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import trio

from raftmq.disk.thread import DiskThread


async def test_answers_and_errors_come_back_from_one_thread() -> None:
    """Each call runs in the same thread, which is not the loop's; its error is the caller's."""
    with DiskThread("writer") as thread:
        first = await thread.run(threading.current_thread)
        assert first.name == "writer"
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        assert await thread.run(threading.current_thread) is first
        assert await thread.run(lambda: None) is None
    assert not first.is_alive()


async def test_a_cancelled_caller_stays_until_the_write_is_over() -> None:
    """A write that has begun is not left alone; one that has not begun never does."""
    begun, done = threading.Event(), list[str]()
    with DiskThread("writer") as thread, trio.CancelScope() as scope:

        def write() -> None:
            begun.set()
            trio.from_thread.run_sync(scope.cancel, trio_token=token)
            done.append("first")

        token = trio.lowlevel.current_trio_token()
        await thread.run(write)
        assert done == ["first"]
        await thread.run(lambda: done.append("second"))
    assert scope.cancelled_caught
    assert begun.is_set()
    assert done == ["first"]


def test_nothing_is_left_open() -> None:
    """Twenty of them in a row leave no descriptor behind."""
    # A process of its own: here threads and cycles of other tests may give up theirs meanwhile.
    program = """
import os, trio
from raftmq.disk.thread import DiskThread

async def use(thread):
    assert await thread.run(lambda: 7) == 7

def open_now():
    return len(os.listdir("/proc/self/fd"))

before = open_now()
for _ in range(20):
    with DiskThread("writer") as thread:
        trio.run(use, thread)
assert open_now() == before, (before, open_now())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
