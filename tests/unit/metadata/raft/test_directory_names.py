"""What may lie in a directory of the quorum, and how the rest is told."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX
from raftmq.errors import InvalidConfig, StorageError
from raftmq.metadata.raft.background import check_names, check_no_journal, retire
from raftmq.metadata.raft.journal.segments import segment_path
from raftmq.metadata.raft.snapshot.format import SnapshotKey
from raftmq.metadata.raft.snapshot.store import INCOMING_SUFFIX, PART_SUFFIX, SnapshotStore
from tests.simulation.disk import SimulatedFiles

ROOT = Path("/quorum")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def test_what_the_quorum_writes_is_known(files: SimulatedFiles) -> None:
    """Lock, journal, snapshots, the mark of a refusal; whole, and as a crash left them."""
    store = SnapshotStore(files, ROOT, cluster_id="c")
    for suffix in ("", PART_SUFFIX, INCOMING_SUFFIX):
        make(files, store.path_of(SnapshotKey(10**12, 7), suffix))
    segment = segment_path(ROOT / "journal", 7)
    make(files, ROOT / ".lock", segment, segment.with_name(segment.name + TEMPORARY_SUFFIX))
    retire(files, ROOT, "an older copy")
    make(files, ROOT / f"REFUSED{TEMPORARY_SUFFIX}")
    check_names(files, ROOT)


def test_nothing_is_fine(files: SimulatedFiles) -> None:
    """No directory yet, or an empty one: nothing is made by looking."""
    check_names(files, ROOT)
    assert not files.exists(ROOT)
    files.make_directory(ROOT)
    check_names(files, ROOT)
    check_no_journal(files, ROOT)


def test_what_file_systems_put_there_is_no_hindrance(files: SimulatedFiles) -> None:
    """At the top of a mount, and where a file was removed that somebody still reads."""
    make(files, ROOT / ".nfs0000000000a1", ROOT / "journal" / ".nfs0000000000a2")
    make(files, ROOT / ".fuse_hidden00000a0100000001")
    files.make_directory(ROOT / "lost+found")
    check_names(files, ROOT)


@pytest.mark.parametrize(
    "name",
    [
        "photo.jpg",
        ".bashrc",
        "journal.kept",
        "journal/notes.txt",
        "journal/7.journal",
        "snapshot-7-1.snapshot",
        "snapshot-00000000000000000007-0000000001.snapshot.bak",
        "refused",
        "00000000000000000007.journal",
    ],
)
def test_a_file_of_somebody_else_is_named(files: SimulatedFiles, name: str) -> None:
    """Also one that only looks like ours, or lies in the wrong place."""
    make(files, ROOT / name)
    with pytest.raises(InvalidConfig, match=f"directory = /quorum: holds '{name}', not of the"):
        check_names(files, ROOT)


@pytest.mark.parametrize("name", ["topics", "checkpoints", "clean-shutdown"])
def test_the_logs_of_a_broker_are_told_as_such(files: SimulatedFiles, name: str) -> None:
    """Whoever gave the broker's directory to the quorum learns whose it is."""
    make(files, ROOT / ".lock", ROOT / name)
    with pytest.raises(InvalidConfig, match=f"holds '{name}', a broker keeps its logs there"):
        check_names(files, ROOT)


def test_many_names_are_counted(files: SimulatedFiles) -> None:
    """Three of them are told, long ones shortened, and how many there are beside."""
    make(files, *(ROOT / f"{letter * 90}" for letter in "abcde"))
    with pytest.raises(InvalidConfig, match=r"holds 'a+\.\.\., 'b+\.\.\., 'c+\.\.\. and 2 more, "):
        check_names(files, ROOT)


def test_a_journal_that_is_a_file(files: SimulatedFiles) -> None:
    """It cannot be looked into: the disk's own error, and it is still there."""
    make(files, ROOT / "journal")
    with pytest.raises(StorageError, match="journal"):
        check_names(files, ROOT)
    assert files.names(ROOT) == ["journal"]


def test_a_voter_has_been_here(files: SimulatedFiles) -> None:
    """An observer keeps out, even where the journal is empty."""
    files.make_directory(ROOT / "journal")
    with pytest.raises(InvalidConfig, match="holds the journal/ of a voter: give the observer an"):
        check_no_journal(files, ROOT)


def make(files: SimulatedFiles, *paths: Path) -> None:
    for path in paths:
        files.make_directory(path.parent)
        files.open(path, create=True)
