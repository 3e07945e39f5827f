"""Snapshots of producers: written at rolls, read at openings, done without if they are no use."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.disk.checkpoint import replace_file
from raftmq.partition.producer_format import pack_snapshot
from raftmq.partition.storage.known_producers import list_snapshots, snapshot_path
from raftmq.partition.storage.recovery import Past
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.numbered import (
    FOLDER,
    append,
    cut,
    fill,
    known,
    numbered,
    opened,
    said_by,
    trim,
    write_snapshots,
)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def test_each_roll_leaves_a_snapshot(files: SimulatedFiles) -> None:
    """Of what was known where the segment begins; it is written later, elsewhere."""
    log = opened(files)
    fill(log)
    bases = [segment.base_offset for segment in log.segments[1:]]
    assert len(bases) > 2
    assert list_snapshots(files, FOLDER) == []
    write_snapshots(log)
    assert list_snapshots(files, FOLDER) == bases
    write_snapshots(log)  # nothing waits any more


def test_an_opening_looks_only_at_what_follows_the_snapshot(files: SimulatedFiles) -> None:
    """Below it no batch is read: the segments may hold anything there."""
    log = opened(files)
    fill(log)
    write_snapshots(log)
    expected = said_by(log)
    first = log.segments[0]
    first.file.write(0, [b"\xff" * first.size])
    again = opened(files, Past(log.log_end_offset, was_clean=True))
    assert again.report.clean
    assert known(again) == expected


@pytest.mark.parametrize("harm", ["missing", "torn", "flipped", "empty"])
def test_a_snapshot_that_is_no_use(files: SimulatedFiles, harm: str) -> None:
    """The one before it and more headers do; without any, all headers."""
    log = opened(files)
    fill(log)
    write_snapshots(log)
    for offset in reversed(list_snapshots(files, FOLDER)):
        path = snapshot_path(FOLDER, offset)
        if harm == "missing":
            files.remove(path)
        elif harm == "flipped":
            files.open(path).write(30, [b"\xff"])
        else:
            files.open(path).truncate(25 if harm == "torn" else 0)
        again = opened(files)
        assert known(again) == said_by(log)
        assert offset not in list_snapshots(files, FOLDER)


def test_a_snapshot_between_two_records_is_not_believed(files: SimulatedFiles) -> None:
    """None begins there: it belongs to some other log."""
    log = opened(files)
    fill(log)
    offset = log.log_end_offset - 1
    replace_file(files, snapshot_path(FOLDER, offset), pack_snapshot(offset, []))
    assert known(opened(files)) == said_by(log)


def test_producers_that_were_trimmed_stay_known(files: SimulatedFiles) -> None:
    """The only batches of one producer are deleted: after a crash it goes on all the same."""
    log = opened(files)
    append(log, numbered(0, producer=99))
    fill(log, 60)
    trim(log, log.segments[-1].base_offset)
    assert 99 not in said_by(log)
    for seed in range(10):
        crashed = files.photograph(Random(seed), power_lost=True)
        again = opened(crashed, Past(log.durable_end_offset, page_cache_survived=False))
        assert known(again) == known(log)
        assert append(again, numbered(0, producer=99)).base_offsets == (0,)


def test_a_trim_leaves_a_snapshot_where_rolls_left_none(files: SimulatedFiles) -> None:
    """They were waiting to be written when the process was killed; and what was written when the
    log was closed may not be durable."""
    log = opened(files)
    append(log, numbered(0, producer=99))
    fill(log, 60)
    log = opened(files)
    log.producers.take_last(log.log_end_offset)
    write_snapshots(log, is_durable=False)
    again = opened(files)
    trim(again, again.segments[-1].base_offset)
    for seed in range(10):
        crashed = files.photograph(Random(seed), power_lost=True)
        past = Past(again.durable_end_offset, page_cache_survived=False)
        assert known(opened(crashed, past)) == known(again)


def test_a_snapshot_that_waits_is_void_once_the_log_is_cut(files: SimulatedFiles) -> None:
    """Taken at a roll; then the log is cut before it, and other batches come to stand there."""
    log = opened(files)
    fill(log, 4)
    log.roll()
    cut(log, log.begin_truncate(4))
    for first in range(0, 6, 2):
        append(log, numbered(first, producer=50))
    write_snapshots(log)
    assert known(opened(files)) == said_by(log)
    assert list_snapshots(files, FOLDER) == []


def test_a_snapshot_of_before_the_log_is_not_believed(files: SimulatedFiles) -> None:
    """What came between it and the first segment is not known: nothing is better than that."""
    log = opened(files)
    fill(log, 60)
    write_snapshots(log)
    offset = list_snapshots(files, FOLDER)[0]
    old = files.open(snapshot_path(FOLDER, offset)).read(0, 10_000)
    trim(log, log.segments[-1].base_offset)
    for each in list_snapshots(files, FOLDER):
        files.remove(snapshot_path(FOLDER, each))
    replace_file(files, snapshot_path(FOLDER, offset), old)
    assert known(opened(files)) == said_by(log)
    assert offset not in list_snapshots(files, FOLDER)


def test_old_snapshots_go(files: SimulatedFiles) -> None:
    """One for each segment stays, and the newest; a trim takes those of what it removes."""
    log = opened(files)
    for at in range(8):
        append(log, numbered(at * 2))
        log.producers.take_last(log.log_end_offset)
        write_snapshots(log)
    bases = {segment.base_offset for segment in log.segments[1:]}
    assert set(list_snapshots(files, FOLDER)) == bases | {log.log_end_offset}
    fill(log, 60)
    trim(log, log.segments[-2].base_offset)
    assert list_snapshots(files, FOLDER)[0] == log.segments[0].base_offset


def test_a_disk_that_refuses_snapshots_changes_nothing(files: SimulatedFiles) -> None:
    """They save time, nothing else: the log goes on, and the next opening walks."""
    log = opened(files)
    fill(log)
    files.fail("write", "*.tmp")
    write_snapshots(log)
    assert log.is_sound
    assert list_snapshots(files, FOLDER) == []
    assert known(opened(files)) == said_by(log)
