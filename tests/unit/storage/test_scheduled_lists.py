"""Lists of scheduled records that know more than the log holds are gone before it grows again.

Then other batches may stand where their entries say, and up to the end that they name (A12.2).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.partition.scheduling.lists import find_lists, list_path, read_list
from raftmq.partition.storage.recovery import Past
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.numbered import FOLDER, append, cut, opened

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

LATER = 60_000


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def schedule(log: PartitionLog, count: int) -> None:
    for number in range(count):
        values, due_ms = [b"%d" % number * 50], NOW_MS + LATER + number
        append(log, bytes(encode_batch(values=values, timestamp=NOW_MS, due_ms=due_ms)))


def plain(log: PartitionLog, count: int) -> None:
    """One small batch, which leaves the segment room."""
    append(log, bytes(encode_batch(values=[b""] * count, timestamp=NOW_MS)))


def scheduled(log: PartitionLog) -> list[tuple[int, int]]:
    """(base offset, due time) of each."""
    return [(each.base_offset, each.due_ms) for each in log.schedule.entries()]


def write_lists(log: PartitionLog) -> None:
    work = log.scheduled.begin_write()
    assert work is not None
    work.perform(log.files)


def begin(files: SimulatedFiles) -> tuple[PartitionLog, int]:
    """A log of two segments, the first of which has a list; and where that ends."""
    log = opened(files)
    while len(log.segments) == 1:
        schedule(log, 1)
    write_lists(log)
    assert find_lists(files, FOLDER) == [0]
    return log, log.segments[0].end_offset


def test_a_list_is_not_believed_after_a_cut(files: SimulatedFiles) -> None:
    """Other batches stand behind the cut, up to the end of the list and beyond."""
    log, end_offset = begin(files)
    cut(log, log.begin_truncate(2))
    plain(log, end_offset - 2)
    schedule(log, 1)
    assert len(log.segments) == 1
    expected = scheduled(log)
    assert [base for base, _ in expected] == [0, 1, end_offset]
    again = opened(files.after_crash(power_lost=False), Past())
    assert again.log_end_offset == end_offset + 1
    assert scheduled(again) == expected


def test_a_list_outlives_no_tail_that_was_lost(files: SimulatedFiles) -> None:
    """The list was synced, and its segment was not: the power was cut. What the log grows over it
    afterwards is what counts at the opening after that.
    """
    log, end_offset = begin(files)
    files = files.after_crash(power_lost=True)
    log = opened(files, Past(page_cache_survived=False))
    kept = log.log_end_offset
    assert kept < end_offset
    assert find_lists(files, FOLDER) == []
    plain(log, end_offset - kept)
    schedule(log, 1)
    assert len(log.segments) == 1
    expected = scheduled(log)
    assert [base for base, _ in expected] == [*range(kept), end_offset]
    again = opened(files.after_crash(power_lost=False), Past())
    assert scheduled(again) == expected


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_list_that_is_missing_is_written_again(files: SimulatedFiles, harm: str) -> None:
    """By the opening that has read the batches; the next one has no need to (A12.2)."""
    log, end_offset = begin(files)
    expected, path = scheduled(log), list_path(FOLDER, 0)
    before = files.open(path).read(0, files.open(path).size())
    if harm == "lost":
        files.remove(path)
    else:
        files.open(path).truncate(20)
    again = opened(files.after_crash(power_lost=False), Past())
    assert scheduled(again) == expected
    write_lists(again)
    file = again.files.open(path)
    assert file.read(0, file.size()) == before
    assert read_list(before, 0).end_offset == end_offset
    assert opened(again.files, Past()).scheduled.begin_write() is None
