"""`raftmq quorum verify`: directories that are sound or are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.metadata.raft.journal.segments import segment_path
from raftmq.metadata.raft.snapshot.store import SnapshotStore
from tests.unit.cli.test_quorum import quorum, rows_of
from tests.unit.metadata.raft.journals import append, commit_all, flush, started

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A voter's, with entries 2 to 41 and a snapshot up to 30."""
    files = OsFiles()
    journal = started(files, tmp_path / "journal", term=3)
    append(journal, *(b"command" for _ in range(40)))
    commit_all(journal)
    flush(journal)
    store = SnapshotStore(files, tmp_path, cluster_id="c")
    store.newest()
    store.write(index=30, term=3, slices=[b"some", b"slices"])
    journal.compact(30, 5)
    flush(journal)
    journal.close()
    return tmp_path


def findings(directory: Path) -> list[tuple[str, str]]:
    rows = rows_of(quorum("verify", directory, "-o", "json").stdout)
    return [(row["severity"], row["what"]) for row in rows if row["type"] == "finding"]


def snapshot_of(directory: Path) -> Path:
    return next(directory.glob("*.snapshot"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_verify_of_a_sound_directory(directory: Path) -> None:
    """What is there, and ok; nothing is touched."""
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    result = quorum("verify", directory)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["part", "node", "cluster", "from", "to", "term", "files", "bytes"]
    assert lines[1][:6] == ["journal", "1", "c", "26", "41", "3"]
    assert lines[2][:6] == ["snapshot", "-", "c", "1", "30", "3"]
    assert lines[-1] == ["ok"]
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_verify_as_json(directory: Path) -> None:
    """Every number that a script may want."""
    journal, snapshot, summary = rows_of(quorum("verify", directory, "-o", "json").stdout)
    assert journal.pop("bytes") > 0
    assert journal.pop("batches") > 0
    assert journal == {
        "type": "journal", "cluster_id": "c", "node_id": 1, "standing": "blank", "start_count": 1,
        "term": 3, "voted_for": 1, "commit_index": 41, "first_index": 25, "last_index": 41,
        "entries": 16, "segments": journal["segments"], "torn_bytes": 0,
    }  # fmt: skip
    assert snapshot == {
        "type": "snapshot", "file": snapshot_of(directory).name, "cluster_id": "c", "index": 30,
        "term": 3, "slices": 2, "bytes": snapshot_of(directory).stat().st_size,
    }  # fmt: skip
    assert summary == {"type": "summary", "errors": 0, "warnings": 0}


def test_a_flipped_bit_is_an_error(directory: Path) -> None:
    """In the snapshot, in the journal, or both."""
    flip(snapshot_of(directory), -1)
    segment = min((directory / "journal").iterdir())
    flip(segment, 30)
    found = findings(directory)
    assert [severity for severity, _ in found] == ["error", "error"]
    assert "first batch of a segment is damaged" in found[0][1]
    assert "the trailer fails its CRC" in found[1][1]
    result = quorum("verify", directory)
    assert (result.exit_code, result.stdout.endswith("\n2 errors\n")) == (1, True)


def test_what_a_start_mends_is_a_warning(directory: Path) -> None:
    """A torn write, a file that was being written, a snapshot that was replaced."""
    with max((directory / "journal").iterdir()).open("ab") as segment:
        segment.write(b"torn")
    snapshot = snapshot_of(directory)
    older = snapshot.with_name(snapshot.name.replace("030", "020"))
    older.write_bytes(b"")
    (directory / f"{snapshot.name}.part").touch()
    result = quorum("verify", directory)
    assert (result.exit_code, result.stdout.endswith("\n4 warnings\n")) == (0, True)
    assert "a torn write of 4 bytes" in result.stdout
    assert "replaced: the next start removes it" in result.stdout
    assert "was never finished" in result.stdout


def test_half_of_a_pair_is_an_error(directory: Path) -> None:
    """Without its snapshot a cut journal lacks its beginning; without its journal, all votes.

    An observer has none.
    """
    data, snapshot = snapshot_of(directory).read_bytes(), snapshot_of(directory)
    snapshot.unlink()
    (what,) = [what for severity, what in findings(directory) if severity == "error"]
    assert what.startswith("begins behind entry 25, the snapshot ends with entry 1: ")
    snapshot.write_bytes(data)
    (finding,) = rows_of(quorum("verify", directory, "--observer", "-o", "json").stdout)[:1]
    assert "leave --observer away" in finding["what"]
    for segment in (directory / "journal").iterdir():
        segment.unlink()
    (finding,) = findings(directory)
    assert finding[0] == "error"
    assert finding[1].startswith("there is a snapshot, but the journal beside it is gone")
    observer = quorum("verify", directory, "--observer")
    assert (observer.exit_code, observer.stdout.endswith("\nok\n")) == (0, True)


def test_a_damaged_journal_keeps_its_row(directory: Path) -> None:
    """Nothing of it is known, but that it is there."""
    flip(min((directory / "journal").iterdir()), 30)
    lines = [line.split() for line in quorum("verify", directory).stdout.splitlines()]
    assert lines[1] == ["journal", *"-------"]


def test_a_refused_directory_says_so(directory: Path) -> None:
    """No start is allowed any more, sound as it is."""
    (directory / "REFUSED").write_text("an older copy")
    assert findings(directory) == [("error", "another voter refused it: an older copy")]


def test_a_new_directory(tmp_path: Path) -> None:
    """A voter's journal without an entry has no extent; an observer has fetched nothing yet."""
    started(OsFiles(), tmp_path / "voter" / "journal").close()
    result = quorum("verify", tmp_path / "voter")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:5] == ["journal", "1", "c", "-", "-"]
    (tmp_path / "observer").mkdir()
    (tmp_path / "observer" / ".lock").touch()
    result = quorum("verify", tmp_path / "observer", "--observer")
    assert (result.exit_code, result.stdout.strip()) == (0, "ok")
    assert quorum("verify", tmp_path / "observer").exit_code == 3


def test_a_snapshot_of_another_cluster_is_an_error(directory: Path) -> None:
    """Somebody copied files."""
    snapshot_of(directory).unlink()
    other = SnapshotStore(OsFiles(), directory, cluster_id="other")
    other.newest()
    other.write(index=30, term=3, slices=[b"theirs"])
    assert findings(directory) == [("error", "is of cluster 'other', the journal of 'c'")]


def test_a_directory_that_is_none(tmp_path: Path, directory: Path) -> None:
    """Missing, empty, a file: one line, and what would be right."""
    missing = quorum("verify", tmp_path / "missing")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "does not exist; a quorum directory holds journal/" in missing.stderr
    empty = quorum("verify", directory / "journal" / "..")
    assert empty.exit_code == 0
    (tmp_path / "empty").mkdir()
    assert quorum("verify", tmp_path / "empty").exit_code == 3
    journal = quorum("verify", directory / "journal")
    assert (journal.exit_code, f"give the voter's directory: {directory}" in journal.stderr) == (
        2, True,
    )  # fmt: skip
    file = quorum("verify", segment_path(directory / "journal", 1))
    assert (file.exit_code, "is a file; give the directory" in file.stderr) == (2, True)
