"""The demonstration with flights shows what it says, fails when that is not so, and tidies up.

Runs it as people do, with a share of the flights, and with a reading that leaves a record out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.flights.command import main
from examples.flights.data import FlightsMissingError, find_file
from examples.flights.reading import read_everything

if TYPE_CHECKING:
    from collections.abc import Mapping

    from examples.flights.comparison import ReadRecord
    from raftmq import Client

DEMO = Path(__file__).parents[2] / "examples" / "flights_demo.py"
GONE_SECONDS_MAX = 20.0


@pytest.fixture(autouse=True)
def _flights() -> None:
    try:
        find_file()
    except FlightsMissingError as error:
        pytest.skip(str(error))


def start(directory: Path) -> subprocess.Popen[str]:
    """In a session of its own, as a terminal would; returns once its brokers have begun."""
    command = [sys.executable, str(DEMO), "--directory", str(directory)]
    pipe = subprocess.PIPE
    demo = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    while not list(directory.glob("*/cluster/node-3.log")):
        assert demo.poll() is None
        time.sleep(0.01)
    return demo


def processes_of(directory: Path) -> list[str]:
    """Command lines of this machine that name it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:  # it has just ended
            continue
    return [line for line in found if str(directory) in line]


def wait_gone(directory: Path) -> None:
    """Neither a process nor a file is left."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while list(directory.iterdir()) or processes_of(directory):
        assert time.monotonic() < deadline, (list(directory.iterdir()), processes_of(directory))
        time.sleep(0.05)


@pytest.mark.cluster
def test_a_killed_broker_loses_nothing(tmp_path: Path) -> None:
    """Write, kill, go on, restart, catch up, read, compare: exit code 0, and nothing is left."""
    command = [sys.executable, str(DEMO), "--flights", "20000", "--directory", str(tmp_path)]
    demo = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    for words in (
        "20,000 flights of",
        "12 partitions, replication factor 3, min ISR 2, durability fsync",
        "kill -9 of broker",
        "the others have taken over",
        "has caught up",
        "without a leader",
        "All 20,000 flights are there",
    ):
        assert words in demo.stdout, demo.stdout
    assert demo.stdout.count("in sync: brokers 1 2 3 for 12 partitions") == 2
    wait_gone(tmp_path)


@pytest.mark.cluster
def test_a_missing_record_makes_it_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reading that leaves out one record: the verdict names it, and the exit code is 1."""

    async def read_all_but_one(
        client: Client, topic: str, ends: Mapping[int, int], *, seconds_max: float
    ) -> list[ReadRecord]:
        records = await read_everything(client, topic, ends, seconds_max=seconds_max)
        lost = records[0].value
        return [record for record in records if record.value != lost]  # nor a copy of it

    code = main(["--flights", "2000", "--directory", str(tmp_path)], read=read_all_but_one)
    said = capsys.readouterr().out
    assert code == 1, said
    assert "This is not what was promised: 1 missing" in said
    wait_gone(tmp_path)


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(tmp_path: Path, number: signal.Signals) -> None:
    """Interrupted while brokers run, as a terminal does it: one line, and nothing is left."""
    demo = start(tmp_path)
    os.killpg(demo.pid, number)
    _, stderr = demo.communicate(timeout=60)
    assert (demo.returncode, stderr) == (128 + number, "interrupted\n")
    wait_gone(tmp_path)


@pytest.mark.cluster
def test_nothing_is_left_if_it_is_killed(tmp_path: Path) -> None:
    """SIGKILL, so that it can do nothing any more: brokers and directory go nevertheless."""
    demo = start(tmp_path)
    demo.kill()
    demo.communicate(timeout=60)
    wait_gone(tmp_path)
