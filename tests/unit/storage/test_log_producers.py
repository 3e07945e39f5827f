"""A log and its producers: duplicates are told, and after each cut it knows what is left."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OutOfOrderSequence,
    StorageError,
    UnknownProducerId,
)
from raftmq.partition.sequences import ProducerState, SequenceRun
from raftmq.partition.storage import incoming
from raftmq.partition.storage.known_producers import list_snapshots
from raftmq.partition.storage.log import Appended, PartitionLog
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.partition.transactions import ALL_READ, UnreadPart
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.simulation.producer_reference import producers_in
from tests.unit.storage.batches import NOW_MS, batch
from tests.unit.storage.numbered import (
    CONFIG,
    FOLDER,
    PRODUCER,
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


# -- appending ---------------------------------------------------------------------------------


def test_a_duplicate_is_not_appended_again(files: SimulatedFiles) -> None:
    """The same request twice: the second time nothing is written, and the answer is the same."""
    log = opened(files)
    append(log, batch(b"before"))
    first = append(log, numbered(0), numbered(2))
    size, writes = log.size, len(files.trace)
    again = append(log, numbered(0), numbered(2))
    assert first == Appended(1, 5)
    assert again == Appended(1, 5, (1, 3))
    assert (log.size, len(files.trace), log.log_end_offset) == (size, writes, 5)


def test_duplicates_are_skipped_and_the_rest_is_one_write(files: SimulatedFiles) -> None:
    """Old, new, without a producer, old, of another producer: three of five are appended."""
    log = opened(files)
    append(log, numbered(0))
    append(log, batch(b"between"))
    append(log, numbered(2))
    before = len(files.trace)
    appended = append(
        log, numbered(0), numbered(4), batch(b"a"), numbered(2), numbered(0, producer=8)
    )
    assert appended == Appended(0, 10, (0, 5, 7, 3, 8))
    assert len(files.trace) == before + 1
    assert known(log) == said_by(log)


def test_a_duplicate_may_reach_further_than_what_is_new(files: SimulatedFiles) -> None:
    """An acknowledgement waits for the highest of all: here nothing is new."""
    log = opened(files)
    append(log, numbered(0))
    append(log, numbered(0, producer=8))
    assert append(log, numbered(0, producer=8), numbered(0)) == Appended(2, 4, (2, 0))


def test_one_batch_twice_in_a_request(files: SimulatedFiles) -> None:
    """The second stands where the first will."""
    log = opened(files)
    assert append(log, numbered(0), numbered(0)) == Appended(0, 2, (0, 0))
    assert log.log_end_offset == 2


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (numbered(9), OutOfOrderSequence),
        (numbered(1, producer=9), UnknownProducerId),
        (bytes(encode_batch(values=[b"x"], timestamp=NOW_MS + 10**10)), InvalidTimestamp),
        (numbered(4, size=1 << 20), MessageTooLarge),
    ],
)
def test_all_or_nothing(files: SimulatedFiles, last: bytes, error: type[Exception]) -> None:
    """Two batches that are right before one that is not: nothing is appended, nothing noted."""
    log = opened(files)
    append(log, numbered(0))
    with pytest.raises(error):
        append(log, numbered(2), numbered(0, producer=8), last)
    assert log.log_end_offset == 2
    assert known(log) == {PRODUCER: ProducerState(0, 2, (SequenceRun(0, 0, 2),))}
    assert append(log, numbered(2)) == Appended(2, 4)


def test_a_duplicate_of_what_would_be_refused_today(files: SimulatedFiles) -> None:
    """max.message.bytes was lowered since: it stands in the log, and saying no would be a lie."""
    log = opened(files)
    append(log, numbered(0, size=200))
    log.config = TopicConfig(max_message_bytes=100)
    assert append(log, numbered(0, size=200)).base_offsets == (0,)


def test_more_batches_than_an_answer_can_name(
    files: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a duplicate among them each has to be named."""
    monkeypatch.setattr(incoming, "BATCHES_MAX", 2)
    log = opened(files)
    append(log, numbered(0), numbered(2), numbered(4))
    with pytest.raises(InvalidRecord, match="3 batches, 2 are allowed"):
        append(log, numbered(2), numbered(4), numbered(6))


def test_a_replica_knows_what_its_leader_knows(files: SimulatedFiles) -> None:
    """It copies the bytes, and can lead at once."""
    log = opened(files)
    fill(log)
    other = open_log(files, FOLDER.with_name("Partition-1"), "t/Partition-1", CONFIG)
    while other.log_end_offset < log.log_end_offset:
        piece = read_slice(log, other.log_end_offset, bytes_max=500)
        other.append_replicated(piece.bytes.read(), leader_epoch=0, now=1.0)
    assert known(other) == known(log) == said_by(log)


# -- cutting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "waiting"])
def test_a_cut_forgets_what_it_cuts(files: SimulatedFiles, is_written: bool) -> None:
    """Back to every batch: what is left says what is known, and the next ones are fresh again."""
    log = opened(files)
    fill(log)
    while log.log_end_offset:
        if is_written:
            write_snapshots(log)
        cut(log, log.begin_truncate(log.log_end_offset - 1))
        assert known(log) == said_by(log)
        assert known(opened(files)) == said_by(log)
        assert all(offset <= log.log_end_offset for offset in list_snapshots(files, FOLDER))
    assert append(log, numbered(0)) == Appended(0, 2)


def test_a_cut_keeps_producers_that_were_trimmed(files: SimulatedFiles) -> None:
    """Nothing of theirs is in the log; the snapshot where it starts has them."""
    log = opened(files)
    append(log, numbered(0, producer=99))
    fill(log, 60)
    write_snapshots(log)
    trim(log, log.segments[-2].base_offset)
    cut(log, log.begin_truncate(log.segments[0].base_offset))
    assert known(log)[99] == ProducerState(0, 2, (SequenceRun(0, 0, 2),))


def test_who_starts_over_knows_nothing(files: SimulatedFiles) -> None:
    """Neither now, nor after a crash."""
    log = opened(files)
    fill(log)
    write_snapshots(log)
    cut(log, log.begin_start_over(500))
    assert (known(log), list_snapshots(files, FOLDER)) == ({}, [])
    append(log, numbered(0))
    assert known(opened(files)) == {PRODUCER: ProducerState(0, 2, (SequenceRun(0, 500, 2),))}


def test_what_a_crash_took_is_not_known(files: SimulatedFiles) -> None:
    """The snapshot was durable, the end of the log was not; other batches come in their place."""
    log = opened(files)
    fill(log, 9)
    flush = log.begin_flush(0.0)
    flush.perform(files)
    log.complete_flush(flush)
    fill_more = [numbered(6 + at * 2, producer=0) for at in range(3)]
    append(log, *fill_more)
    log.producers.take_last(log.log_end_offset)
    write_snapshots(log)
    crashed = files.photograph(Random(0), power_lost=True)
    crashed.open(log.active.path).truncate(_size_up_to(log, 18))
    again = opened(crashed, Past(18, page_cache_survived=False))
    assert again.log_end_offset == 18
    assert known(again) == said_by(again)
    assert list_snapshots(crashed, FOLDER) == [again.active.base_offset]
    append(again, numbered(6, 6, producer=1))
    assert known(opened(crashed)) == said_by(again)


def _size_up_to(log: PartitionLog, offset: int) -> int:
    return log.active.start_of(offset).position


def test_a_damaged_log_forgets_what_it_cannot_read(files: SimulatedFiles) -> None:
    """A header in the middle is gone, and no snapshot is behind it: a number of before would let in
    what stands there."""
    log = opened(files)
    fill(log)
    for segment in log.segments[:-1]:
        segment.file.write(segment.size // 2, [b"\xff" * 100])
    again = opened(files, Past(log.log_end_offset, was_clean=True))
    headers = [found.header for found in log.active.walk_all()]
    assert known(again) == producers_in(headers)


def test_a_refused_write_takes_the_log_offline(files: SimulatedFiles) -> None:
    """What was asked for is not noted: nobody knows whether it is there."""
    log = opened(files)
    append(log, numbered(0))
    files.fail("write", "*.log")
    with pytest.raises(StorageError):
        append(log, numbered(2))
    assert known(log) == {PRODUCER: ProducerState(0, 2, (SequenceRun(0, 0, 2),))}


def test_what_an_opening_cannot_read_producers_from_is_doubted(files: SimulatedFiles) -> None:
    """R7: they are forgotten, and each place is named once, to be checked for rot."""
    log = opened(files)
    fill(log)
    first, second, *_ = log.segments
    for segment in (first, second):
        files.flip_bit(segment.path, 11, 3)  # the length of its first batch
    log = opened(files, Past(log.log_end_offset, was_clean=True))
    doubted: list[int] = []
    log.on_doubt = doubted.append
    log.doubt_unread()
    log.doubt_unread()
    one, two = doubted
    assert first.base_offset <= one < second.base_offset <= two < second.end_offset


def test_what_could_not_be_read_is_known_until_it_can(files: SimulatedFiles) -> None:
    """From the batch on to the end of its segment, also by a snapshot that a trim needs; once the
    bytes are right the log itself is read, and no snapshot that says otherwise."""
    log = opened(files)
    fill(log)
    bad = log.segments[2]
    was_clean = Past(log.log_end_offset, was_clean=True)
    files.flip_bit(bad.path, 11, 3)
    log = opened(files, was_clean)
    for _ in range(2):
        assert [error.offset for error in log.producers.take_unread()] == [bad.base_offset]
        assert log.transactions.unread == UnreadPart(bad.base_offset, bad.end_offset)
        trim(log, log.segments[0].end_offset)
        log = opened(files, was_clean)
    files.flip_bit(bad.path, 11, 3)
    cut(log, log.begin_truncate(log.log_end_offset))
    assert log.transactions.unread == ALL_READ
    assert known(log) == said_by(log)
    log = opened(files, was_clean)
    assert log.transactions.unread == ALL_READ
    assert known(log) == said_by(log)


def test_what_is_trimmed_need_not_be_read(files: SimulatedFiles) -> None:
    """Also after the next opening, by a snapshot from before the trim."""
    log = opened(files)
    fill(log)
    bad = log.segments[2]
    was_clean = Past(log.log_end_offset, was_clean=True)
    files.flip_bit(bad.path, 11, 3)
    log = opened(files, was_clean)
    trim(log, bad.end_offset)
    assert log.transactions.unread == ALL_READ
    assert opened(files, was_clean).transactions.unread == ALL_READ


def test_what_a_cut_cannot_read_producers_from_is_doubted(files: SimulatedFiles) -> None:
    """R7: a cut reads them back, too."""
    log = opened(files)
    fill(log)
    begin = log.active.base_offset
    files.flip_bit(log.active.path, 11, 3)
    doubted: list[int] = []
    log.on_doubt = doubted.append
    cut(log, log.begin_truncate(log.log_end_offset))
    (offset,) = doubted
    assert begin <= offset < log.log_end_offset
