"""The small files around a log: each says what it should, or the report says that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.disk.checkpoint import write_checkpoint
from raftmq.disk.files import OsFiles
from raftmq.partition.verify.findings import Finding, Findings, Severity
from raftmq.partition.verify.partition import verify_partition
from raftmq.partition.verify.side_files import verify_checkpoints
from tests.unit.verify.logs import END_OFFSET, flip, make_log, segments_of, set_recovery_point

FILES = OsFiles(read_only=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path)


def complaints(folder: Path) -> list[str]:
    found = verify_partition(FILES, folder).findings
    return [f"{finding.severity}: {finding.what}" for finding in found]


def set_log_start(folder: Path, offset: int) -> None:
    write_checkpoint(OsFiles(), folder / "log-start-offset", {"log_start_offset": offset})


def test_the_damage_mark_is_an_error(folder: Path) -> None:
    """Recovery left it; what it says is told."""
    (folder / "damaged").write_bytes(b"damaged from offset 7 on: \xff\nreally\n")
    assert complaints(folder) == [
        "error: recovery has found the log damaged from offset 7 on: \\xff really"
    ]


def test_a_damaged_log_start_is_a_warning(folder: Path) -> None:
    """The first segment counts instead."""
    set_log_start(folder, 4)
    flip(folder / "log-start-offset", 18)
    assert complaints(folder) == ["warning: damaged; the log begins with its first segment instead"]


def test_segments_before_the_log_start_are_a_warning(folder: Path) -> None:
    """A trim was interrupted: the next opening finishes it, and they are not verified."""
    first, second = segments_of(folder)[:2]
    set_log_start(folder, int(second.stem) + 1)
    flip(first, 80)
    report = verify_partition(FILES, folder)
    [finding] = report.findings
    assert (finding.severity, finding.file) == (Severity.WARNING, first)
    assert report.log_start_offset == int(second.stem) + 1


def test_a_first_segment_behind_the_log_start_is_an_error(folder: Path) -> None:
    """Offsets that nobody trimmed are gone, whether the start was recorded or never moved."""
    first, second = segments_of(folder)[:2]
    set_log_start(folder, 2)
    for suffix in (".log", ".index", ".timeindex", ".aborted"):
        first.with_suffix(suffix).unlink()
    [complaint] = complaints(folder)
    assert (
        complaint == f"error: offsets 2 to {int(second.stem)} are missing, and were never trimmed"
    )


def test_a_log_that_ends_before_it_starts_is_an_error(folder: Path) -> None:
    """It was trimmed up to an offset that it no longer reaches."""
    set_log_start(folder, END_OFFSET + 5)
    assert f"error: the log ends at {END_OFFSET}, before its start {END_OFFSET + 5}" in (
        complaints(folder)
    )


def test_left_over_indexes_below_the_end_are_a_warning(folder: Path) -> None:
    """A segment was removed, and a power cut kept the name of its index."""
    (folder / "00000000000000000001.index").touch()
    assert complaints(folder) == [
        "warning: its segment 00000000000000000001.log is missing"
    ]  # fmt: skip


def test_checkpoints_of_a_data_directory(tmp_path: Path) -> None:
    """Missing ones are new, damaged or unreadable ones make recovery slow."""
    assert verify_checkpoints(FILES, tmp_path) == []
    set_recovery_point(tmp_path, 3)
    assert verify_checkpoints(FILES, tmp_path) == []
    flip(tmp_path / "checkpoints" / "recovery-points", 2)
    (tmp_path / "checkpoints" / "boots").mkdir()
    whats = [finding.what for finding in verify_checkpoints(FILES, tmp_path)]
    assert whats[0] == "damaged; recovery will check every log from its start"
    assert whats[1].startswith("cannot be read")


def test_findings_that_repeat_are_counted() -> None:
    """The same about the same file is told once, at its first place."""
    findings, file = Findings(), Path("a")
    for position in (16, 32, 48):
        findings.repeated(Finding(Severity.WARNING, file, "bad", position))
    findings.repeated(Finding(Severity.WARNING, Path("b"), "bad", 0))
    findings.error(file, "worse", offset=3)
    assert findings.all() == [
        Finding(Severity.WARNING, file, "bad (and 2 more)", 16),
        Finding(Severity.WARNING, Path("b"), "bad", 0),
        Finding(Severity.ERROR, file, "worse", None, 3),
    ]
