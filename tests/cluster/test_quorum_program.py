"""The program that docs/OPERATING-QUORUM.md shows does what it says, and does it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "quorum_program.py"


@pytest.mark.cluster
def test_three_voters_and_an_observer(tmp_path: Path) -> None:
    """Three voters elect, a topic is committed, the observer sees it; once more on the same disks.

    Its ports are fixed: an address of its own keeps it apart from others that run at the time.
    """
    process_id = os.getpid()
    host = f"127.1.{process_id // 250 % 250 + 1}.{process_id % 250 + 1}"
    command = [sys.executable, str(PROGRAM), str(tmp_path), host]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "committed: Done()\nseen by the observer: orders\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "node-1", "node-12", "node-2", "node-3",
    ]  # fmt: skip
