"""What was fetched and not handed out: looked at in portions, dropped once it was handed out."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.completed_fetches import CompletedFetches
from raftmq.errors import CorruptRecord
from raftmq.wire.batch.header import HEADER_SIZE, seal
from tests.unit.client.consumer.pieces import control_at, data_at, piece, values_of


def undecodable(base_offset: int) -> bytes:
    """Its CRC is right, its directory is not: whoever sent it has made it so."""
    data = bytearray(data_at(base_offset, "x"))
    data[HEADER_SIZE : HEADER_SIZE + 4] = b"\xff" * 4
    return bytes(seal(data))


def held(*data: bytes) -> CompletedFetches:
    undelivered = CompletedFetches()
    undelivered.add([piece(each) for each in data])
    return undelivered


def test_portions_of_several_batches() -> None:
    """So many records, from the position on, wherever batches begin."""
    undelivered = held(data_at(0, "a", "b", "c"), data_at(3, "d"), data_at(4, "e", "f"))
    assert values_of(undelivered.peek(0, records_max=2)) == ["a", "b"]
    assert values_of(undelivered.peek(1, records_max=4)) == ["b", "c", "d", "e"]
    assert values_of(undelivered.peek(4, records_max=9)) == ["e", "f"]
    assert [part.is_whole for part in undelivered.peek(1, records_max=9)] == [False, True, True]


def test_what_was_handed_out_is_dropped_batch_by_batch() -> None:
    """Bytes count as long as a record of their batch is left."""
    first, second = data_at(0, "a", "b", epoch=1), data_at(2, "c", epoch=2)
    undelivered = held(first, second)
    assert undelivered.byte_count == len(first) + len(second)
    assert undelivered.drop_before(0) == (0, None)
    assert undelivered.drop_before(1) == (1, 1)
    assert undelivered.byte_count == len(first) + len(second)
    assert undelivered.drop_before(2) == (2, 1)
    assert undelivered.byte_count == len(second)
    assert undelivered.drop_before(3) == (3, 2)
    assert (undelivered.byte_count, bool(undelivered)) == (0, False)


def test_control_batches_are_passed_over() -> None:
    """They have offsets and no records: the position moves on."""
    undelivered = held(
        control_at(0, epoch=1),
        data_at(1, "a", epoch=1),
        control_at(2, epoch=2),
        data_at(3, "b", epoch=3),
        control_at(4, epoch=4),
    )
    assert undelivered.drop_before(0) == (1, 1)
    assert values_of(undelivered.peek(1, records_max=9)) == ["a", "b"]
    assert undelivered.drop_before(2) == (3, 2)
    assert undelivered.drop_before(4) == (5, 4)
    assert not undelivered


def test_behind_control_batches() -> None:
    """Where records may go on after one is known before it is handed out."""
    undelivered = held(
        data_at(0, "a", "b", epoch=1),
        control_at(2, epoch=2),
        control_at(3, epoch=3),
        data_at(4, "c", epoch=3),
    )
    assert undelivered.pass_over(1) == (1, None)
    assert undelivered.pass_over(2) == (4, 3)
    assert undelivered.pass_over(5) == (5, None)
    assert values_of(undelivered.peek(0, records_max=9)) == ["a", "b", "c"]


def test_gaps_between_offsets() -> None:
    """Offsets within a batch need not follow each other, nor reach its end."""
    undelivered = held(data_at(0, "a", "b", "c", offset_deltas=[0, 5, 9]))
    assert values_of(undelivered.peek(1, records_max=1)) == ["b"]
    assert values_of(undelivered.peek(6, records_max=9)) == ["c"]


def test_what_cannot_be_decoded() -> None:
    """Told when it is next, and not before."""
    undelivered = held(data_at(0, "a"), undecodable(1), data_at(2, "b"))
    assert values_of(undelivered.peek(0, records_max=9)) == ["a"]
    undelivered.drop_before(1)
    with pytest.raises(CorruptRecord, match="directory"):
        undelivered.peek(1, records_max=9)
    undelivered.drop_before(2)
    assert values_of(undelivered.peek(2, records_max=9)) == ["b"]


def test_nothing() -> None:
    """Nothing held, and nothing after clearing."""
    undelivered = held(data_at(0, "a"))
    undelivered.clear()
    assert undelivered.peek(0, records_max=9) == []
    assert (undelivered.byte_count, undelivered.drop_before(7)) == (0, (7, None))
