"""What a program is working on, and when that is over."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.batch import ConsumedBatch
from raftmq.client.consumer.completed_fetches import CompletedFetches
from raftmq.client.consumer.group_reader import InFlightRecords, end_of, epoch_before_end
from raftmq.client.consumer.record import PartitionOwnership
from tests.unit.client.consumer.pieces import data_at, piece

KEY = ("t", 0)
HERE, OTHER = PartitionOwnership(b"t" * 16), PartitionOwnership(b"t" * 16)


def batch_at(offset: int, ownership: PartitionOwnership = HERE) -> ConsumedBatch:
    undelivered = CompletedFetches()
    undelivered.add([piece(data_at(offset, "a", "b", epoch=4))])
    parts = undelivered.peek(offset, records_max=9)
    return ConsumedBatch("t", 0, parts, high_watermark=100, ownership=ownership)


class Counted(InFlightRecords):
    """How often somebody was told that something is finished."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.told = 0

    def _count(self) -> None:
        self.told += 1


def test_the_next_is_asked_for() -> None:
    """Then what was handed out last is finished."""
    hand = Counted()
    hand.take(batch_at(5))
    assert hand.is_busy([HERE], None)
    assert not hand.is_busy([OTHER], None)
    assert hand.first_offset(HERE, None) == 5
    hand.put_down()
    assert not hand.is_busy([HERE], None)
    assert hand.first_offset(HERE, None) is None
    hand.put_down()
    assert hand.told == 1


def test_records_one_by_one() -> None:
    """The last one is in hand, too, in whatever ownership it was handed out."""
    hand = Counted()
    [record, *_] = batch_at(7, OTHER)
    assert hand.is_busy([OTHER], record)
    assert hand.first_offset(OTHER, record) == 7
    assert hand.first_offset(HERE, record) is None


def test_what_is_held() -> None:
    """Until it is released, whatever is asked for meanwhile; the first offset counts."""
    hand = Counted()
    first, second = hand.hold(batch_at(5)), hand.hold(batch_at(3))
    hand.put_down()
    assert hand.is_held
    assert hand.first_offset(HERE, None) == 3
    hand.release(second)
    assert hand.first_offset(HERE, None) == 5
    hand.release(first)
    assert not hand.is_held
    assert not hand.is_busy([HERE], None)
    assert hand.told == 2


def test_what_has_failed() -> None:
    """It is not done until the next is asked for; nobody works on it."""
    hand = Counted()
    hand.release(hand.hold(batch_at(5)), is_finished=False)
    assert not hand.is_held
    assert not hand.is_busy([HERE], None)
    assert hand.first_offset(HERE, None) == 5
    hand.put_down()
    assert hand.first_offset(HERE, None) is None


def test_an_earlier_tenure_of_the_same_partition() -> None:
    """What is still in hand of it holds up nothing of the present one."""
    hand = Counted()
    hand.hold(batch_at(0, OTHER))
    hand.release(hand.hold(batch_at(2, OTHER)), is_finished=False)
    hand.take(batch_at(9))
    assert hand.first_offset(HERE, None) == 9
    hand.put_down()
    assert not hand.is_busy([HERE], None)
    assert hand.first_offset(HERE, None) is None


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_consumer_leaves(is_finished: bool) -> None:
    """What was handed out last, what is held and what has failed: nobody works on it any more, and
    it is not done, whatever is released or asked for later."""
    hand = Counted()
    token = hand.hold(batch_at(5))
    hand.release(hand.hold(batch_at(3, OTHER)), is_finished=False)
    hand.take(batch_at(7))
    told = hand.told
    hand.abandon_all()
    assert hand.told == told + 1
    hand.release(token, is_finished=is_finished)
    hand.put_down()
    assert not hand.is_held
    assert not hand.is_busy([HERE, OTHER], None)
    assert (hand.first_offset(HERE, None), hand.first_offset(OTHER, None)) == (5, 3)


def test_where_it_ends() -> None:
    """Of a batch, and of a record; the epoch is known of batches."""
    batch = batch_at(5)
    [record, *_] = batch
    assert end_of(batch) == (KEY, 7)
    assert end_of(record) == (KEY, 6)
    assert (epoch_before_end(batch), epoch_before_end(record)) == (4, -1)
