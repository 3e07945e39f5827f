"""The mark of an ownership: on batches, on their records, and on nothing else."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from raftmq.client.consumer.batch import known_ownership
from raftmq.client.consumer.partition_state import (
    ConsumedPartition,
    ReadingEvents,
    Start,
    StartKind,
)
from raftmq.client.consumer.record import ConsumerRecord, PartitionOwner
from raftmq.errors import InvalidRequest
from tests.unit.client.consumer.pieces import data_at, piece

OLD, NEW = b"o" * 16, b"n" * 16


def state_of(*, is_of_group: bool) -> ConsumedPartition:
    start = Start(StartKind.OFFSET, 0)
    owner = PartitionOwner() if is_of_group else None
    state = ConsumedPartition(("t", 0), start, Random(0), ReadingEvents(), owner=owner)
    read(state, OLD)
    return state


def read(state: ConsumedPartition, topic_id: bytes) -> None:
    state.read_topic(topic_id)
    state.on_told(topic_id, 100, 100)
    state.add([piece(data_at(state.fetch_offset, "a", "b"))])


def test_what_a_member_is_handed_out() -> None:
    """Batch and records bear the mark of the partition; a record is what it looks like."""
    state = state_of(is_of_group=True)
    batch = state.peek(9)
    assert batch is not None
    first, second = batch
    assert {batch.ownership, first.ownership, second.ownership} == {state.ownership}
    assert known_ownership(first).topic_id == OLD
    plain = ConsumerRecord("t", 0, 0, first.timestamp, None, b"a", (), ())
    assert first == plain
    assert (repr(first), hash(first)) == (repr(plain), hash(plain))
    assert isinstance(first, ConsumerRecord)


def test_without_a_group() -> None:
    """Nobody counts ownerships."""
    batch = state_of(is_of_group=False).peek(9)
    assert batch is not None
    assert type(next(iter(batch))) is ConsumerRecord
    assert batch.ownership is None


def test_another_process() -> None:
    """Nobody there knows of ownerships, so what comes back from there has none."""
    batch = state_of(is_of_group=True).peek(9)
    assert batch is not None
    first = next(iter(batch))
    back = pickle.loads(pickle.dumps(first))
    assert (back, type(back)) == (first, ConsumerRecord)
    with pytest.raises(InvalidRequest, match=r"of t-0: .* copied since"):
        known_ownership(back)


def test_another_topic_of_the_name() -> None:
    """Its records are of another ownership; a seek alone changes nothing."""
    state = state_of(is_of_group=True)
    first = state.ownership
    for topic_id in (OLD, NEW):
        assert state.ownership is first
        state.seek(Start(StartKind.OFFSET, 0))
        read(state, topic_id)
    assert state.ownership is not first
    assert state.ownership is not None
    assert state.ownership.topic_id == NEW
