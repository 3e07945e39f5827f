"""Records that threads take: which of them, which was the last, and what is left."""

from __future__ import annotations

from threading import Thread, get_ident

import pytest

from raftmq.client.consumer.batch import ConsumedBatch
from raftmq.client.consumer.completed_fetches import CompletedFetches
from raftmq.client.consumer.record_iterator import SharedBatch
from raftmq.errors import CorruptRecord
from raftmq.wire.batch.header import HEADER_SIZE, seal
from tests.unit.client.consumer.pieces import data_at, piece

THREADS, COUNT = 3, 300


def batch_of(data: bytes, *, offset: int = 0, partition: int = 0) -> ConsumedBatch:
    undelivered = CompletedFetches()
    undelivered.add([piece(data)])
    parts = undelivered.peek(offset, records_max=COUNT)
    return ConsumedBatch("t", partition, parts, high_watermark=COUNT)


def offsets_taken(lent: SharedBatch, count: int = COUNT) -> list[int]:
    found = [lent.take(1) for _ in range(count)]
    return [record.offset for record in found if record is not None]


def test_one_after_the_other() -> None:
    """Until nothing is left; the last one stays in hand."""
    lent = SharedBatch(batch_of(data_at(0, "a", "b")))
    assert (lent.last, lent.in_flight, bool(lent)) == (None, None, True)
    for value in (b"a", b"b"):
        record = lent.take(1)
        assert record is not None
        assert record.value == value
        assert lent.last is lent.in_flight is record
    assert lent.take(1) is None
    assert not lent


def test_several_threads() -> None:
    """Each asks for itself: what the others took may be in work, so all of it is in hand."""
    batch = batch_of(data_at(0, "a", "b", "c"))
    lent = SharedBatch(batch)
    lent.take(1)
    lent.take(2)
    assert lent.in_flight is batch
    lent.take(2)
    assert lent.in_flight is batch


def test_stopped() -> None:
    """Nothing more is taken, and what was last stays so."""
    lent = SharedBatch(batch_of(data_at(0, "a", "b")))
    first = lent.take(1)
    lent.stop()
    assert lent.take(1) is None
    assert lent.last is first


@pytest.mark.parametrize("after", range(0, COUNT, 30))
def test_stopped_while_threads_take(after: int) -> None:
    """What was taken is what comes up to the last, whenever the loop stops it."""
    lent = SharedBatch(batch_of(data_at(0, *map(str, range(COUNT)))))
    taken: list[int] = []

    def take() -> None:
        while (record := lent.take(get_ident())) is not None:
            taken.append(record.offset)

    threads = [Thread(target=take) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while len(taken) < after:
        pass
    lent.stop()
    for thread in threads:
        thread.join()
    end = 0 if lent.last is None else lent.last.offset + 1
    assert sorted(taken) == list(range(end))


@pytest.mark.parametrize("may_repeat", [False, True])
def test_given_back(*, may_repeat: bool) -> None:
    """It comes first, and nothing between it and the one before was taken; not after a stop."""
    lent = SharedBatch(batch_of(data_at(0, "a", "b", "c")))
    first, second = lent.take(1), lent.take(1)
    assert second is not None
    lent.give_back(second, may_repeat=may_repeat)
    assert lent.last == first
    assert offsets_taken(lent, 1) == [1]
    lent.stop()
    lent.give_back(second, may_repeat=may_repeat)
    assert offsets_taken(lent) == []
    assert lent.last == second


@pytest.mark.parametrize(("may_repeat", "last", "left"), [(False, 2, [3]), (True, 0, [1, 3])])
def test_given_back_after_others_have_gone_on(
    *, may_repeat: bool, last: int, left: list[int]
) -> None:
    """Either it is not lost, and what the others have taken may come twice, or it is lost, and
    nothing comes twice (C3, C4)."""
    lent = SharedBatch(batch_of(data_at(0, "a", "b", "c", "d")))
    lent.take(1)
    record = lent.take(1)
    lent.take(2)
    assert record is not None
    lent.give_back(record, may_repeat=may_repeat)
    assert lent.last is not None
    assert lent.last.offset == last
    assert offsets_taken(lent) == left


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_are_given_back(order: tuple[int, int]) -> None:
    """Each by a thread, in any order: both come again, in the order of their offsets (C3)."""
    lent = SharedBatch(batch_of(data_at(0, "a", "b", "c", "d")))
    lent.take(1)
    records = lent.take(1), lent.take(2)
    for place in order:
        record = records[place]
        assert record is not None
        lent.give_back(record, may_repeat=True)
    assert lent.last is not None
    assert lent.last.offset == 0
    assert offsets_taken(lent) == [1, 2, 3]


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("may_repeat", [False, True])
def test_given_back_of_another_partition(*, may_repeat: bool, taken: int) -> None:
    """Others have gone on to it: the offset alone does not say that a record is of the batch."""
    data = data_at(0, "a", "b", "c", "d")
    record = SharedBatch(batch_of(data, offset=2, partition=1)).take(1)
    lent = SharedBatch(batch_of(data))
    last = [lent.take(2) for _ in range(taken)][-1]
    assert record is not None
    lent.give_back(record, may_repeat=may_repeat)
    assert lent.last is last
    assert offsets_taken(lent) == list(range(taken, 4))


def test_given_back_ahead_of_the_others() -> None:
    """After a seek they read towards it: it comes anyway."""
    data = data_at(0, "a", "b", "c", "d")
    record = SharedBatch(batch_of(data, offset=3)).take(1)
    lent = SharedBatch(batch_of(data))
    assert record is not None
    lent.give_back(record, may_repeat=True)
    assert lent.last is None
    lent.take(2)
    lent.give_back(record, may_repeat=True)
    assert offsets_taken(lent) == [1, 2, 3]


def test_the_first_cannot_be_decoded() -> None:
    """Told at once."""
    data = bytearray(data_at(0, "x"))
    data[HEADER_SIZE + 4 :] = b"\xff" * (len(data) - HEADER_SIZE - 4)
    with pytest.raises(CorruptRecord):
        SharedBatch(batch_of(bytes(seal(data))))
