"""Files of 16-byte entries: searches, cuts, torn ends, flipped bits."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftmq.partition.storage.entries import ENTRY_SIZE, DamagedEntries, EntryFile, IndexEntry
from tests.simulation.disk import SimulatedFiles

PATH = Path("/data/00.index")


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_directory(PATH.parent)
    return files


def filled(files: SimulatedFiles, written: int = 3, pending: int = 2) -> EntryFile:
    """Keys 0, 10, 20, ... with values 0, 100, 200, ...; some of them still in memory."""
    entries = EntryFile(files, PATH)
    for index in range(written + pending):
        entries.append(index * 10, index * 100)
        if index == written - 1:
            entries.write_pending()
    return entries


def test_searches_cover_file_and_memory(files: SimulatedFiles) -> None:
    """Some entries are written, the last ones are not yet."""
    entries = filled(files)
    assert (entries.count, entries.pending_count) == (5, 2)
    assert [entries.count_up_to(key) for key in (-1, 0, 9, 10, 40, 99)] == [0, 1, 1, 2, 5, 5]
    assert [entries.count_up_to_value(v) for v in (0, 99, 400)] == [1, 1, 5]
    assert entries.last() == IndexEntry(40, 400)
    assert entries.all() == [IndexEntry(i * 10, i * 100) for i in range(5)]


@pytest.mark.parametrize("kept", range(6))
def test_truncate(files: SimulatedFiles, kept: int) -> None:
    """A cut may fall into the file or into memory; what is appended then follows it."""
    entries = filled(files)
    entries.truncate(kept)
    entries.append(1000, 1)
    entries.write_pending()
    expected = [IndexEntry(i * 10, i * 100) for i in range(kept)] + [IndexEntry(1000, 1)]
    assert entries.all() == expected
    assert EntryFile(files, PATH).all() == expected


def test_a_torn_last_entry_does_not_count(files: SimulatedFiles) -> None:
    """The process died in the middle of a write; the next append takes the torn place."""
    filled(files, written=3, pending=0)
    files.cut(PATH, 2 * ENTRY_SIZE + 5)
    entries = EntryFile(files, PATH)
    assert entries.count == 2
    entries.append(50, 500)
    entries.write_pending()
    assert EntryFile(files, PATH).all()[-1] == IndexEntry(50, 500)


def test_a_flipped_bit_is_noticed(files: SimulatedFiles) -> None:
    """Any bit of an entry, its CRC included."""
    filled(files, written=1, pending=0)
    for position in range(ENTRY_SIZE):
        files.flip_bit(PATH, position, 3)
        with pytest.raises(DamagedEntries):
            EntryFile(files, PATH).at(0)
        files.flip_bit(PATH, position, 3)
    assert EntryFile(files, PATH).at(0) == IndexEntry(0, 0)


def test_a_hole_is_noticed(files: SimulatedFiles) -> None:
    """Zeros, as a lost page leaves them, are no entry."""
    files.open(PATH, create=True).write(0, [bytes(ENTRY_SIZE)])
    with pytest.raises(DamagedEntries):
        EntryFile(files, PATH).at(0)
