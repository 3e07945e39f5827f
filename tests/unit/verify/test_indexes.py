"""What is wrong with indexes and epochs, and whether readers would notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.partition.storage.entries import ENTRY_SIZE, pack_entry
from raftmq.partition.storage.inspect import read_entries
from raftmq.partition.verify.partition import verify_partition
from tests.log_reading import offset_for_timestamp
from tests.unit.verify.logs import (
    END_OFFSET,
    NOW_MS,
    cut,
    flip,
    make_log,
    reopen,
    segments_of,
    set_recovery_point,
)

if TYPE_CHECKING:
    from pathlib import Path

FILES = OsFiles(read_only=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path)


def complaints(folder: Path) -> list[str]:
    """`severity: what` of every finding."""
    found = verify_partition(FILES, folder).findings
    return [f"{finding.severity}: {finding.what}" for finding in found]


def rewrite(path: Path, number: int, *, key: int | None = None, value: int | None = None) -> None:
    """Change entry `number`, and give it the CRC that it then must have."""
    entry = read_entries(FILES, path).entries[number]
    assert entry is not None
    changed = pack_entry(entry.key if key is None else key, entry.value if value is None else value)
    data, at = path.read_bytes(), number * ENTRY_SIZE
    path.write_bytes(data[:at] + changed + data[at + ENTRY_SIZE :])


def offset_index(folder: Path, number: int = 0) -> Path:
    return segments_of(folder)[number].with_suffix(".index")


def time_index(folder: Path, number: int = 0) -> Path:
    return segments_of(folder)[number].with_suffix(".timeindex")


# -- both indexes ------------------------------------------------------------------------------


def test_a_damaged_index_is_one_warning(folder: Path) -> None:
    """Every entry of it is flipped; lookups walk the log instead."""
    path = offset_index(folder)
    count = path.stat().st_size // ENTRY_SIZE
    assert count > 2
    for number in range(count):
        flip(path, number * ENTRY_SIZE)
    assert complaints(folder) == [f"warning: an entry fails its CRC (and {count - 1} more)"]


def test_a_missing_or_torn_index_is_a_warning(folder: Path) -> None:
    """The log only gets slower."""
    offset_index(folder).unlink()
    cut(offset_index(folder, 1), -1)
    assert complaints(folder) == [
        "warning: missing", "warning: ends in 15 bytes that are no whole entry"
    ]  # fmt: skip


def test_entries_out_of_order_are_a_warning(folder: Path) -> None:
    """Sound by themselves, but a binary search would miss them."""
    rewrite(offset_index(folder), 1, key=0)
    assert complaints(folder) == ["warning: an entry does not follow from the one before"]


def test_entries_about_no_batch_are_a_warning(folder: Path) -> None:
    """In between two batches, at the wrong byte, or behind the end: who follows them sees it."""
    rewrite(offset_index(folder, 0), 0, key=4)
    rewrite(offset_index(folder, 1), 0, value=1)
    last = offset_index(folder, -1)
    rewrite(last, last.stat().st_size // ENTRY_SIZE - 1, key=10_000)
    assert sorted(complaints(folder)) == [
        "warning: an entry belongs to no batch",
        "warning: an entry lies beyond the last batch",
        "warning: an entry points to the wrong byte",
    ]


def test_index_entries_into_damage_are_not_blamed(folder: Path) -> None:
    """The batch is what is damaged, not the entry that points to it."""
    path = segments_of(folder)[0]
    entry = read_entries(FILES, offset_index(folder)).entries[0]
    assert entry is not None
    flip(path, entry.value + 80)
    [complaint] = complaints(folder)
    assert "no batch: CRC" in complaint


# -- time --------------------------------------------------------------------------------------


def test_a_time_entry_that_hides_records_is_an_error(folder: Path) -> None:
    """It says that all before it is older than it is; a lookup believes that."""
    path = time_index(folder)
    rewrite(path, 0, key=NOW_MS + 1)
    [complaint] = complaints(folder)
    assert complaint.startswith("error: an entry hides a younger record from lookups")
    assert offset_for_timestamp(reopen(folder, END_OFFSET), NOW_MS + 2) != (NOW_MS + 10, 1)
    path.unlink()  # the way out that the finding names
    assert offset_for_timestamp(reopen(folder, END_OFFSET), NOW_MS + 2) == (NOW_MS + 10, 1)


def test_a_time_entry_that_is_too_late_is_a_warning(folder: Path) -> None:
    """Lookups begin earlier than they must."""
    path = time_index(folder)
    rewrite(path, len(read_entries(FILES, path).entries) - 1, key=NOW_MS + 9_999_999)
    assert complaints(folder) == ["warning: an entry is later than every batch up to its own"]


def test_a_time_entry_between_batches_is_judged_by_what_is_before_it(folder: Path) -> None:
    """Its batch is not there, but what it says of those before it can be wrong or right."""
    rewrite(time_index(folder), 0, value=4)
    first = complaints(folder)
    assert "warning: an entry belongs to no batch" in first
    assert not any(complaint.startswith("error") for complaint in first)
    rewrite(time_index(folder), 0, key=NOW_MS)
    assert any("hides a younger record" in complaint for complaint in complaints(folder))


def test_a_sealed_time_index_that_ends_early_is_a_warning(folder: Path) -> None:
    """Without the entry that closes it, the log asks the batches for the largest timestamp."""
    cut(time_index(folder), -2 * ENTRY_SIZE)
    [complaint] = complaints(folder)
    assert complaint.startswith("warning: ends before its segment does")


def test_an_active_time_index_may_end_early(folder: Path) -> None:
    """Its last entries are still in the memory of the broker."""
    cut(time_index(folder, -1), 0)
    assert complaints(folder) == []


# -- epochs ------------------------------------------------------------------------------------


def test_damaged_epochs_are_a_warning(folder: Path) -> None:
    """The log is walked instead; readers see no difference."""
    flip(folder / "leader-epochs", 3)
    assert complaints(folder) == ["warning: an entry fails its CRC"]


def test_epochs_that_disagree_with_the_log_are_an_error(folder: Path) -> None:
    """Readers refuse the batches between the two places at which the second epoch begins."""
    entry = read_entries(FILES, folder / "leader-epochs").entries[1]
    assert entry is not None
    rewrite(folder / "leader-epochs", 1, key=entry.key + 1)
    [complaint] = complaints(folder)
    assert complaint == "error: says leader epoch 0, the batch is of epoch 1"


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_epochs_that_were_cut_are_a_warning(folder: Path, entries: int) -> None:
    """The table does not know the last batch: the log reads its batches instead."""
    cut(folder / "leader-epochs", -entries * ENTRY_SIZE)
    [complaint] = complaints(folder)
    assert complaint.startswith("warning: says leader epoch")


def test_missing_epochs_are_a_warning(folder: Path) -> None:
    """The same, without any entry."""
    (folder / "leader-epochs").unlink()
    assert complaints(folder) == ["warning: says leader epoch -1, the batch is of epoch 0"]


def test_epochs_behind_the_recovery_point_are_read_from_the_log_again(
    folder: Path, tmp_path: Path
) -> None:
    """The writer was killed before it noted the epoch: recovery does so."""
    cut(folder / "leader-epochs", -ENTRY_SIZE)
    set_recovery_point(tmp_path, 48)
    assert complaints(folder) == ["warning: says leader epoch 1, the batch is of epoch 2"]
    assert reopen(folder, 48).epochs.latest == 2


def test_an_epoch_without_batches_is_no_finding(folder: Path) -> None:
    """A leader was elected and wrote nothing; only one beyond the end is worth a warning."""
    with (folder / "leader-epochs").open("ab") as file:
        file.write(pack_entry(END_OFFSET, 7))
    assert complaints(folder) == []
    with (folder / "leader-epochs").open("ab") as file:
        file.write(pack_entry(END_OFFSET + 1, 8))
    assert complaints(folder) == [
        f"warning: leader epoch 8 begins beyond the log's end {END_OFFSET}"
    ]
