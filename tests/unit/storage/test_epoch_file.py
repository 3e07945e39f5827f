"""The history of leader epochs on disk: assignments, cuts, compaction."""

from __future__ import annotations

from pathlib import Path
from random import Random

from raftmq.partition.epochs import UNDEFINED_EPOCH, EpochStart
from raftmq.partition.storage.entries import ENTRY_SIZE, EPOCH_FILE, VOID_ENTRIES_MAX, EpochFile
from tests.simulation.disk import SimulatedFiles

FOLDER = Path("/data/t")


def history(*entries: tuple[int, int]) -> tuple[SimulatedFiles, EpochFile]:
    files = SimulatedFiles(Random(0))
    files.make_directory(FOLDER)
    file = EpochFile(files, FOLDER)
    for epoch, start_offset in entries:
        file.append(epoch, start_offset)
    file.write_pending()
    return files, file


def test_a_cut_is_an_entry_too() -> None:
    """Epoch 5 began at 80, the log was cut at 50, epoch 4 went on past 80: no trace of 5."""
    files, _ = history((4, 0), (5, 80), (4, 50))
    assert EpochFile(files, FOLDER).read().entries == [EpochStart(4, 0)]


def test_a_cut_of_everything() -> None:
    """No epoch is left; the next one starts from nothing."""
    files, file = history((4, 0), (UNDEFINED_EPOCH, 0))
    assert file.read().entries == []
    file.append(2, 0)
    file.write_pending()
    assert EpochFile(files, FOLDER).read().entries == [EpochStart(2, 0)]


def test_a_long_history_is_replaced_by_its_table() -> None:
    """A replica whose log was cut again and again does not keep it for ever."""
    entries = [(number, 0) for number in range(VOID_ENTRIES_MAX + 2)]
    files, file = history(*entries)
    file.compact(file.read())
    assert files.size(FOLDER / EPOCH_FILE) == ENTRY_SIZE
    assert EpochFile(files, FOLDER).read().entries == [EpochStart(VOID_ENTRIES_MAX + 1, 0)]


def test_a_short_history_stays() -> None:
    """Replacing costs three syncs at the opening of every log."""
    files, file = history((1, 0), (2, 0), (3, 0))
    file.compact(file.read())
    assert files.size(FOLDER / EPOCH_FILE) == 3 * ENTRY_SIZE
