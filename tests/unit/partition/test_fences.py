"""Producers with names: who writes, what stands there already, and for how long that is known."""

from __future__ import annotations

import pytest

from raftmq.errors import (
    DuplicateSequence,
    InvalidRecord,
    OutOfOrderSequence,
    ProducerFenced,
    RaftmqError,
    TooManyProducers,
    UnknownProducerId,
)
from raftmq.partition.admission import Admission
from raftmq.partition.producers import ProducerCacheLimits, ProducerLimits, Producers, Remembered
from raftmq.partition.sequences import GENERATION_RECORDS_MAX, ProducerState, SequenceRun, fenced
from raftmq.wire.batch.header import CONTROL_BIT, NAMED_FIRST, Account, BatchHeader

NAMED = NAMED_FIRST + 3
GENERATION = 17
DAY = 86_400.0


def header(
    first: int,
    count: int = 10,
    *,
    base_offset: int = 0,
    epoch: int = 0,
    producer_id: int = NAMED,
    attributes: int = 0,
) -> BatchHeader:
    last = count - 1
    return BatchHeader(
        base_offset, 49, 0, 2, 0, attributes, last, 0, 0, producer_id, epoch, first, count
    )


SAID = Account(GENERATION, 40)


def said(digest: int = 0, generation: int = GENERATION) -> Account:
    return Account(generation, digest)


def fence(
    producers: Producers, generation: int = GENERATION, *, name: int = NAMED, now: float = 0.0
) -> ProducerState:
    """As a leader does it; returns what is known behind it."""
    following = Admission(producers, now).fence(name, generation)
    note_fence(producers, following, name=name, now=now)
    return following


def note_fence(
    producers: Producers, following: ProducerState, *, name: int = NAMED, now: float = 0.0
) -> None:
    batch = header(
        following.next_sequence, 1, epoch=following.epoch, producer_id=name, attributes=CONTROL_BIT
    )
    producers.note(batch, now, said(following.digest, following.generation))


def written(*, limits: ProducerLimits | None = None) -> Producers:
    """Fenced; 20 records at offset 1, 10 more at 50."""
    producers = Producers(limits=limits)
    fence(producers)
    producers.note(header(0, 20, base_offset=1), 0.0, said(20))
    producers.note(header(20, 10, base_offset=50), 0.0, said(30))
    return producers


def asked(
    producers: Producers, *batches: BatchHeader, account: Account | None = SAID
) -> list[int | None]:
    admission = Admission(producers, 0.0)
    return [admission.original_offset(each, account) for each in batches]


# -- fences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "generation", "following"),
    [
        (None, 0, ProducerState(0, 0, (), 0, 0)),
        (None, 17, ProducerState(0, 0, (), 17, 0)),
        (
            ProducerState(4, 30, (SequenceRun(0, 1, 30),), 17, 99),
            17,
            ProducerState(5, 30, (), 17, 99),
        ),
        (
            ProducerState(4, 30, (SequenceRun(0, 1, 30),), 17, 99),
            18,
            ProducerState(5, 0, (), 18, 0),
        ),
        (ProducerState(32_767, 30, (), 17, 99), 17, ProducerState(0, 30, (), 17, 99)),
        (ProducerState(0, 30, (SequenceRun(0, 1, 30),), -1, 0), 0, ProducerState(1, 0, (), 0, 0)),
    ],
    ids=["new", "new and high", "same", "higher", "last epoch", "of an unknown generation"],
)
def test_what_a_fence_makes_known(
    known: ProducerState | None, generation: int, following: ProducerState
) -> None:
    """The same generation goes on where it stood, a higher one begins; always in another epoch."""
    assert fenced(known, generation) == following


@pytest.mark.parametrize(
    ("known", "generation", "expected"),
    [
        (None, 17, 4),
        (ProducerState(0, 30, (), 17, 99, 3), 17, 3),
        (ProducerState(0, 30, (), 17, 99, 0), 17, 4),
        (ProducerState(0, 30, (), 17, 99, 3), 18, 4),
    ],
    ids=["new", "same", "not known", "higher"],
)
def test_with_how_many_partitions_a_generation_began(
    known: ProducerState | None, generation: int, expected: int
) -> None:
    """A fence of the same generation changes nothing of it, a higher one takes the new count."""
    assert fenced(known, generation, partition_count=4).partition_count == expected


def test_batches_keep_the_count_of_partitions() -> None:
    """They do not say it; those of another generation leave it unknown."""
    producers = Producers()
    following = Admission(producers, 0.0).fence(NAMED, GENERATION, partition_count=4)
    batch = header(0, 1, epoch=0, attributes=CONTROL_BIT)
    producers.note(batch, 0.0, Account(GENERATION, 0, following.partition_count))
    producers.note(header(0, 20, base_offset=1), 0.0, said(20))
    assert producers.get(NAMED) == ProducerState(0, 20, (SequenceRun(0, 1, 20),), GENERATION, 20, 4)
    producers.note(header(20, 5, base_offset=21), 0.0, said(25, GENERATION + 1))
    found = producers.get(NAMED)
    assert found is not None
    assert found.partition_count == 0


def test_a_lower_generation_is_refused() -> None:
    """Somebody was started late, or twice: both generations are named."""
    with pytest.raises(ProducerFenced, match=r"generation 16 .* is over, 17 has begun") as caught:
        fence(written(), 16)
    assert caught.value.definite
    assert not caught.value.retriable


def test_what_is_noted_is_what_was_decided() -> None:
    """The batch alone says it, to leaders, followers and recovery alike."""
    producers, bare = written(), Producers()
    for generation in (17, 17, 20, 20):
        following = fence(producers, generation)
        note_fence(bare, following)
        assert producers.get(NAMED) == bare.get(NAMED) == following


def test_a_fence_that_is_asked_twice() -> None:
    """Its answer was lost: the second says the same, in one epoch more."""
    producers = written()
    first, second = fence(producers), fence(producers)
    assert (first.epoch, second.epoch) == (1, 2)
    assert first._replace(epoch=2) == second == ProducerState(2, 30, (), 17, 30)


# -- batches -----------------------------------------------------------------------------------


def test_what_comes_next_and_what_stands_there() -> None:
    """As with other producers: fresh, duplicates, gaps; and a fence in between."""
    producers = written()
    assert asked(producers, header(30), header(20), header(5, 10)) == [None, 50, 6]
    assert producers.get(NAMED) == ProducerState(
        0, 30, (SequenceRun(0, 1, 20), SequenceRun(20, 50, 10)), 17, 30
    )
    with pytest.raises(OutOfOrderSequence, match="30 comes next"):
        asked(producers, header(31))
    with pytest.raises(DuplicateSequence):
        asked(producers, header(15, 10))
    fence(producers)
    assert asked(producers, header(30, epoch=1)) == [None]
    with pytest.raises(DuplicateSequence):  # whoever has fenced was told where to go on
        asked(producers, header(20, epoch=1))


@pytest.mark.parametrize(
    ("batch", "account", "error", "message"),
    [
        (header(0, producer_id=NAMED + 1), said(), UnknownProducerId, "higher generation"),
        (header(30, epoch=1), said(), ProducerFenced, "for generation 17: leave"),
        (header(0, epoch=1), said(), ProducerFenced, "for generation 17: leave"),
        (header(30), None, InvalidRecord, "record.format=columns"),
        (header(30), said(0, 16), InvalidRecord, "says generation 16, .* generation 17"),
        (header(-1), said(), InvalidRecord, "all of them are 0 or more"),
        (header(GENERATION_RECORDS_MAX - 9), said(), InvalidRecord, "begin a higher one"),
    ],
    ids=["never fenced", "not begun", "begins by itself", "silent", "other", "none", "too many"],
)
def test_what_no_named_producer_sends(
    batch: BatchHeader, account: Account | None, error: type[RaftmqError], message: str
) -> None:
    """Each is refused, with the way out."""
    with pytest.raises(error, match=message):
        asked(written(), batch, account=account)


@pytest.mark.parametrize("batch", [header(30), header(20), header(0)])
def test_whoever_was_fenced_writes_no_more(batch: BatchHeader) -> None:
    """What comes next of the old epoch, and what stands there: neither is taken."""
    producers = written()
    fence(producers)
    with pytest.raises(ProducerFenced, match=r"has begun to write .*send all of it again"):
        asked(producers, batch)


def test_a_generation_ends_where_its_sequence_does() -> None:
    """The last record has number 2^31 - 2: what comes next still fits into a fence."""
    producers = Producers()
    last = ProducerState(1, GENERATION_RECORDS_MAX - 10, (), GENERATION, 5)
    note_fence(producers, last)
    assert asked(producers, header(last.next_sequence, epoch=1)) == [None]
    producers.note(header(last.next_sequence, epoch=1), 0.0, said(6))
    assert fence(producers) == ProducerState(2, 2**31 - 1, (), GENERATION, 6)
    with pytest.raises(InvalidRecord, match="begin a higher one"):
        asked(producers, header(2**31 - 1, 1, epoch=2))


def test_a_batch_alone_says_whose_it_is() -> None:
    """The fence was trimmed: the same generation still goes on where it stood."""
    producers = Producers()
    producers.note(header(20, 10, base_offset=50, epoch=4), 0.0, said(30))
    assert producers.get(NAMED) == ProducerState(4, 30, (SequenceRun(20, 50, 10),), 17, 30)
    assert fence(producers) == ProducerState(5, 30, (), 17, 30)


def test_markers_of_others_leave_no_trace() -> None:
    """A control batch that is no fence says nothing, whatever its numbers."""
    producers = written()
    before = producers.get(NAMED)
    producers.note(header(0, 1, epoch=9, attributes=CONTROL_BIT), 0.0)
    assert producers.get(NAMED) == before


# -- how long it is known ----------------------------------------------------------------------

LIMITS = ProducerLimits(
    plain=ProducerCacheLimits(2, DAY, 300.0), named=ProducerCacheLimits(2, 14 * DAY, DAY)
)


def test_names_are_known_for_longer_than_numbers() -> None:
    """After a day one is forgotten, after 14 the other; also as remembered from a snapshot."""
    producers = written()
    producers.note(header(0, producer_id=5), 0.0)
    producers.forget_idle(DAY + 1)
    assert (5 in producers, NAMED in producers) == (False, True)
    later = Producers(producers.picture().saved().remembered)
    later.forget_idle(0.0)
    later.forget_idle(13 * DAY - 2)
    assert NAMED in later
    later.forget_idle(13 * DAY)
    assert len(later) == 0
    with pytest.raises(UnknownProducerId):
        asked(later, header(30))


def test_numbers_never_push_names_out() -> None:
    """Nor the other way round: each kind has its own limit."""
    producers = written(limits=LIMITS)
    fence(producers, name=NAMED + 1)
    for number in range(9):
        producers.note(header(0, producer_id=number), 0.0)
    remembered = [each.producer_id for each in producers.picture().saved().remembered]
    assert remembered == [7, 8, NAMED, NAMED + 1]
    fence(producers, name=NAMED + 2, now=DAY)
    assert list(producers.picture().known) == [7, 8, NAMED + 1, NAMED + 2]


def test_a_new_name_finds_no_room() -> None:
    """Two have written within a day: try again, and those that are known go on."""
    producers = written(limits=LIMITS)
    fence(producers, name=NAMED + 1)
    with pytest.raises(
        TooManyProducers, match=r"2 that all .* 86400 s: .* producer names"
    ) as caught:
        fence(producers, name=NAMED + 2, now=DAY - 1)
    assert caught.value.retriable
    assert NAMED in producers
    fence(producers, now=DAY - 1)
    fence(producers, name=NAMED + 2, now=DAY)
    assert list(producers.picture().known) == [NAMED, NAMED + 2]


def test_a_batch_never_needs_room() -> None:
    """Of a name that is not known it is refused before anybody is counted."""
    producers = written(limits=LIMITS)
    fence(producers, name=NAMED + 1)
    with pytest.raises(UnknownProducerId):
        asked(producers, header(0, producer_id=NAMED + 2))


def test_idle_is_kept_across_lives() -> None:
    """Each shelf in its order."""
    some = [
        Remembered(7, ProducerState(0, 1), 50.0),
        Remembered(8, ProducerState(0, 1), 10.0),
        Remembered(NAMED, ProducerState(0, 1, (), 0), 90.0),
    ]
    assert Producers(some).picture().saved().remembered == some
