"""How a program that uses `raftmq.sync` ends: by itself, by Ctrl-C, in a fork, or not leaving."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from raftmq import testing
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster
SECONDS_MAX = 10.0  # for a program that takes less than two


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.broker() as server:
        yield server


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> str:
    """Two partitions, of this test alone."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    with connect(server.bootstrap) as client:
        client.admin.create_topic(name, partitions=2)
    return name


OPEN = "import os, sys\nfrom raftmq.sync import connect\nmq = connect(sys.argv[1])\n"
WITH_ALL = OPEN + "with mq, mq.producer() as p, mq.consumer(sys.argv[2]) as c:\n    "
ENDS = {
    "never-left": (OPEN + "mq.__enter__(); mq.producer().__enter__(); print('end')", 0),
    "producer-never-left": (OPEN + "with mq:\n    mq.producer().__enter__()\nprint('end')", 0),
    "exit": (WITH_ALL + "print('end'); sys.exit(3)", 3),
    "error": (WITH_ALL + "print('end'); 1 / 0", 1),
    "fork": (WITH_ALL + "child = os.fork()\n    if child: os.wait()\n    print('end')", 0),
    "fork-consumer": (
        OPEN + "with mq:\n    c = mq.consumer(sys.argv[2]); c.assignment\n"
        "    child = os.fork()\n    if not child: sys.exit()\n"
        "    print(os.wait()[1] or 'end'); c.assignment",
        0,
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_program_ends_as_it_says(server: Server, topic: str, case: str) -> None:
    """With its own exit status, whatever is open, and in a fork as well; none stays behind."""
    program, status = ENDS[case]
    done = subprocess.run(
        [sys.executable, "-c", program, server.bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert "end" in done.stdout
    assert (done.returncode, "Group" in done.stderr) == (status, False), done.stderr
    assert ("Traceback" in done.stderr) == (case == "error")


INTERRUPTED = {
    "sleep": "import time; print('now', flush=True); time.sleep(60)",
    "rows-of-a-pipe": "print('now', flush=True); p.send_many(sys.argv[2], sys.stdin.buffer)",
    "records": "print('now', flush=True); next(c.records())",
    "batches": "print('now', flush=True); next(c.batches())",
    "send": "print('now', flush=True)\n    while True: p.send(sys.argv[2], b'x')",
    "enqueue": "print('now', flush=True)\n    while True: p.enqueue(sys.argv[2], b'x' * 1000)",
    "send-many": "import itertools; print('now', flush=True)\n"
    "    p.send_many(sys.argv[2], itertools.repeat(b'x'))",
}


@pytest.mark.parametrize("case", INTERRUPTED)
def test_ctrl_c(server: Server, topic: str, case: str) -> None:
    """It ends the program at once, with all open, and as Python programs end by it."""
    with subprocess.Popen(
        [sys.executable, "-c", WITH_ALL + INTERRUPTED[case], server.bootstrap, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == -signal.SIGINT, errors
    assert time.monotonic() - begin < 3
    assert errors.strip().endswith("KeyboardInterrupt")
