"""What is wrong with the segments of a log, and how bad that is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.model import Compression
from raftmq.partition.storage.inspect import inspect_batches
from raftmq.partition.storage.segment import BatchStart
from raftmq.partition.verify.findings import Severity
from raftmq.partition.verify.partition import verify_partition
from raftmq.wire.batch.header import HEADER_SIZE, seal
from raftmq.wire.batch.records import encode_batch
from tests.unit.verify.logs import (
    END_OFFSET,
    SEGMENTS,
    append,
    contents_of,
    cut,
    flip,
    flush,
    make_log,
    reopen,
    segments_of,
    set_recovery_point,
)

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.partition.storage.log import PartitionLog

FILES = OsFiles(read_only=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path)


def complaints(folder: Path) -> list[str]:
    """`severity: file: what` of every finding."""
    return [
        f"{finding.severity}: {finding.file.name}: {finding.what}"
        for finding in verify_partition(FILES, folder).findings
    ]


def severities(folder: Path) -> set[Severity]:
    return {finding.severity for finding in verify_partition(FILES, folder).findings}


def positions(path: Path) -> list[int]:
    file = FILES.open(path)
    found = inspect_batches(file, BatchStart(int(path.stem), 0), file.size())
    return [each.position for each in found]


def replace_in(path: Path, number: int, change: bytearray) -> None:
    """Put `change`, sealed with a new CRC, in the place of batch `number`."""
    starts = [*positions(path), path.stat().st_size]
    data = path.read_bytes()
    path.write_bytes(data[: starts[number]] + seal(change) + data[starts[number + 1] :])


def batch_in(path: Path, number: int) -> bytearray:
    starts = [*positions(path), path.stat().st_size]
    return bytearray(path.read_bytes()[starts[number] : starts[number + 1]])


# -- healthy -----------------------------------------------------------------------------------


def test_a_healthy_log_has_no_findings(folder: Path) -> None:
    """All is counted, nothing is changed."""
    before = contents_of(folder)
    told: list[int] = []
    report = verify_partition(FILES, folder, told.append)
    assert report.findings == []
    assert (report.segments, report.batches, report.records) == (SEGMENTS, 24, END_OFFSET)
    assert (report.log_start_offset, report.log_end_offset) == (0, END_OFFSET)
    assert report.bytes == sum(path.stat().st_size for path in segments_of(folder)) == sum(told)
    assert contents_of(folder) == before


def test_a_log_in_use_is_healthy(folder: Path) -> None:
    """A broker has it open, has appended and not flushed: indexes and epochs lag behind."""
    log = reopen(folder)
    log.roll()
    append(log)
    assert severities(folder) == set()


def test_a_new_log_is_healthy(tmp_path: Path) -> None:
    """One empty segment."""
    report = verify_partition(FILES, make_log(tmp_path, epochs=0))
    assert (report.findings, report.log_end_offset) == ([], 0)


def test_a_log_trimmed_and_truncated_is_healthy(folder: Path) -> None:
    """Both ends were cut on purpose."""
    log = reopen(folder)
    trim = log.plan_trim(20)
    assert trim is not None
    trim.prepare(log.files)
    trim.perform(log.files)
    log.apply_trim(trim)
    trim.remove(log.files)
    log.begin_truncate(50).perform(log.files)
    log.end_truncate()
    log.assign_epoch(9)
    append(log)
    flush(log)
    report = verify_partition(FILES, folder)
    assert report.findings == []
    assert (report.log_start_offset, report.log_end_offset) == (20, 51)


# -- damage ------------------------------------------------------------------------------------


def test_damage_with_something_sound_behind_is_an_error(folder: Path) -> None:
    """One bit in the middle of a segment; the report says where, and goes on behind it."""
    path = segments_of(folder)[1]
    starts = positions(path)
    flip(path, starts[2] + 80)
    report = verify_partition(FILES, folder)
    [finding] = report.findings
    assert finding.severity is Severity.ERROR
    assert (finding.file, finding.position) == (path, starts[2])
    assert finding.offset == int(path.stem) + 6
    assert "CRC" in finding.what
    assert (report.batches, report.log_end_offset) == (23, END_OFFSET)


def test_a_torn_tail_is_a_warning(folder: Path) -> None:
    """Nothing sound follows: recovery cuts it, and it was never promised."""
    cut(segments_of(folder)[-1], -1)
    [complaint] = complaints(folder)
    assert complaint.startswith("warning")
    assert "torn tail" in complaint
    report = verify_partition(FILES, folder)
    assert report.log_end_offset == END_OFFSET - 3
    assert reopen(folder).log_end_offset == END_OFFSET - 3


def test_a_torn_tail_below_the_recovery_point_is_an_error(folder: Path, tmp_path: Path) -> None:
    """It was durable once: recovery would call it damage as well."""
    set_recovery_point(tmp_path, END_OFFSET)
    cut(segments_of(folder)[-1], -1)
    [complaint] = complaints(folder)
    assert complaint.startswith("error")
    assert f"durable up to offset {END_OFFSET}" in complaint
    assert reopen(folder, END_OFFSET).damage is not None


def test_a_bad_end_of_a_segment_is_an_error_if_the_next_is_sound(folder: Path) -> None:
    """The last batch of a sealed segment is damaged; nothing follows it in its own file."""
    cut(segments_of(folder)[1], -1)
    [complaint] = complaints(folder)
    assert complaint.startswith(f"error: {segments_of(folder)[1].name}: ")


def test_an_empty_segment_behind_a_torn_one_proves_nothing(folder: Path) -> None:
    """The crash came just after a roll: recovery removes the new segment with the tail."""
    log = reopen(folder)
    log.roll()
    flush(log)
    cut(segments_of(folder)[-2], -1)
    assert severities(folder) == {Severity.WARNING}
    assert reopen(folder).log_end_offset == END_OFFSET - 3


def test_a_missing_segment_is_an_error(folder: Path) -> None:
    """In the middle it leaves a gap of offsets, at the beginning a log that starts too late."""
    second = segments_of(folder)[1]
    for path in folder.glob(f"{second.stem}.*"):
        path.unlink()
    [complaint] = complaints(folder)
    assert "are missing before it" in complaint
    first, then = segments_of(folder)[:2]
    first.unlink()
    assert f"error: {then.name}: offsets 0 to {int(then.stem)} are missing, and were never " in (
        " ".join(complaints(folder))
    )


def test_a_gap_before_an_empty_segment_is_a_torn_tail(folder: Path) -> None:
    """Names and bytes reached the disk in another order than they were written."""
    log = reopen(folder)
    log.roll()
    flush(log)
    cut(segments_of(folder)[-2], positions(segments_of(folder)[-2])[-1])
    assert severities(folder) == {Severity.WARNING}
    assert reopen(folder).log_end_offset == END_OFFSET - 3


def test_segments_that_overlap_are_an_error(folder: Path) -> None:
    """The same offsets twice: a segment from elsewhere was copied in."""
    third = segments_of(folder)[2]
    segments_of(folder)[1].rename(third.with_name(f"{int(third.stem) - 3:020d}.log"))
    assert any("the segment before ends at" in each or "missing" in each
               for each in complaints(folder))  # fmt: skip
    assert Severity.ERROR in severities(folder)


def test_a_log_that_ends_before_its_recovery_point_is_an_error(
    folder: Path, tmp_path: Path
) -> None:
    """What was durable is gone without a trace, cut off between two batches."""
    set_recovery_point(tmp_path, END_OFFSET)
    last = segments_of(folder)[-1]
    cut(last, positions(last)[-1])
    assert "error" in " ".join(complaints(folder))
    assert any("were durable, and are gone" in each for each in complaints(folder))


def test_a_segment_without_a_log_file_is_an_error_unless_nothing_was_durable(
    folder: Path, tmp_path: Path
) -> None:
    """Only its indexes are left; the recovery point knows whether that matters."""
    last = segments_of(folder)[-1]
    last.unlink()
    assert f"error: {last.stem}.index: its segment {last.name} is missing" in complaints(folder)
    set_recovery_point(tmp_path, int(last.stem))
    assert f"warning: {last.stem}.index: its segment {last.name} is missing" in complaints(folder)


def test_segments_all_gone_is_an_error(folder: Path) -> None:
    """The folder still has what surrounds a log."""
    for path in folder.glob("0*"):
        path.unlink()
    assert complaints(folder) == [f"error: {folder.name}: holds no segment"]


def test_epochs_that_fall_are_an_error(folder: Path) -> None:
    """Readers refuse a batch of an older epoch; it lies outside of the CRC."""
    path = segments_of(folder)[-1]
    flip(path, positions(path)[1] + 15, bit=1)
    assert severities(folder) == {Severity.ERROR}


# -- records -----------------------------------------------------------------------------------


def test_records_that_do_not_decode_are_an_error(folder: Path) -> None:
    """The CRC is right, the chunk's own is not: somebody sealed rubbish."""
    path = segments_of(folder)[0]
    batch = batch_in(path, 1)
    batch[-1] ^= 1
    replace_in(path, 1, batch)
    [complaint] = complaints(folder)
    assert "sound by its CRC, but does not decode: CRC-32C of the chunk" in complaint


def test_a_codec_that_nobody_has_is_an_error(folder: Path) -> None:
    """Snappy: every reader would refuse it. The same about other batches is counted with it."""
    path = segments_of(folder)[0]
    for number in (0, 1):
        batch = batch_in(path, number)
        batch[22] |= 2
        replace_in(path, number, batch)
    [complaint] = complaints(folder)
    assert complaint.startswith("error")
    assert complaint.endswith("(and 1 more)")


def test_a_codec_whose_package_is_missing_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification says what it could not look at; the log may well be healthy."""
    log = reopen(folder)
    batch = encode_batch(values=[b"x" * 99], timestamp=0, compression=Compression.ZSTD)
    log.append(batch, leader_epoch=2, now_ms=0, now=0.0)
    flush(log)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    [complaint] = complaints(folder)
    assert complaint.startswith("warning")
    assert "pip install" in complaint


def test_a_control_batch_is_checked_for_what_it_says(folder: Path) -> None:
    """A batch marked as control, but of columns, is none."""
    path = segments_of(folder)[0]
    batch = batch_in(path, 0)
    batch[22] |= 1 << 5
    replace_in(path, 0, batch)
    assert "control batch" in " ".join(complaints(folder))


def test_rubbish_with_a_right_crc_never_raises(tmp_path: Path) -> None:
    """Bytes behind the header are overwritten, one at a time, and sealed again."""
    folder = make_log(tmp_path, epochs=1, batches_per_epoch=1)
    path = segments_of(folder)[0]
    original, whole = batch_in(path, 0), path.read_bytes()
    for at in range(HEADER_SIZE, len(original), 4):
        batch = bytearray(original)
        batch[at] ^= 0xFF
        replace_in(path, 0, batch)
        verify_partition(FILES, folder)
        path.write_bytes(whole)


# -- files that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log", "00000000000000000000.index", "leader-epochs", "damaged",
             "00000000000000000000.timeindex", "log-start-offset"],
)  # fmt: skip
def test_a_folder_in_place_of_a_file_is_a_finding(folder: Path, name: str) -> None:
    """Whatever cannot be read is reported, and the rest is still verified."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert f"{name}: cannot be read" in " ".join(complaints(folder))
    assert verify_partition(FILES, folder).log_end_offset == END_OFFSET


def test_an_unreadable_recovery_point_is_none(folder: Path, tmp_path: Path) -> None:
    """The data directory's own report says so; the log is verified without."""
    (tmp_path / "checkpoints" / "recovery-points").mkdir(parents=True)
    assert complaints(folder) == []


def test_a_folder_that_is_a_file_is_a_finding(tmp_path: Path) -> None:
    """Nothing at all can be read."""
    (tmp_path / "Partition-0").touch()
    [complaint] = complaints(tmp_path / "Partition-0")
    assert complaint.startswith("error: Partition-0: cannot be read")


def test_a_segment_that_goes_away_meanwhile_is_a_warning(folder: Path) -> None:
    """Retention removes the first segments while they are read."""
    log: PartitionLog = reopen(folder)
    second = segments_of(folder)[1]

    def remove(_: int) -> None:
        trim = log.plan_trim(50)
        if trim is not None:
            trim.prepare(log.files)
            trim.perform(log.files)
            log.apply_trim(trim)
            trim.remove(log.files)

    report = verify_partition(FILES, folder, remove)
    removed = [finding for finding in report.findings if finding.file == second]
    assert "was removed while the log was read: verify again" in [each.what for each in removed]
    assert {finding.severity for finding in report.findings} == {Severity.WARNING}
