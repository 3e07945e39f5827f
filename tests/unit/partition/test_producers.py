"""The rules of sequences: what comes next, what stands in the log already, what does not fit."""

from __future__ import annotations

import pytest

from raftmq.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    RaftmqError,
    TooManyProducers,
    UnknownProducerId,
)
from raftmq.partition.admission import Admission
from raftmq.partition.producers import ProducerCacheLimits, ProducerLimits, Producers, Remembered
from raftmq.partition.sequences import RUN_RECORDS_MAX, SEQUENCES, ProducerState, SequenceRun, after
from raftmq.wire.batch.header import CONTROL_BIT, BatchHeader

PRODUCER = 7


def header(
    first: int,
    count: int = 10,
    *,
    base_offset: int = 0,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    attributes: int = 0,
) -> BatchHeader:
    last = count - 1
    return BatchHeader(
        base_offset, 49, 0, 2, 0, attributes, last, 0, 0, producer_id, epoch, first, count
    )


def noted(*headers: BatchHeader, limits: ProducerLimits | None = None) -> Producers:
    producers = Producers(limits=limits)
    for each in headers:
        producers.note(each, 0.0)
    return producers


def asked(producers: Producers, *headers: BatchHeader, now: float = 0.0) -> list[int | None]:
    admission = Admission(producers, now)
    return [admission.original_offset(each) for each in headers]


# Two runs: 0 to 29 at offset 100, 30 to 39 at offset 500.
THREE = (
    header(0, base_offset=100),
    header(10, 20, base_offset=110),
    header(30, base_offset=500),
)


def test_neighbours_are_one_run() -> None:
    """Batches side by side are remembered as one, however many they are."""
    known = noted(*THREE).get(PRODUCER)
    assert known == ProducerState(0, 40, (SequenceRun(0, 100, 30), SequenceRun(30, 500, 10)))


@pytest.mark.parametrize(
    ("batch", "offset"),
    [
        (header(40, 5), None),  # comes next
        (header(30), 500),
        (header(10, 20), 110),
        (header(0), 100),
        (header(5, 20), 105),  # not as it was cut into batches, but all of it stands there
        (header(0, epoch=1), None),  # a new epoch
    ],
)
def test_what_is_next_and_what_stands_in_the_log(batch: BatchHeader, offset: int | None) -> None:
    """40 records are in the log: the one after them is fresh, any of them is told where it is."""
    assert asked(noted(*THREE), batch) == [offset]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (header(41), OutOfOrderSequence),  # a gap
        (header(35), OutOfOrderSequence),  # the first half stands there, the second does not
        (header(25), DuplicateSequence),  # all of it does, but at no one place
        (header(1, epoch=1), OutOfOrderSequence),
        (header(0, producer_id=8, epoch=3), None),
        (header(3, producer_id=8), UnknownProducerId),
        (header(-1), InvalidRecord),
        (header(0, epoch=-1), InvalidRecord),
        (header(0, producer_id=-2), InvalidRecord),
    ],
)
def test_what_does_not_fit(batch: BatchHeader, error: type[RaftmqError] | None) -> None:
    """Everything else is refused, and says why."""
    if error is None:
        assert asked(noted(*THREE), batch) == [None]
        return
    with pytest.raises(error, match=r"sequence|epoch"):
        asked(noted(*THREE), batch)


def test_an_epoch_that_is_over_is_refused() -> None:
    """Whatever was under way when its producer gave it up, duplicates too."""
    producers = noted(*THREE, header(0, base_offset=600, epoch=2))
    for first in (0, 30, 40):
        with pytest.raises(InvalidProducerEpoch, match="epoch 2"):
            asked(producers, header(first))


def test_only_the_last_runs_are_remembered() -> None:
    """Seven batches with others between them: the first two are known to be there, not where."""
    producers = noted(*(header(at * 10, base_offset=at * 100) for at in range(7)))
    assert asked(producers, header(20), header(60)) == [200, 600]
    with pytest.raises(DuplicateSequence):
        asked(producers, header(10))


def test_the_sequence_wraps() -> None:
    """After 2^31-1 comes 0, also within a batch and within a run."""
    last = SEQUENCES - 4
    producers = noted(header(last - 6, 6, base_offset=0), header(last, 10, base_offset=6))
    assert producers.get(PRODUCER) == ProducerState(0, 6, (SequenceRun(last - 6, 0, 16),))
    assert asked(producers, header(last), header(2, 4), header(6)) == [6, 12, None]
    with pytest.raises(OutOfOrderSequence, match="6 comes next"):
        asked(producers, header(8))


def test_a_run_forgets_its_beginning() -> None:
    """Of more records than half of all sequences nobody could tell which was meant."""
    known = ProducerState(0, 5, (SequenceRun(5, 0, RUN_RECORDS_MAX),))
    known = after(known, header(5, base_offset=RUN_RECORDS_MAX))
    assert known.runs == (SequenceRun(15, 10, RUN_RECORDS_MAX),)


def test_each_batch_of_a_request_follows_the_one_before() -> None:
    """Two that were there, one that is new, that one again, and one of another producer."""
    producers = noted(*THREE)
    fresh = header(40, base_offset=700)
    stranger = header(0, producer_id=8, base_offset=710)
    again = asked(producers, header(10, 20), header(30), fresh, header(40), stranger, header(50))
    assert again == [110, 500, None, 700, None, None]
    assert producers.get(PRODUCER) == noted(*THREE).get(PRODUCER)
    assert 8 not in producers


def test_what_an_earlier_leader_let_in_counts() -> None:
    """A gap, an epoch that falls: from then on only this batch is known."""
    for odd in (header(90, base_offset=800), header(5, base_offset=800, epoch=0)):
        producers = noted(*THREE, odd)
        following = odd.base_sequence + 10
        known = ProducerState(0, following, (SequenceRun(odd.base_sequence, 800, 10),))
        assert producers.get(PRODUCER) == known
        assert asked(producers, header(following)) == [None]
    late = noted(header(0, epoch=4), header(0, epoch=3, base_offset=10))
    assert late.get(PRODUCER) == ProducerState(3, 10, (SequenceRun(0, 10, 10),))


def test_batches_without_numbers_leave_no_trace() -> None:
    """No producer, a control batch, numbers that no producer has."""
    producers = noted(
        header(-1, producer_id=-1, epoch=-1),
        header(-1, attributes=CONTROL_BIT),
        header(-1),
        header(0, epoch=-1),
        header(0, producer_id=-5),
    )
    assert len(producers) == 0


def test_idle_producers_are_forgotten() -> None:
    """A day after its last batch; then it is unknown, and has to begin a new epoch."""
    producers = Producers()
    producers.note(header(0), 1000.0)
    producers.note(header(0, producer_id=8, base_offset=10), 1001.0)
    producers.note(header(10, base_offset=20), 2000.0)
    assert asked(producers, header(20), now=1001.0 + 86_400) == [None]
    assert 8 in producers
    with pytest.raises(UnknownProducerId):
        asked(producers, header(10, producer_id=8), now=1002.0 + 86_400)
    assert asked(producers, header(20), now=2000.0 + 86_400) == [None]
    producers.forget_idle(2001.0 + 86_400)
    assert len(producers) == 0


def test_idle_is_who_was_so_while_somebody_watched() -> None:
    """What was remembered from an earlier life grows old from the first look on."""
    known = ProducerState(0, 10, (SequenceRun(0, 0, 10),))
    producers = Producers([Remembered(7, known, 80_000.0), Remembered(8, known, 10.0)])
    producers.note(header(0, producer_id=9))
    assert asked(producers, header(10), now=5_000_000.0) == [None]
    producers.forget_idle(5_010_000.0)
    assert [each.producer_id for each in producers.picture().saved().remembered] == [8, 9]
    assert [each.idle_seconds for each in producers.picture().saved().remembered] == [
        10_010,
        10_000,
    ]


LIMITS = ProducerLimits(plain=ProducerCacheLimits(3, idle_seconds_max=86_400, spare_seconds=60))


def full() -> Producers:
    """Producers 1, 2, 3, which appended at 10, 20, 30 s."""
    producers = Producers(limits=LIMITS)
    for at in (1, 2, 3):
        producers.note(header(0, producer_id=at, base_offset=at * 10), at * 10.0)
    return producers


def test_a_new_producer_finds_no_room() -> None:
    """All have appended within a minute: try again later; those that are known go on."""
    with pytest.raises(TooManyProducers, match="3 that all have appended within 60 s") as caught:
        asked(full(), header(0, producer_id=4), now=69.0)
    assert caught.value.retriable
    assert caught.value.definite
    assert asked(full(), header(10, producer_id=2), now=69.0) == [None]


def test_the_idlest_makes_room() -> None:
    """The one that has appended nothing for a minute goes once the new one has appended."""
    producers = full()
    newcomer = header(0, producer_id=4, base_offset=40)
    assert asked(producers, newcomer, now=70.0) == [None]
    assert 1 in producers
    producers.note(newcomer, 70.0)
    assert [each.producer_id for each in producers.picture().saved().remembered] == [2, 3, 4]


def test_several_new_producers_need_room_for_each() -> None:
    """Two in one request: the second of the idle ones is not idle for long enough; nor may one go
    that stands in the request itself."""
    two = [header(0, producer_id=at) for at in (4, 5)]
    with pytest.raises(TooManyProducers):
        asked(full(), *two, now=75.0)
    assert asked(full(), *two, now=80.0) == [None, None]
    with pytest.raises(TooManyProducers):
        asked(full(), header(10, producer_id=1), two[0], now=75.0)


def test_a_picture_stands_still() -> None:
    """What a worker thread writes down is not what happens meanwhile."""
    producers = noted(*THREE)
    picture = producers.picture()
    producers.note(header(40, base_offset=510), 5.0)
    producers.note(header(0, producer_id=8), 5.0)
    [remembered] = picture.saved().remembered
    assert remembered == Remembered(
        PRODUCER, ProducerState(0, 40, (SequenceRun(0, 100, 30), SequenceRun(30, 500, 10))), 0
    )
