"""What a node has said, from where its process began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.local import process
from raftmq.local.process import LINES_MAX, is_ready, last_lines

if TYPE_CHECKING:
    from pathlib import Path

READY = "ready: node 1 of cluster c, clients on 127.0.0.1:9292\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "node-1.log"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        (READY, True),
        (f"INFO starting\n{READY}INFO more\n", True),
        ("INFO raftmq.cli.nodes.broker_run ready: node 1\n", False),
        ("ready: no", False),
    ],
)
def test_ready_is_a_line_of_its_own(log: Path, text: str, expected: bool) -> None:
    """Other lines may hold the word."""
    log.write_text(text)
    assert is_ready(log, 0) is expected


def test_the_process_before_was_ready(log: Path) -> None:
    """That says nothing of this one."""
    log.write_text(READY)
    position = log.stat().st_size
    assert not is_ready(log, position)
    with log.open("a") as file:
        file.write(READY)
    assert is_ready(log, position)


def test_it_is_found_wherever_a_read_ends(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is read in pieces, and a piece may end within the word."""
    log.write_text(f"INFO starting\n{READY}")
    for size in range(1, 40):
        monkeypatch.setattr(process, "_CHUNK_BYTES", size)
        assert is_ready(log, 0)


def test_nothing_was_said(log: Path) -> None:
    """There is not even a file."""
    assert not is_ready(log, 0)
    assert last_lines(log, 0) == []


def test_last_words_are_those_of_the_last_process(log: Path) -> None:
    """Few enough to be read, whatever bytes they are."""
    log.write_bytes(b"before\n" + b"".join(b"line %d \xff\n" % at for at in range(100)))
    lines = last_lines(log, len(b"before\n"))
    assert len(lines) == LINES_MAX
    assert lines[-1] == "line 99 \ufffd"
    assert last_lines(log, log.stat().st_size - len(b"line 99 \xff\n")) == ["line 99 \ufffd"]
