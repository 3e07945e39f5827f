"""Opening a log after whatever happened: what is cut, what never is, what is rebuilt."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.checkpoint import pack_checkpoint, prepare_file
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.epochs import EpochStart
from raftmq.partition.storage.recovery import Past, TailVerdict, judge, open_log
from raftmq.partition.storage.work import LOG_START_FILE, LOG_START_KEY
from raftmq.topic_config import TopicConfig
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import append, values_of

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/t/Partition-0")
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100)
FIRST = FOLDER / ("0" * 20 + ".log")


def opened(files: SimulatedFiles, past: Past | None = None) -> PartitionLog:
    return open_log(files, FOLDER, "t/Partition-0", CONFIG, past)


def flush(log: PartitionLog) -> None:
    work = log.begin_flush(0.0)
    work.perform(log.files)
    log.complete_flush(work)


@pytest.fixture
def files() -> SimulatedFiles:
    """Twelve durable records of 100 bytes in epochs 0, 1, 2: several segments."""
    files = SimulatedFiles(Random(0))
    log = opened(files)
    for number in range(12):
        append(log, b"%03d" % number * 33, epoch=number // 5)
    flush(log)
    log.write_indexes()
    return files


ALL = [b"%03d" % number * 33 for number in range(12)]
EPOCHS = [EpochStart(0, 0), EpochStart(1, 5), EpochStart(2, 10)]
LOST_CACHE = Past(page_cache_survived=False)


@pytest.mark.parametrize(
    ("recovery_point", "survived", "was_damaged", "sound_follows", "verdict"),
    [
        (100, False, False, False, TailVerdict.DAMAGED),  # 1: it was right once
        (100, True, False, False, TailVerdict.DAMAGED),
        (0, False, True, False, TailVerdict.DAMAGED),  # 2: found damaged before
        (0, False, False, True, TailVerdict.CUT),  # 3: unsynced pages come in any order
        (0, False, False, False, TailVerdict.CUT),
        (0, True, False, True, TailVerdict.DAMAGED),  # 4: the cache kept the order
        (0, True, False, False, TailVerdict.CUT),  # 5: the last write was torn
    ],
)
def test_judge(
    recovery_point: int,
    survived: bool,
    was_damaged: bool,
    sound_follows: bool,
    verdict: TailVerdict,
) -> None:
    """Something is wrong from offset 50 on."""
    past = Past(recovery_point, page_cache_survived=survived)
    found = judge(past, offset=50, was_damaged=was_damaged, sound_follows=lambda: sound_follows)
    assert found is verdict


def test_everything_is_found_again(files: SimulatedFiles) -> None:
    """Killed, without any checkpoint: all segments are scanned, all records and epochs there."""
    log = opened(files)
    assert values_of(log) == ALL
    assert log.epochs.entries == EPOCHS
    assert (log.report.cut_bytes, log.report.clean, log.damage) == (0, False, None)


def test_a_torn_tail_is_cut(files: SimulatedFiles) -> None:
    """The last batch is half there: it was never acknowledged (A3.7)."""
    last = files.paths(FOLDER)[-3]
    while last.suffix != ".log":
        last = next(path for path in reversed(files.paths(FOLDER)) if path.suffix == ".log")
    files.cut(last, files.size(last) - 10)
    log = opened(files)
    assert values_of(log) == ALL[:-1]
    assert log.report.cut_bytes > 0
    append(log, b"new", epoch=3)
    assert values_of(log) == [*ALL[:-1], b"new"]


def test_a_torn_tail_is_cut_behind_a_clean_mark(files: SimulatedFiles) -> None:
    """The disk was full, the write torn, the directory closed in order all the same."""
    log = opened(files, Past(recovery_point=12))
    torn = log.active
    files.open(torn.path).write(torn.size, [bytes(40)])
    log = opened(files, Past(recovery_point=12, was_clean=True))
    assert (log.report.clean, log.report.cut_bytes) == (False, 40)
    assert files.size(torn.path) == log.active.size


def test_damage_in_the_middle_is_kept(files: SimulatedFiles) -> None:
    """A sound batch follows the damaged one: serve what is before, truncate nothing, say so."""
    sizes = {path: files.size(path) for path in files.paths(FOLDER) if path.suffix == ".log"}
    files.flip_bit(FIRST, 250, 0)
    log = opened(files)
    assert log.damage
    assert values_of(log) == ALL[: log.damage.offset]
    assert 0 < log.damage.offset < 6
    with pytest.raises(CorruptRecord, match="damaged from offset"):
        read_slice(log, log.damage.offset + 1, bytes_max=100)
    with pytest.raises(StorageError, match=r"damaged from offset 1.*truncate before it"):
        append(log, b"no")
    assert {path: files.size(path) for path in sizes} == sizes


def test_damage_is_remembered(files: SimulatedFiles) -> None:
    """It does not turn into an unsynced tail because the machine was restarted since."""
    files.flip_bit(FIRST, 250, 0)
    opened(files)
    log = opened(files, LOST_CACHE)
    assert log.damage
    assert log.report.cut_bytes == 0


def test_truncating_before_the_damage_mends_the_log(files: SimulatedFiles) -> None:
    """The way out: cut on purpose, then the records are fetched from somewhere else."""
    files.flip_bit(FIRST, 250, 0)
    log = opened(files)
    assert log.damage
    offset = log.damage.offset
    log.begin_truncate(offset).perform(files)
    log.end_truncate()
    append(log, b"new", epoch=5)
    assert values_of(log) == [*ALL[:offset], b"new"]
    again = opened(files)
    assert (again.damage, values_of(again)) == (None, [*ALL[:offset], b"new"])


def test_an_opening_makes_durable_what_it_shows(files: SimulatedFiles) -> None:
    """A kill interrupted a truncation before its sync; no later power cut brings the tail back."""
    files.open(FIRST.with_name(files.names(FOLDER)[-2])).truncate(0)
    log = opened(files, Past(recovery_point=9))
    end_offset = log.log_end_offset
    assert log.durable_end_offset == end_offset
    for seed in range(5):
        after = files.photograph(Random(seed), power_lost=True)
        past = Past(end_offset, page_cache_survived=False)
        assert opened(after, past).log_end_offset == end_offset


def test_a_damaged_header_below_the_recovery_point_is_damage(files: SimulatedFiles) -> None:
    """One bit of a magic byte must not keep the log, or the broker, from opening."""
    files.flip_bit(FIRST, 16, 3)
    log = opened(files, Past(recovery_point=1))
    assert log.damage
    assert (log.damage.offset, log.log_end_offset) == (0, 0)


def test_an_epoch_without_records_outlives_a_kill(files: SimulatedFiles) -> None:
    """A leader noted its epoch, flushed, and was killed before the first append."""
    log = opened(files)
    log.assign_epoch(9)
    flush(log)
    assert opened(files).epochs.entries == [*EPOCHS, EpochStart(9, 12)]


def test_below_the_recovery_point_nothing_is_cut(files: SimulatedFiles) -> None:
    """The very last batch is bad, but it was durable: that is damage, not a torn tail."""
    last = next(path for path in reversed(files.paths(FOLDER)) if path.suffix == ".log")
    files.flip_bit(last, files.size(last) - 1, 0)
    log = opened(files, Past(recovery_point=12))
    assert log.damage
    assert (log.log_end_offset, log.report.lost_durable) == (11, True)


def test_missing_durable_records_are_damage(files: SimulatedFiles) -> None:
    """Somebody put an old copy of the folder back."""
    log = opened(files, Past(recovery_point=20))
    assert "20" in str(log.damage)
    assert values_of(log) == ALL
    for past in (Past(recovery_point=20), Past(recovery_point=12), Past(12, was_clean=True)):
        again = opened(files, past)
        assert again.damage
        with pytest.raises(StorageError, match="damaged"):
            append(again, b"no")


def test_an_empty_folder_with_a_recovery_point_is_damage() -> None:
    """The folder is gone: an empty log must not take its place unseen."""
    log = opened(SimulatedFiles(Random(0)), Past(recovery_point=20))
    assert log.report.lost_durable
    with pytest.raises(StorageError, match="missing"):
        append(log, b"x")


def test_a_hole_after_a_restart_of_the_machine_is_cut(files: SimulatedFiles) -> None:
    """Pages that were never synced are missing in the middle: not damage."""
    log = opened(files, Past(recovery_point=12))
    append(log, b"a" * 600, epoch=3)
    append(log, b"b", epoch=3)
    segment = log.segment_of(12)
    start = segment.start_of(12).position + 100
    files.open(segment.path).write(start, [bytes(400)])
    log = opened(files, Past(recovery_point=12, page_cache_survived=False))
    assert (log.damage, values_of(log)) == (None, ALL)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_indexes_are_rebuilt_or_done_without(
    files: SimulatedFiles, suffix: str, clean: bool
) -> None:
    """Indexes are never synced before they are needed; they may be empty or gone."""
    for path in files.paths(FOLDER):
        if path.suffix == suffix:
            files.remove(path)
    log = opened(files, Past(recovery_point=12, was_clean=clean))
    assert log.report.clean == clean
    assert values_of(log) == ALL


def test_a_damaged_index_is_noticed_and_rebuilt(files: SimulatedFiles) -> None:
    """An entry leads nowhere: the lookup walks, and upkeep writes the index anew."""
    index = FIRST.with_suffix(".index")
    files.flip_bit(index, 3, 5)
    log = opened(files, Past(recovery_point=12))
    assert values_of(log) == ALL
    log.segments[0].index.floor(4)
    assert log.segments[0].index.is_damaged
    log.rebuild_damaged_indexes()
    assert not log.segments[0].index.is_damaged
    assert log.segments[0].index.floor(4).offset > 0
    assert values_of(log) == ALL


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_epochs_are_read_from_the_log(files: SimulatedFiles, clean: bool) -> None:
    """The file of leader epochs fails its CRC: the batches know them too."""
    files.flip_bit(FOLDER / "leader-epochs", 20, 0)
    log = opened(files, Past(recovery_point=12, was_clean=clean))
    assert log.epochs.entries == EPOCHS
    assert opened(files, Past(recovery_point=12, was_clean=True)).epochs.entries == EPOCHS


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("entries", [0, 1, 2])
def test_epochs_that_were_cut_are_read_from_the_log(
    files: SimulatedFiles, clean: bool, entries: int
) -> None:
    """The file ends too early, at an entry's end: it does not know who wrote the last batches."""
    files.cut(FOLDER / "leader-epochs", entries * 16)
    log = opened(files, Past(recovery_point=12, was_clean=clean))
    assert log.epochs.entries == EPOCHS
    assert opened(files, Past(recovery_point=12, was_clean=True)).epochs.entries == EPOCHS


@pytest.mark.parametrize("clean", [True, False])
def test_missing_epochs_are_read_from_the_log(files: SimulatedFiles, clean: bool) -> None:
    """There is no such file any more."""
    files.remove(FOLDER / "leader-epochs")
    log = opened(files, Past(recovery_point=12, was_clean=clean))
    assert (log.epochs.entries, values_of(log)) == (EPOCHS, ALL)


def test_a_cut_time_index_hides_nothing(files: SimulatedFiles) -> None:
    """Without its closing entry the largest timestamp comes from the batches."""
    log = opened(files)
    before = [segment.largest_timestamp() for segment in log.segments]
    for segment in log.segments[:-1]:
        path = segment.path.with_suffix(".timeindex")
        files.cut(path, files.size(path) - 16)
    log = opened(files, Past(recovery_point=12))
    assert [segment.largest_timestamp() for segment in log.segments] == before


@pytest.mark.parametrize("past", [Past(), Past(12), Past(12, was_clean=True), LOST_CACHE])
def test_a_missing_first_segment_is_damage(files: SimulatedFiles, past: Past) -> None:
    """No trim removed it: the log does not start later without a word, and cuts nothing."""
    for path in files.paths(FOLDER):
        if path.name.startswith("0" * 20):
            files.remove(path)
    left = [path for path in files.paths(FOLDER) if path.suffix == ".log"]
    for _ in range(2):
        log = opened(files, past)
        assert log.damage
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        with pytest.raises(CorruptRecord, match="damaged from offset 0"):
            read_slice(log, 8, bytes_max=100)
    assert set(left) < set(files.paths(FOLDER))


def test_a_log_that_is_not_where_it_was_closed_is_scanned(files: SimulatedFiles) -> None:
    """Marked clean, but longer than the recovery point says: the mark is not believed."""
    log = opened(files, Past(recovery_point=11, was_clean=True))
    assert not log.report.clean
    assert values_of(log) == ALL


def test_segments_below_the_log_start_are_removed(files: SimulatedFiles) -> None:
    """A trim was durable, the machine died before the files were gone."""
    log = opened(files)
    removed = log.segments[0].path
    assert log.plan_retention(0) is None
    trim = log.plan_trim(7)
    assert trim
    assert removed in [segment.path for segment in trim.removed]
    trim.prepare(files)
    trim.perform(files)  # and the machine died before `trim.remove`
    assert files.exists(removed)
    log = opened(files)
    assert not files.exists(removed)
    assert (log.log_start_offset, values_of(log)) == (7, ALL[7:])


def test_temporary_files_are_removed(files: SimulatedFiles) -> None:
    """A checkpoint was being replaced when the machine died."""
    path = FOLDER / "log-start-offset.tmp"
    files.open(path, create=True)
    opened(files)
    assert not files.exists(path)


def test_a_start_over_that_was_killed_stays() -> None:
    """It has renamed the new log start, and not synced the folder: once an opening has shown it, no
    power cut brings the old start back."""
    files = SimulatedFiles(Random(0))
    opened(files)
    for name in files.names(FOLDER):
        files.remove(FOLDER / name)
    files.sync_directory(FOLDER)
    prepare_file(files, FOLDER / LOG_START_FILE, pack_checkpoint({LOG_START_KEY: 50}))
    files.rename(FOLDER / f"{LOG_START_FILE}.tmp", FOLDER / LOG_START_FILE)
    assert opened(files).log_start_offset == 50
    for seed in range(5):
        after = files.photograph(Random(seed), power_lost=True)
        assert opened(after).log_start_offset == 50
