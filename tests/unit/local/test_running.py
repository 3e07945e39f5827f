"""Which processes there are: written whole, read by anybody, changed by one at a time."""

from __future__ import annotations

import errno
from shutil import copytree
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import StorageError
from raftmq.local.plan import Layout
from raftmq.local.process import Process, this_process
from raftmq.local.running import NodeProcess, Running, changing, read_running, write_running

if TYPE_CHECKING:
    from pathlib import Path


def test_nobody_has_ever_started_it(tmp_path: Path) -> None:
    """Nothing runs."""
    assert read_running(Layout(tmp_path)) == Running()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Node ids are numbers again."""
    layout = Layout(tmp_path)
    nodes = {1: NodeProcess(Process(17, "boot/4"), 0), 3: NodeProcess(Process(18, "boot/5"), 120)}
    running = Running(is_started=True, owner=this_process(), nodes=nodes)
    with changing(layout):
        write_running(layout, running)
    assert read_running(layout) == running


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": {"one": 1}}', "[" * 100_000])
def test_a_file_that_says_nothing(tmp_path: Path, text: str) -> None:
    """The error says which, and what to do."""
    layout = Layout(tmp_path)
    layout.running.write_text(text)
    with pytest.raises(StorageError, match=r"running\.json is not readable: .*remove it once"):
        read_running(layout)


def test_one_change_at_a_time(tmp_path: Path) -> None:
    """Another one begins when the first is done, in the same process, too."""
    layout, is_waiting, seen = Layout(tmp_path), Event(), list[Running]()

    def change() -> None:
        is_waiting.set()
        with changing(layout):
            seen.append(read_running(layout))

    with changing(layout):
        other = Thread(target=change)
        other.start()
        is_waiting.wait()
        write_running(layout, Running(is_started=True))
    other.join()
    assert seen == [Running(is_started=True)]


def test_a_copy_of_the_directory_has_no_processes(tmp_path: Path) -> None:
    """What runs belongs to the original, also after that was moved: a copy kills none of it."""
    original, copy = Layout(tmp_path / "original"), Layout(tmp_path / "copy")
    original.root.mkdir()
    running = Running(is_started=True, nodes={1: NodeProcess(this_process(), 0)})
    write_running(original, running)
    copytree(original.root, copy.root)
    assert read_running(copy) == Running()
    moved = Layout(original.root.rename(tmp_path / "moved"))
    assert read_running(moved) == running


def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the file; what was there before stays."""
    layout = Layout(tmp_path)
    write_running(layout, Running(is_started=True))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", fail)
    with pytest.raises(StorageError, match=r"cannot write .*running\.json\.tmp: No space left"):
        write_running(layout, Running())
    assert read_running(layout) == Running(is_started=True)
