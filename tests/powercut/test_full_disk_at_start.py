"""A node whose disk is full when it starts says so, and what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen_like.nodes.disk import memory_disk
from tests.powercut.capabilities import memory_disks, require

pytestmark = pytest.mark.powercut

PROJECT = Path(__file__).parents[2]
SETTINGS = """
[node]
id = 1
cluster_id = "full"
directory = "{directory}"
[quorum.voters]
1 = "127.0.0.1:9293"
2 = "192.0.2.2:9293"
3 = "192.0.2.3:9293"
[[listeners]]
name = "brokers"
bind = "127.0.0.1:9294"
"""  # it does not come so far as to listen


def start(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raftmq", "broker", "--config", str(config)]
    return subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """The first byte of a new directory finds no room: named, with the way out, no traceback.

    A17.2.
    """
    require(memory_disks)
    config = tmp_path / "node.toml"
    with memory_disk(size_mib=1) as disk:
        config.write_text(SETTINGS.format(directory=disk / "data"))
        free_bytes = shutil.disk_usage(disk).free
        (disk / "ballast").write_bytes(bytes(free_bytes))
        ended = start(config)
        assert ended.returncode == 1, ended
        [*_, last_words] = ended.stderr.splitlines()
        assert last_words.startswith("raftmq: ")
        assert str(disk / "data") in last_words
        assert last_words.endswith(
            "No space left on device; the disk is full: free some space on it and start again,"
            " nothing is lost"
        )
        assert "Traceback" not in ended.stderr
