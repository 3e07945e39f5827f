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


def batch_of(data: bytes) -> ConsumedBatch:
    undelivered = CompletedFetches()
    undelivered.add([piece(data)])
    parts = undelivered.peek(0, records_max=COUNT)
    return ConsumedBatch("t", 0, parts, high_watermark=COUNT)


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


def test_the_first_cannot_be_decoded() -> None:
    """Told at once."""
    data = bytearray(data_at(0, "x"))
    data[HEADER_SIZE + 4 :] = b"\xff" * (len(data) - HEADER_SIZE - 4)
    with pytest.raises(CorruptRecord):
        SharedBatch(batch_of(bytes(seal(data))))
