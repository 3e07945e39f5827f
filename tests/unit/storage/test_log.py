"""One log: appends, rolls, slices, times, cuts, on a simulated disk."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import FencedLeaderEpoch, OffsetOutOfRange, StorageError
from raftmq.model import TimestampOffset
from raftmq.partition.epochs import EpochStart
from raftmq.partition.storage.log import Appended
from raftmq.partition.storage.recovery import open_log
from raftmq.partition.verify.partition import verify_partition
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import offset_for_timestamp, read_batches, read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS, append, batch, values_of

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/t/Partition-0")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def opened(files: SimulatedFiles, **config: int) -> PartitionLog:
    return open_log(files, FOLDER, "t/Partition-0", TopicConfig(**config))


def filled(files: SimulatedFiles, count: int = 30, **config: int) -> PartitionLog:
    """One record of 100 bytes a batch, one millisecond apart, epochs of 10 records."""
    settings = {"segment_bytes": 1000, "index_interval_bytes": 300} | config
    log = opened(files, **settings)
    for number in range(count):
        append(log, value(number), epoch=number // 10, timestamp=NOW_MS + number)
    return log


def value(number: int) -> bytes:
    return b"%04d" % number * 25


def test_files_of_a_partition(files: SimulatedFiles) -> None:
    """Twenty digits, three files a segment, a fourth once it is sealed, and the leader epochs once
    there are some (A3.1)."""
    log = opened(files, segment_bytes=1024)
    append(log, b"x" * 600)
    append(log, b"y" * 600)
    log.begin_flush(0.0)
    zero, one = "0" * 20, "0" * 19 + "1"
    suffixes = (".index", ".log", ".timeindex")
    expected = [base + suffix for base in (zero, one) for suffix in suffixes]
    assert files.names(FOLDER) == [f"{zero}.aborted", *expected, "leader-epochs"]


def test_several_batches_are_one_write(files: SimulatedFiles) -> None:
    """A produce request of three batches costs one write (A3.6)."""
    log = opened(files)
    before = len(files.trace)
    data = batch(b"a") + batch(b"b") + batch(b"c")
    appended = log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    assert appended == Appended(0, 3)
    assert len(files.trace) == before + 1


def test_only_the_last_segment_is_written(files: SimulatedFiles) -> None:
    """Segments roll before they would grow over their limit (A3.2)."""
    log = filled(files)
    assert len(log.segments) > 3
    assert all(segment.size <= 1000 for segment in log.segments)
    assert [s.end_offset for s in log.segments[:-1]] == [s.base_offset for s in log.segments[1:]]
    assert values_of(log) == [value(number) for number in range(30)]


def test_a_batch_larger_than_a_segment_gets_its_own(files: SimulatedFiles) -> None:
    """The limit is for rolling, not for batches."""
    log = opened(files, segment_bytes=1024)
    for size in (10, 5000, 10):
        append(log, b"x" * size)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_segments_roll_by_time(files: SimulatedFiles) -> None:
    """A week after its first batch a segment is closed, by an append or by upkeep."""
    log = opened(files, segment_ms=1000)
    append(log, b"a", timestamp=NOW_MS - 5000)
    append(log, b"b", timestamp=NOW_MS - 4001)
    assert len(log.segments) == 1
    append(log, b"c", timestamp=NOW_MS - 4000)
    assert len(log.segments) == 2
    log.roll_if_old(NOW_MS - 3001)
    assert len(log.segments) == 2
    log.roll_if_old(NOW_MS)
    log.roll_if_old(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def test_every_offset_can_be_read_from(files: SimulatedFiles) -> None:
    """Sparse index, closed and active segments, cold caches (A3.5)."""
    log = filled(files)
    for segment in log.segments:
        segment._known.clear()
    for offset in range(30):
        found = next(read_batches(log, offset, bytes_max=1))
        assert (found.header.base_offset, list(found.values)) == (offset, [value(offset)])


def test_a_slice_holds_whole_batches(files: SimulatedFiles) -> None:
    """At most about `bytes_max`, at least one batch, never beyond what the reader may see."""
    log = filled(files, segment_bytes=100_000)
    size = len(batch(value(0)))
    whole = read_slice(log, 0, bytes_max=1 << 20)
    assert (whole.start_offset, whole.end_offset, whole.bytes.length) == (0, 30, 30 * size)
    assert read_slice(log, 4, bytes_max=1).bytes.length == size
    for bytes_max in range(0, 20 * size, 37):
        piece = read_slice(log, 3, bytes_max=bytes_max)
        assert piece.bytes.length % size == 0
        assert piece.bytes.length <= max(bytes_max, size)
    bounded = read_slice(log, 5, bytes_max=1 << 20, end_offset=9)
    assert (bounded.start_offset, bounded.end_offset) == (5, 9)
    for offset in (9, 12):
        empty = read_slice(log, offset, bytes_max=100, end_offset=9)
        assert (empty.start_offset, empty.end_offset, empty.bytes.length) == (offset, offset, 0)
    assert read_slice(log, 30, bytes_max=100).bytes.length == 0


def test_from_the_middle_of_a_batch(files: SimulatedFiles) -> None:
    """The slice begins with the batch that holds the offset."""
    log = opened(files)
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    piece = read_slice(log, 1, bytes_max=1 << 20)
    assert (piece.start_offset, piece.end_offset) == (0, 4)


def test_out_of_range(files: SimulatedFiles) -> None:
    """The error says what there is."""
    log = filled(files, count=3)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange, match="it holds 0 to 3"):
            read_slice(log, offset, bytes_max=100)


def test_bytes_stay_as_the_producer_sent_them(files: SimulatedFiles) -> None:
    """From byte 16 on, disk and slice are what was appended (A2.2)."""
    log = opened(files)
    sent = encode_batch(values=[b"v" * 100], keys=[b"k"], timestamp=NOW_MS, headers=[{"h": b"1"}])
    log.append(sent, leader_epoch=3, now_ms=NOW_MS, now=0.0)
    assert read_slice(log, 0, bytes_max=1000).bytes.read()[16:] == sent[16:]


def test_offset_for_timestamp(files: SimulatedFiles) -> None:
    """Every time in the log, before it and after it (A2.5)."""
    log = filled(files)
    for number in range(30):
        expected = TimestampOffset(NOW_MS + number, number)
        assert offset_for_timestamp(log, NOW_MS + number) == expected
    assert offset_for_timestamp(log, 0) == TimestampOffset(NOW_MS, 0)
    assert offset_for_timestamp(log, NOW_MS + 30) is None


def test_offset_for_timestamp_out_of_order(files: SimulatedFiles) -> None:
    """Producers' clocks differ: the first record by offset counts, inside batches too."""
    log = opened(files, segment_bytes=1024, index_interval_bytes=0)
    for stamps in ([50, 10], [20, 40], [90, 60], [70, 80]):
        data = encode_batch(values=[b"x" * 300] * 2, timestamps=stamps)
        log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    found = {stamp: offset_for_timestamp(log, stamp) for stamp in (15, 51, 61, 91)}
    assert found == {15: (50, 0), 51: (90, 4), 61: (90, 4), 91: None}


def test_timestamps_below_the_log_start_do_not_count(files: SimulatedFiles) -> None:
    """Deleted records answer no question."""
    log = filled(files)
    flush = log.begin_flush(0.0)
    flush.perform(files)
    log.complete_flush(flush)
    trim = log.plan_trim(17)
    assert trim
    trim.prepare(files)
    trim.perform(files)
    log.apply_trim(trim)
    assert offset_for_timestamp(log, 0) == TimestampOffset(NOW_MS + 17, 17)


def test_epochs_follow_the_batches(files: SimulatedFiles) -> None:
    """A leader notes its epoch before it appends; a follower finds it in the bytes."""
    log = opened(files)
    log.assign_epoch(4)
    append(log, b"a", epoch=4)
    log.assign_epoch(6)
    log.assign_epoch(6)
    assert log.epochs.entries == [EpochStart(4, 0), EpochStart(6, 1)]
    other = open_log(files, FOLDER.with_name("Partition-1"), "t/Partition-1", TopicConfig())
    data = read_slice(log, 0, bytes_max=1000).bytes.read()
    other.append_replicated(data, leader_epoch=6, now=0.0)
    assert other.epochs.entries == [EpochStart(4, 0)]
    assert values_of(other) == [b"a"]


def test_a_deposed_leader_appends_nothing(files: SimulatedFiles) -> None:
    """A produce request was on its way when the next epoch began: nothing is written."""
    log = filled(files, count=3)
    log.assign_epoch(6)
    size = log.active.size
    with pytest.raises(FencedLeaderEpoch, match=r"leader epoch 5 .* ended, 6 is known"):
        append(log, b"late", epoch=5)
    with pytest.raises(FencedLeaderEpoch):
        log.assign_epoch(5)
    assert (log.active.size, log.log_end_offset) == (size, 3)
    append(log, b"next", epoch=6)
    assert values_of(log)[3:] == [b"next"]


def test_offsets_far_apart_roll(files: SimulatedFiles) -> None:
    """Index entries hold offsets relative to their segment's in 32 bits."""
    log = opened(files, index_interval_bytes=0)
    far = encode_batch(
        values=[b"a", b"b"], timestamp=NOW_MS, offset_deltas=[0, (1 << 31) - 1], leader_epoch=0
    )
    log.append_replicated(far, leader_epoch=0, now=0.0)
    for _ in range(3):
        append(log, b"x")
    log.roll()
    assert [segment.base_offset for segment in log.segments[:2]] == [0, 1 << 31]


@pytest.mark.parametrize("kept", range(1, 30))
def test_a_cut_takes_its_times_with_it(files: SimulatedFiles, kept: int) -> None:
    """The records that are cut are the youngest, and others come in their place (invariant: an
    entry of the time index is of a batch that is there).
    """
    log = filled(files, segment_bytes=100_000)
    work = log.begin_truncate(kept)
    work.perform(files)
    log.end_truncate()
    assert log.active.max_timestamp == NOW_MS + kept - 1
    append(log, b"other" * 80, epoch=3, timestamp=NOW_MS + 5_000)
    append(log, b"other" * 80, epoch=3, timestamp=NOW_MS + 6_000)
    log.begin_flush(0.0)
    assert not verify_partition(files, FOLDER).findings


def test_truncate_across_segments(files: SimulatedFiles) -> None:
    """A follower's log diverged: segments behind the cut go, appends go on from it."""
    log = filled(files)
    work = log.begin_truncate(11)
    with pytest.raises(AssertionError, match="being cut"):
        append(log, b"x", epoch=9)
    work.perform(files)
    log.end_truncate()
    assert values_of(log) == [value(number) for number in range(11)]
    append(log, b"new", epoch=9)
    assert log.epochs.entries == [EpochStart(0, 0), EpochStart(1, 10), EpochStart(9, 11)]
    assert offset_for_timestamp(log, NOW_MS + 11) is None
    again = opened(files, segment_bytes=1000)
    assert values_of(again) == values_of(log)
    assert again.epochs.entries == log.epochs.entries


def test_nothing_is_trimmed_that_is_not_durable(files: SimulatedFiles) -> None:
    """A crash would leave a log that starts behind its end."""
    log = filled(files)
    with pytest.raises(OffsetOutOfRange, match="durable to 0"):
        log.plan_trim(5)


def test_a_failed_roll_takes_the_log_offline(files: SimulatedFiles) -> None:
    """No room for a new segment's files: refused, and said so at every further append."""
    log = filled(files)
    files.fail("create", "*.timeindex")
    while log.active.size + len(batch(value(1))) <= 1000:
        append(log, value(1), epoch=3)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"offline.*timeindex"):
            append(log, value(1), epoch=3)
    assert values_of(log)[:30] == [value(number) for number in range(30)]


def test_idle_segments_let_go_of_their_files(files: SimulatedFiles) -> None:
    """Descriptors are dropped after a while; a slice that is out stays readable."""
    log = filled(files)
    piece = read_slice(log, 0, bytes_max=100)
    log.release_idle(0.0)
    log.release_idle(0.0)
    assert log.segments[0]._file is None
    assert piece.bytes.read()
    assert values_of(log) == [value(number) for number in range(30)]
