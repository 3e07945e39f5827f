"""A log and its named producers: what a fence leaves in it, and what every way to know it says."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    ProducerFenced,
    StorageError,
    UnknownProducerId,
)
from raftmq.model import RecordFormat, TimestampType
from raftmq.partition.sequences import ProducerState, SequenceRun
from raftmq.partition.storage.known_producers import list_snapshots, snapshot_path
from raftmq.partition.storage.log import Appended, Fenced
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import Account, named_producer_id
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import offset_for_timestamp, read_batches, read_slice
from tests.simulation.disk import SimulatedFiles
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.numbered import (
    CONFIG,
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

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

NAMED = named_producer_id("etl/3")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def fence(log: PartitionLog, generation: int = 1, *, name: int = NAMED) -> Fenced:
    return log.append_fence(name, generation, leader_epoch=0, now_ms=NOW_MS, now=0.0)


def named(
    first: int, count: int = 2, *, epoch: int = 0, generation: int = 1, name: int = NAMED
) -> bytes:
    """Its digest is the number of records up to its end."""
    data = encode_batch(
        values=[b"x" * 20] * count,
        timestamp=NOW_MS,
        producer_id=name,
        producer_epoch=epoch,
        base_sequence=first,
        account=Account(generation, first + count),
    )
    return bytes(data)


def write_lives(log: PartitionLog, lives: int = 6) -> None:
    """Lives of one name with others between them, every third of a new generation."""
    for life in range(lives):
        producer = fence(log, life // 3).producer
        for at in range(3):
            first, epoch = producer.next_sequence + at * 2, producer.epoch
            append(log, named(first, epoch=epoch, generation=life // 3))
            append(log, numbered(life * 6 + at * 2))


# -- fencing -----------------------------------------------------------------------------------


def test_a_fence_takes_one_offset(files: SimulatedFiles) -> None:
    """It is a control batch that says all that is known from there on."""
    log = opened(files)
    append(log, numbered(0))
    assert fence(log, 7) == Fenced(ProducerState(0, 0, (), 7), 3)
    append(log, named(0, 5, generation=7))
    assert fence(log, 7) == Fenced(ProducerState(1, 5, (), 7, 5), 9)
    *_, batch = read_batches(log, 0)
    assert (batch.header.base_offset, batch.header.record_count) == (8, 1)
    assert (batch.control.type, batch.control.account) == (ControlType.FENCE, Account(7, 5))
    assert list(batch.timestamps) == [NOW_MS]
    assert known(log) == said_by(log)


def test_a_new_attempt_skips_what_stands_there(files: SimulatedFiles) -> None:
    """The first wrote 4 records and hangs; the second goes on; then the first wakes up."""
    log = opened(files)
    fence(log)
    append(log, named(0), named(2))
    again = fence(log).producer
    assert (again.epoch, again.next_sequence, again.digest) == (1, 4, 4)
    for late in (named(4), named(2), named(0)):
        with pytest.raises(ProducerFenced):
            append(log, late)
    assert append(log, named(4, epoch=1)) == Appended(6, 8)
    assert append(log, named(4, epoch=1)) == Appended(6, 8, (6,))
    assert known(log)[NAMED] == ProducerState(1, 6, (SequenceRun(4, 6, 2),), 1, 6)


def test_a_higher_generation_begins(files: SimulatedFiles) -> None:
    """The next run of the same job; a late one of the last job gets no place."""
    log = opened(files)
    fence(log, 1)
    append(log, named(0))
    assert fence(log, 2).producer == ProducerState(1, 0, (), 2)
    end = log.log_end_offset
    with pytest.raises(ProducerFenced):
        fence(log, 1)
    with pytest.raises(InvalidRecord, match="generation 1"):
        append(log, named(0, epoch=1, generation=1))
    assert log.log_end_offset == end
    append(log, named(0, epoch=1, generation=2))


def test_nothing_is_taken_before_a_fence(files: SimulatedFiles) -> None:
    """Nor of a name that another log knows."""
    log = opened(files)
    with pytest.raises(UnknownProducerId, match="nothing is known of this producer name"):
        append(log, numbered(0), named(0))
    assert log.log_end_offset == 0


def test_a_fence_is_no_record_of_any_time(files: SimulatedFiles) -> None:
    """Whoever looks for a time finds records: before them, between them, and none behind them."""
    log = opened(files)
    fence(log, 1)
    append(log, named(0))
    first = offset_for_timestamp(log, 0)
    assert first is not None
    assert first.offset == 1
    fence(log, 2)
    assert offset_for_timestamp(log, first.timestamp + 1) is None


def test_a_topic_with_the_time_of_the_broker(files: SimulatedFiles) -> None:
    """A broker that stamps batches leaves what they say of their producer as it is."""
    log = open_log(
        files, FOLDER, "t", TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    )
    fence(log)
    append(log, named(0))
    assert known(log) == said_by(log)
    assert known(log)[NAMED].digest == 2
    found = offset_for_timestamp(log, NOW_MS)
    assert found is not None
    assert found.offset == 1


def test_other_formats_are_refused(files: SimulatedFiles) -> None:
    """Kafka's records have no place for a digest: the setting is named."""
    log = open_log(files, FOLDER, "t", TopicConfig(record_format=RecordFormat.KAFKA))
    with pytest.raises(InvalidRecord, match=r"record\.format is kafka"):
        fence(log)
    assert log.log_end_offset == 0


def test_a_leader_of_the_past_fences_nobody(files: SimulatedFiles) -> None:
    """A later epoch is known; and a log that is offline takes nothing at all."""
    log = opened(files)
    log.assign_epoch(3)
    with pytest.raises(FencedLeaderEpoch):
        fence(log)
    files.fail("write", "*.log")
    for _ in range(2):
        with pytest.raises(StorageError):
            log.append_fence(NAMED, 1, leader_epoch=3, now_ms=NOW_MS, now=0.0)
    assert NAMED not in known(log)


# -- every way to know it ----------------------------------------------------------------------


def test_an_opening_finds_what_was_known(files: SimulatedFiles) -> None:
    """With snapshots, with some of them, and from the first byte on."""
    log = opened(files)
    write_lives(log)
    assert len(log.segments) > 3
    expected = known(log)
    assert expected == said_by(log)
    assert known(opened(files)) == expected
    write_snapshots(log)
    while snapshots := list_snapshots(files, FOLDER):
        assert known(opened(files)) == expected
        files.remove(snapshot_path(FOLDER, snapshots[-1]))
    assert known(opened(files)) == expected


def test_a_replica_knows_what_its_leader_knows(files: SimulatedFiles) -> None:
    """It copies fences and batches, and can lead at once."""
    log = opened(files)
    write_lives(log)
    other = open_log(files, FOLDER.with_name("Partition-1"), "t/Partition-1", CONFIG)
    while other.log_end_offset < log.log_end_offset:
        piece = read_slice(log, other.log_end_offset, bytes_max=500)
        other.append_replicated(piece.bytes.read(), leader_epoch=0, now=1.0)
    assert known(other) == known(log)
    assert fence(other) == fence(log)


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "waiting"])
def test_a_cut_forgets_what_it_cuts(files: SimulatedFiles, is_written: bool) -> None:
    """Back across every fence and every batch: what is left says what is known."""
    log = opened(files)
    write_lives(log)
    while log.log_end_offset:
        if is_written:
            write_snapshots(log)
        cut(log, log.begin_truncate(log.log_end_offset - 1))
        assert known(log) == said_by(log)
        assert known(opened(files)) == said_by(log)
    assert fence(log, 0).producer == ProducerState(0, 0, (), 0)


def test_a_fence_that_was_cut_fences_nobody(files: SimulatedFiles) -> None:
    """No other replica had it, and whoever asked was not answered: the old epoch goes on."""
    log = opened(files)
    fence(log)
    append(log, named(0))
    fence(log, 2)
    cut(log, log.begin_truncate(3))
    assert append(log, named(2)) == Appended(3, 5)


def test_names_that_were_trimmed_stay_known(files: SimulatedFiles) -> None:
    """Fence and batches are deleted: the snapshot has the name, after a crash too."""
    log = opened(files)
    fence(log)
    append(log, named(0))
    fill(log, 60)
    trim(log, log.segments[-1].base_offset)
    assert NAMED not in said_by(log)
    for seed in range(5):
        crashed = files.photograph(Random(seed), power_lost=True)
        again = opened(crashed, Past(log.durable_end_offset, page_cache_survived=False))
        assert known(again) == known(log)
        assert fence(again).producer == ProducerState(1, 2, (), 1, 2)


def test_a_trimmed_fence_is_not_missed(files: SimulatedFiles) -> None:
    """A replica begins behind it, with batches only: they say the generation as well."""
    log = opened(files)
    fence(log)
    for first in range(0, 60, 2):
        append(log, named(first))
    other = open_log(files, FOLDER.with_name("Partition-1"), "t/Partition-1", CONFIG)
    start = log.segments[-1].base_offset
    cut(other, other.begin_start_over(start))
    piece = read_slice(log, start, bytes_max=10_000)
    other.append_replicated(piece.bytes.read(), leader_epoch=0, now=1.0)
    assert known(other)[NAMED][3:6] == (1, 60, 0)  # how many partitions, only the fence says
    assert fence(other).producer == ProducerState(1, 60, (), 1, 60)


def test_a_damaged_fence_makes_everything_forgotten(files: SimulatedFiles) -> None:
    """Nobody knows whom it fenced; what follows it is known again."""
    log = opened(files)
    append(log, numbered(0))
    fence(log)
    place = log.active.start_of(2).position
    append(log, numbered(0, producer=8))
    log.active.file.write(place + 80, [b"\xff\xff"])
    again = opened(files, Past(log.log_end_offset, was_clean=True))
    assert NAMED not in known(again)
