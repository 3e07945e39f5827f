"""Whose turn it is, and what is left of a batch of which only a part was handed out."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.client.consumer.fetch_collector import FetchCollector
from raftmq.client.consumer.partition_state import (
    ConsumedPartition,
    ReadingEvents,
    Start,
    StartKind,
)
from raftmq.errors import CorruptRecord, Disconnected
from raftmq.wire.batch.header import HEADER_SIZE, seal
from tests.unit.client.consumer.pieces import control_at, data_at, piece


def state_with(*data: bytes, partition: int = 0) -> ConsumedPartition:
    state = ConsumedPartition(
        ("t", partition), Start(StartKind.OFFSET, 0), Random(0), ReadingEvents()
    )
    state.on_told(b"t" * 16, 100, 100)
    state.add([piece(each) for each in data])
    return state


def delivery_of(*states: ConsumedPartition) -> tuple[FetchCollector, list[ConsumedPartition]]:
    """And of whom it has handed something out."""
    told: list[ConsumedPartition] = []
    delivery = FetchCollector(told.append)
    for state in states:
        delivery.offer(state)
    return delivery, told


def test_partitions_take_turns() -> None:
    """Each with so many records at most, until nothing is left."""
    states = [state_with(data_at(0, "a", "b", "c"), partition=each) for each in range(2)]
    delivery, told = delivery_of(*states)
    order = []
    while batch := delivery.take(2):
        order.append((batch.partition, len(batch)))
    assert order == [(0, 2), (1, 2), (0, 1), (1, 1)]
    assert told == [*states, *states]


def test_one_by_one_and_broken_off() -> None:
    """What was not handed out comes another time, and is in nobody's way."""
    state = state_with(data_at(0, "a", "b", "c"))
    delivery, _ = delivery_of(state)
    records = delivery.open(9)
    assert records is not None
    assert delivery.is_open(state)
    assert delivery.position(state, None) == 0
    last = next(records)
    assert (delivery.position(state, last), state.position) == (1, 0)
    delivery.offer(state)
    delivery.close(last)
    assert state.position == 1
    batch = delivery.take(9)
    assert batch is not None
    assert list(batch.values) == [b"b", b"c"]
    assert delivery.take(9) is None


def test_broken_off_before_another_epoch_begins() -> None:
    """Fetching goes on after the record that was handed out last, and with its epoch: a later one
    would make the next batch look damaged, or the log truncated."""
    state = state_with(data_at(0, "a", "b", epoch=1), data_at(2, "c", epoch=2))
    delivery, _ = delivery_of(state)
    records = delivery.open(9)
    assert records is not None
    delivery.close(next(records))
    assert (state.position, state.position_epoch) == (1, 1)
    state.forget_undelivered()
    assert (state.fetch_offset, state.fetch_epoch) == (1, 1)


def test_what_is_open_waits_for_its_turn() -> None:
    """News of it does not put it before others that have something, too."""
    states = [state_with(data_at(0, "a", "b"), partition=each) for each in range(2)]
    delivery, _ = delivery_of(states[0])
    records = delivery.open(9)
    assert records is not None
    for state in states:
        delivery.offer(state)
    delivery.close(next(records))
    order = [batch.partition for _ in range(2) if (batch := delivery.take(9))]
    assert order == [1, 0]


def test_whatever_is_made_of_a_batch() -> None:
    """It stays open, and what was not handed out of it comes another time."""
    state = state_with(data_at(0, "a", "b"), data_at(2, "c"))
    delivery, told = delivery_of(state)
    found = delivery.open_as(2, list)
    assert found is not None
    assert [record.value for record in found] == [b"a", b"b"]
    assert (delivery.is_any_open, state.position, told) == (True, 0, [])
    delivery.close(found[0])
    assert (delivery.is_any_open, state.position, told) == (False, 1, [state])
    assert [record.value for record in delivery.open_as(9, list) or ()] == [b"b", b"c"]


def test_what_is_taken_back_comes_again() -> None:
    """From that offset on, fetched anew, with the epoch of the record before."""
    state = state_with(data_at(0, "a", "b", epoch=1), data_at(2, "c", epoch=2))
    delivery, _ = delivery_of(state)
    batch = delivery.take(9)
    assert batch is not None
    version = state.version
    state.take_back(1, epoch=batch.epoch_before(1))
    assert (state.position, state.fetch_offset, state.fetch_epoch) == (1, 1, 1)
    assert state.version > version
    assert not state.is_deliverable


def test_opened_and_nothing_handed_out() -> None:
    """As if it had not been opened."""
    state = state_with(data_at(0, "a"))
    delivery, told = delivery_of(state)
    delivery.open(9)
    delivery.close(None)
    assert (state.position, told) == (0, [])
    assert delivery.take(9) is not None


def test_the_end_of_a_batch_with_a_gap() -> None:
    """After its last record the position is where it ends, also past control batches."""
    state = state_with(data_at(0, "a", "b", offset_deltas=[0, 5]), control_at(6))
    delivery, _ = delivery_of(state)
    records = delivery.open(9)
    assert records is not None
    *_, last = records
    delivery.close(last)
    assert (state.position, bool(state.undelivered)) == (7, False)


def test_the_last_record_before_control_batches() -> None:
    """Behind it is behind them: while its batch is open, when it is not any more, when another one
    comes then, and not after a seek."""
    state = state_with(data_at(0, "a", "b"), control_at(2, epoch=1))
    delivery, _ = delivery_of(state)
    first, last = delivery.open(9) or ()
    assert [delivery.position(state, each) for each in (None, first, last)] == [0, 1, 3]
    assert [state.behind(each) for each in (1, 2)] == [(1, None), (3, 1)]
    delivery.close(last)
    assert (state.position, state.behind(2)) == (3, (3, 1))
    state.add([piece(control_at(3, epoch=2))])
    assert (state.position, state.behind(2), state.behind(1)) == (4, (4, 2), (1, None))
    state.seek(Start(StartKind.OFFSET, 4))
    assert state.behind(2) == (2, None)


def test_a_position_in_a_gap() -> None:
    """Nothing of the batch is left to hand out."""
    state = state_with(data_at(0, "a", offset_deltas=[0]))
    state.seek(Start(StartKind.OFFSET, 3))
    state.add([piece(data_at(0, "a", "b", offset_deltas=[0, 5]))])
    state.undelivered.drop_before(0)
    state.position = 6
    delivery, told = delivery_of(state)
    assert delivery.take(9) is None
    assert told == [state]
    assert not state.is_deliverable


def test_an_error_comes_after_the_records_before_it() -> None:
    """And once; then everything is tried again."""
    state = state_with(data_at(0, "a"))
    state.on_failure(None, now=5)
    state.fail(Disconnected("x"))
    delivery, _ = delivery_of(state)
    assert delivery.take(9) is not None
    with pytest.raises(Disconnected, match="t-0"):
        delivery.take(9)
    assert delivery.take(9) is None
    assert (state.error, state.failures) == (None, 0)


def test_what_is_paused_has_no_turn() -> None:
    """Until it is offered again."""
    state = state_with(data_at(0, "a"))
    delivery, _ = delivery_of(state)
    state.is_paused = True
    assert delivery.take(9) is None
    state.is_paused = False
    assert delivery.take(9) is None
    delivery.offer(state)
    assert delivery.take(9) is not None


def test_records_that_cannot_be_decoded() -> None:
    """Told each time, with the partition; the position stays, and the others go on."""
    data = bytearray(data_at(0, "x"))
    data[HEADER_SIZE + 4 :] = b"\xff" * (len(data) - HEADER_SIZE - 4)
    state = state_with(bytes(seal(data)))
    other = state_with(data_at(0, "a"), partition=1)
    delivery, _ = delivery_of(state, other)
    with pytest.raises(CorruptRecord) as caught:
        delivery.open(9)
    assert caught.value.partition == 0
    assert delivery.take(9) is not None
    with pytest.raises(CorruptRecord):
        delivery.take(9)
    assert state.position == 0


def test_columns_that_cannot_be_decoded() -> None:
    """The directory is right, a column is not: found when records are to be handed out."""
    data = bytearray(data_at(0, "x" * 50))
    data[-51] = 0xC1
    state = state_with(bytes(seal(data)))
    delivery, _ = delivery_of(state)
    for _ in range(2):
        with pytest.raises(CorruptRecord):
            delivery.open(9)
        with pytest.raises(CorruptRecord):
            delivery.open_as(9, list)
        with pytest.raises(CorruptRecord):
            delivery.open_batch(9)
    assert not delivery.is_open(state)
    assert state.position == 0


def test_a_batch_that_is_held_open() -> None:
    """Nothing of it counts before somebody says so; whoever closes it gives it back."""
    state = state_with(data_at(0, "a", "b", "c"))
    delivery, _ = delivery_of(state)
    first = delivery.open_batch(2)
    assert first is not None
    assert delivery.has_open(first)
    assert state.position == 0
    delivery.close(None)
    assert not delivery.has_open(first)
    again = delivery.open_batch(2)
    assert again is not None
    assert (again.base_offset, again.end_offset) == (0, 2)
    assert not delivery.has_open(first)
    delivery.end_batch()
    assert state.position == 2
    assert delivery.take(9) is not None
