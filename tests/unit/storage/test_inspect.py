"""A partition folder can be looked at in whatever state it is, and is never changed by that."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from raftmq.disk.files import OsFiles
from raftmq.errors import StorageError
from raftmq.partition.storage.inspect import (
    BadBytes,
    data_directory_of,
    find_partition_folders,
    inspect_batches,
    list_segments,
    read_entries,
    read_recovery_point,
    read_small_file,
    start_near,
)
from raftmq.partition.storage.segment import BatchStart
from tests.unit.verify.logs import (
    END_OFFSET,
    SEGMENTS,
    contents_of,
    cut,
    flip,
    make_log,
    segments_of,
    set_recovery_point,
)

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.partition.storage.segment import FoundBatch

FILES = OsFiles(read_only=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path)


def look(path: Path, start: BatchStart | None = None) -> list[FoundBatch | BadBytes]:
    start = start or BatchStart(int(path.stem), 0)
    return list(inspect_batches(FILES.open(path), start, path.stat().st_size))


def shape(found: list[FoundBatch | BadBytes]) -> list[int | str]:
    """Base offsets of batches, and the reasons of bad bytes up to the first number in them."""
    return [each.what if isinstance(each, BadBytes) else each.header.base_offset for each in found]


def positions(path: Path) -> list[int]:
    return [each.position for each in look(path)]


def test_a_folder_is_read_without_a_trace(folder: Path) -> None:
    """Everything that can be asked is asked; no file is created, changed or opened for writing."""
    before = contents_of(folder)
    for segment in list_segments(FILES, folder):
        look(segment.path)
        start_near(FILES, segment, segment.base_offset + 5)
        read_entries(FILES, segment.path.with_suffix(".index"))
    assert contents_of(folder) == before


def test_the_kernel_refuses_writes(folder: Path) -> None:
    """Even code that tried to write could not."""
    file = FILES.open(segments_of(folder)[0])
    with pytest.raises(StorageError):
        file.write(0, [b"x"])
    with pytest.raises(StorageError, match="No such file"):
        FILES.open(folder / "new", create=True)


def test_a_named_pipe_is_no_trap(tmp_path: Path) -> None:
    """Opening a pipe in place of a segment would wait for a writer for ever."""
    os.mkfifo(tmp_path / "00000000000000000000.log")
    file = FILES.open(tmp_path / "00000000000000000000.log")
    with pytest.raises(StorageError):
        file.read(0, 1)


# -- folders -----------------------------------------------------------------------------------


def test_partition_folders_are_found_from_above(folder: Path, tmp_path: Path) -> None:
    """A partition folder, its topic, the topics and the data directory all lead to it."""
    (folder.parent / "Partition-10").mkdir()
    (folder.parent / "Partition-2").mkdir()
    (folder.parent / "unrelated").mkdir()
    every = [folder, folder.with_name("Partition-2"), folder.with_name("Partition-10")]
    assert find_partition_folders(FILES, folder) == [folder]
    assert find_partition_folders(FILES, folder.parent) == every
    assert find_partition_folders(FILES, tmp_path / "topics") == every
    assert find_partition_folders(FILES, tmp_path) == every


def test_a_copy_with_another_name_is_a_partition_folder_too(folder: Path, tmp_path: Path) -> None:
    """What counts then are its segments; it belongs to no data directory."""
    copy = folder.rename(tmp_path / "copy")
    assert find_partition_folders(FILES, copy) == [copy]
    assert data_directory_of(copy) is None
    assert read_recovery_point(FILES, copy) is None


def test_the_recovery_point_comes_from_the_data_directory(folder: Path, tmp_path: Path) -> None:
    """The checkpoint names logs by topic folder and partition."""
    assert read_recovery_point(FILES, folder) is None
    set_recovery_point(tmp_path, 42)
    assert data_directory_of(folder) == tmp_path
    assert read_recovery_point(FILES, folder) == 42


def test_a_small_file_without_numbers_is_damaged(tmp_path: Path) -> None:
    """Sound by its CRC, but not what it should say."""
    path = tmp_path / "log-start-offset"
    line = b"log_start_offset many\n"
    path.write_bytes(line + b"crc32c %08x\n" % crc32c(line))
    assert read_small_file(FILES, path) is None
    assert read_small_file(FILES, tmp_path / "missing") is None


def test_segments_are_listed_in_order_and_nothing_else_is(folder: Path) -> None:
    """Indexes, epochs and files with similar names are no segments."""
    for name in ("1.log", "00000000000000000999.log.tmp", "x0000000000000000999.log"):
        (folder / name).touch()
    segments = list_segments(FILES, folder)
    assert len(segments) == SEGMENTS
    assert all(one.base_offset < following.base_offset for one, following in pairwise(segments))
    assert [segment.size for segment in segments] == [
        segment.path.stat().st_size for segment in segments
    ]


# -- entries -----------------------------------------------------------------------------------


def test_damaged_entries_are_told_apart_from_sound_ones(folder: Path) -> None:
    """One entry is flipped, and the file ends within another."""
    path = segments_of(folder)[0].with_suffix(".index")
    whole = read_entries(FILES, path)
    assert None not in whole.entries
    flip(path, 3)
    cut(path, -5)
    found = read_entries(FILES, path)
    assert found.entries == [None, *whole.entries[1:-1]]
    assert found.torn_bytes == 11


def test_the_index_leads_near_an_offset_and_damage_to_the_beginning(folder: Path) -> None:
    """A reader starts at the batch that holds the offset, or finds it the long way."""
    segment = list_segments(FILES, folder)[1]
    assert start_near(FILES, segment, 0) == BatchStart(segment.base_offset, 0)
    start = start_near(FILES, segment, segment.base_offset + 7)
    assert start.offset == segment.base_offset + 6
    assert start.position == positions(segment.path)[2]
    flip(segment.path, start.position + 16)
    assert start_near(FILES, segment, segment.base_offset + 7).position == 0


# -- batches -----------------------------------------------------------------------------------


def test_sound_batches_come_as_they_are(folder: Path) -> None:
    """Nothing is wrong: all batches, no bad bytes."""
    offsets = [offset for path in segments_of(folder) for offset in shape(look(path))]
    assert offsets == list(range(0, END_OFFSET, 3))


def test_a_reading_may_begin_in_the_middle(folder: Path) -> None:
    """From the place that an index named."""
    path = segments_of(folder)[0]
    middle = positions(path)[2]
    assert shape(look(path, BatchStart(6, middle)))[0] == 6


def test_a_flipped_bit_costs_one_batch(folder: Path) -> None:
    """The CRC fails; the next batch is found by looking at every byte."""
    path = segments_of(folder)[0]
    starts = positions(path)
    flip(path, starts[1] + 100)
    found = look(path)
    bad = found[1]
    assert isinstance(bad, BadBytes)
    assert (bad.position, bad.end, bad.offset) == (starts[1], starts[2], 3)
    assert bad.sound_follows
    assert "CRC" in bad.what
    assert shape(found[2:]) == [6, 9, 12]


def test_a_torn_tail_ends_the_reading(folder: Path) -> None:
    """The last batch is not whole, and nothing sound follows."""
    path = segments_of(folder)[-1]
    starts, size = positions(path), path.stat().st_size
    cut(path, -1)
    assert look(path)[-1] == BadBytes(
        starts[-1], size - 1, 69, f"batch of {size - starts[-1]} bytes, 1 are missing", False
    )


def test_a_wrong_base_offset_does_not_make_the_rest_wrong(folder: Path) -> None:
    """Base offsets lie outside of the CRC: the batch is shown, and what follows is in place."""
    path = segments_of(folder)[0]
    starts = positions(path)
    flip(path, starts[1] + 7, bit=2)
    assert shape(look(path)) == [0, "base offset 7, expected 3", 7, 6, 9, 12]


def test_a_base_offset_that_is_too_small_is_no_batch(folder: Path) -> None:
    """Recovery does not count such a batch as a sound one that follows either."""
    path = segments_of(folder)[0]
    starts = positions(path)
    flip(path, starts[2] + 7, bit=1)
    found = look(path)
    assert shape(found) == [0, 3, "base offset 4, expected 6", 9, 12]
    assert isinstance(found[2], BadBytes)
    assert found[2].end == starts[3]


def test_a_misplaced_batch_before_a_bad_one(folder: Path) -> None:
    """Two damages side by side are two findings, and the reading goes on behind them."""
    path = segments_of(folder)[0]
    starts = positions(path)
    flip(path, starts[1] + 7, bit=2)
    flip(path, starts[2] + 100)
    reasons = shape(look(path))
    assert reasons[:3] == [0, "base offset 7, expected 3", 7]
    assert isinstance(reasons[3], str)
    assert reasons[4:] == [9, 12]


def test_a_batch_that_was_removed_is_a_gap(folder: Path) -> None:
    """Everything behind it is sound, but says itself that something is missing."""
    path = segments_of(folder)[0]
    starts, data = positions(path), path.read_bytes()
    path.write_bytes(data[: starts[1]] + data[starts[2] :])
    assert shape(look(path)) == [0, "base offset 6, expected 3", 6, 9, 12]


def test_an_epoch_that_falls_is_named_where_it_falls(folder: Path) -> None:
    """The leader epoch lies outside of the CRC too."""
    path = segments_of(folder)[0]
    starts = positions(path)
    flip(path, starts[1] + 12, bit=2)
    reasons = shape(look(path))
    assert reasons == [0, 3, "leader epoch 0 after 67108864", 6, 9, 12]


def test_bytes_that_are_no_batches_at_all(tmp_path: Path) -> None:
    """A file of anything is one stretch of bad bytes."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(range(256)) * 20)
    assert [type(each) for each in look(path)] == [BadBytes]
    path.write_bytes(b"")
    assert look(path) == []
