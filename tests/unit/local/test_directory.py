"""A directory is taken only if it is nobody else's: absent, empty or made for a cluster."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from threading import Event, Thread

import pytest

from raftmq.errors import DirectoryInUse, InvalidConfig, StorageError
from raftmq.local import directory as directory_module
from raftmq.local.directory import find_layout, hold, is_ours, plan_for, read_plan, write_plan
from raftmq.local.plan import Layout
from raftmq.local.process import Process, this_process
from raftmq.local.running import NodeProcess, Running, write_running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is about to let go of a lock."""
    monkeypatch.setattr(directory_module, "LOCK_SECONDS_MAX", 0.0)


def made(root: Path, brokers: int = 3) -> Layout:
    layout = find_layout(root)
    with hold(layout):
        write_plan(layout, plan_for(layout, brokers=brokers, port=9400))
    return layout


@pytest.mark.parametrize("name", ["absent", "deep/below", "empty"])
def test_a_new_directory(tmp_path: Path, name: str) -> None:
    """It is made; from the plan on, it is ours, and comes back with the same one."""
    (tmp_path / "empty").mkdir()
    layout = find_layout(tmp_path / name)
    assert not is_ours(layout)
    assert made(tmp_path / name) == layout
    assert is_ours(layout)
    with hold(layout):
        assert plan_for(layout, brokers=None, port=None) == read_plan(layout)
    assert read_plan(layout).port == 9400


def test_a_relative_directory_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings name it for processes that may run elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert find_layout(Path("here")).root == tmp_path / "here"


def test_defaults_of_a_new_plan(tmp_path: Path) -> None:
    """Three brokers where clients look first; no two clusters have the same id."""
    plans = [plan_for(Layout(tmp_path), brokers=None, port=None) for _ in range(2)]
    assert [(plan.brokers, plan.port) for plan in plans] == [(3, 9292)] * 2
    assert plans[0].cluster_id != plans[1].cluster_id


def test_a_foreign_directory(tmp_path: Path) -> None:
    """Nothing is written to it, and the error names what lies there."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InvalidConfig, match=r"holds 'thesis\.tex' and no cluster\.json"):
        made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_with_the_name_of_a_node(tmp_path: Path) -> None:
    """Settings that somebody else wrote are foreign, too."""
    (tmp_path / "node-1.toml").touch()
    with pytest.raises(InvalidConfig, match=r"holds 'node-1\.toml'"):
        made(tmp_path)


def test_a_file(tmp_path: Path) -> None:
    """Not a directory at all."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match="file is no directory: choose another --dir"):
        made(tmp_path / "file")


def test_a_start_that_was_killed_before_the_plan(tmp_path: Path) -> None:
    """What it left is no reason to refuse the directory."""
    for name in (".lock", "node-1.toml", "node-2.toml", "cluster.json.tmp"):
        (tmp_path / name).touch()
    made(tmp_path)


def test_another_number_of_brokers(tmp_path: Path) -> None:
    """It stays as it is; the error says what there is."""
    layout = made(tmp_path, brokers=3)
    with pytest.raises(InvalidConfig, match=r"has 3 brokers, not 5: leave out --brokers"):
        plan_for(layout, brokers=5, port=None)
    assert plan_for(layout, brokers=3, port=None) == read_plan(layout)


def test_other_ports(tmp_path: Path) -> None:
    """The same cluster may move."""
    layout = made(tmp_path)
    moved = plan_for(layout, brokers=None, port=9500)
    assert (moved.port, moved.cluster_id) == (9500, read_plan(layout).cluster_id)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"format_version": 2}, r"has format 2, this raftmq knows 1: upgrade it"),
        ({"format_version": 1}, r"is not readable: .*choose another directory"),
        ({"format_version": 1, "cluster_id": "c", "brokers": 99, "port": 1}, "is not readable"),
        ([], "is not readable"),
    ],
)
def test_a_plan_that_cannot_be_read(tmp_path: Path, values: object, match: str) -> None:
    """Newer, incomplete, or not a plan."""
    layout = Layout(tmp_path)
    layout.plan.write_text(json.dumps(values))
    with pytest.raises(StorageError, match=match):
        read_plan(layout)


@pytest.mark.usefixtures("impatient")
def test_two_at_the_same_time(tmp_path: Path) -> None:
    """The second is told who has it, and how to get rid of it."""
    layout = made(tmp_path)
    with hold(layout):
        with pytest.raises(DirectoryInUse, match="is in use by another process: stop it with"):
            made(tmp_path)
        write_running(layout, Running(is_started=True, owner=this_process()))
        whose = re.escape(f"{tmp_path} is in use by process {this_process().pid}: stop it with")
        with pytest.raises(DirectoryInUse, match=whose):
            made(tmp_path)
    made(tmp_path)


def test_a_start_that_fails_while_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first removes the directory that it made, and its lock: the second makes both again."""
    layout, found, has_tried = find_layout(tmp_path / "new"), list[bool](), Event()
    monkeypatch.setattr(time, "sleep", lambda _seconds: has_tried.set())

    def second() -> None:
        with hold(layout):
            found.append(layout.lock.exists())
            write_plan(layout, plan_for(layout, brokers=1, port=9400))

    waiting = Thread(target=second)
    with hold(layout):
        waiting.start()
        assert has_tried.wait(5)
    waiting.join()
    assert found == [True]
    assert is_ours(layout)


@pytest.mark.usefixtures("impatient")
def test_a_link_to_nothing(tmp_path: Path) -> None:
    """No directory can be made in its place: it is refused, and not tried for ever."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(FileExistsError), hold(Layout(link)):
        pass


def test_brokers_that_were_left_alone(tmp_path: Path) -> None:
    """They run without anybody who holds the lock."""
    layout = made(tmp_path)
    nodes = {2: NodeProcess(this_process(), 0), 3: NodeProcess(Process(1, "ended"), 0)}
    write_running(layout, Running(is_started=True, nodes=nodes))
    with pytest.raises(DirectoryInUse, match=r"brokers \[2\] run on .* already"), hold(layout):
        pass
    write_running(layout, Running(is_started=True, nodes={3: nodes[3]}))
    with hold(layout):
        pass


@pytest.mark.parametrize("name", ["line\nbreak", "del\x7f", "\udcff"])
def test_a_name_that_no_settings_file_can_hold(tmp_path: Path, name: str) -> None:
    """Control characters, and bytes that are no text."""
    with pytest.raises(InvalidConfig, match="a character of its name cannot be shown"):
        find_layout(tmp_path / name)
