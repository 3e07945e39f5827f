"""The demonstration of the quorum shows what it says: three processes, a killed leader, no loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "quorum_demo.py"


@pytest.mark.cluster
def test_a_killed_leader_loses_nothing(tmp_path: Path) -> None:
    """Elect, write, kill, elect, catch up, compare: exit code 0, and nothing is left behind."""
    command = [sys.executable, str(DEMO), "--topics", "300", "--directory", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == ""
    assert "0 of the acknowledged ones are missing" in process.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    """Interrupted while it runs, as a terminal does it: one line, no process, nothing is left."""
    command = [sys.executable, str(DEMO), "--directory", str(tmp_path)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    while not list(tmp_path.glob("*/voter-*")):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []
