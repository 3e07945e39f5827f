"""With which command a node is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import raftmq
from raftmq.local.cluster import node_command, node_environment
from raftmq.local.plan import Layout
from raftmq.local.process import Process

if TYPE_CHECKING:
    import pytest

HERE = Path(raftmq.__file__).parents[1]
SETTINGS = ["broker", "--config", "/data/node-2.toml"]


def test_without_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator would."""
    monkeypatch.chdir(HERE)
    command = node_command(Layout(Path("/data")), 2, None)
    assert command == [sys.executable, "-m", "raftmq", *SETTINGS]


def test_with_an_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is told whose it is; modules where somebody happens to work are none of its."""
    monkeypatch.chdir(tmp_path)
    command = node_command(Layout(Path("/data")), 2, Process(17, "boot/4"))
    bound = ["raftmq.local.directory", "17", "boot/4"]
    assert command == [sys.executable, "-P", "-m", *bound, *SETTINGS]


def test_bytecode_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks Python to write none asks nodes to compile all modules at each start."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("RAFTMQ_NODE__RACK", "a")
    environment = node_environment()
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["RAFTMQ_NODE__RACK"] == "a"
