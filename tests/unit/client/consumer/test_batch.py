"""What a program gets: columns that run parallel, decoded when they are touched."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.batch.scheduling import delivery_of
from tests.unit.client.consumer.pieces import data_at, piece, values_of

HEADERS = [[("h", b"1")], [], [("h", None), ("h", b"2")]]
TAGS = [["x"], None, ["y", "x"]]


def decoded(base_offset: int, *values: str, **columns: object) -> RecordBatch:
    return RecordBatch.decode(data_at(base_offset, *values, **columns))


def rich() -> RecordBatch:
    return decoded(10, "a", "b", "c", keys=[b"k", 7, None], headers=HEADERS, tags=TAGS)


def test_columns_and_records() -> None:
    """All columns, and the same as records."""
    batch = ConsumedBatch("t", 3, [BatchPart(rich(), 0, 3)], high_watermark=20)
    assert (len(batch), batch.base_offset, batch.end_offset) == (3, 10, 13)
    assert (batch.topic, batch.partition, batch.high_watermark) == ("t", 3, 20)
    assert list(batch.offsets) == [10, 11, 12]
    assert list(batch.timestamps) == [1000] * 3
    assert list(batch.keys) == [b"k", 7, None]
    assert list(batch.values) == [b"a", b"b", b"c"]
    records = list(batch)
    assert records[0] == ConsumerRecord("t", 3, 10, 1000, b"k", b"a", (("h", b"1"),), ("x",))
    assert [record.tags for record in records] == list(batch.tags) == [("x",), (), ("x", "y")]
    assert [record.headers for record in records] == list(batch.headers)
    assert all(type(record) is ConsumerRecord for record in records)
    assert repr(batch) == "<ConsumedBatch t-3: 3 records, offsets 10 through 12>"


def test_a_part_of_a_batch() -> None:
    """Only these records; reading goes on behind them."""
    batch = ConsumedBatch("t", 0, [BatchPart(rich(), 1, 2)], high_watermark=20)
    assert (len(batch), batch.base_offset, batch.end_offset) == (1, 11, 12)
    assert repr(batch) == "<ConsumedBatch t-0: 1 record, offsets 11 through 11>"
    assert [(it.offset, it.timestamp, it.key, it.value) for it in batch] == [(11, 1000, 7, b"b")]


def test_several_batches_are_one() -> None:
    """Small ones, as they come from those who send one record at a time."""
    parts = [BatchPart(rich(), 2, 3), BatchPart(decoded(13, "d", epoch=5), 0, 1)]
    batch = ConsumedBatch("t", 0, parts, high_watermark=20)
    assert [record.value for record in batch] == list(batch.values) == [b"c", b"d"]
    assert (len(batch), batch.base_offset, batch.end_offset) == (2, 12, 14)


def test_the_epoch_before_an_offset() -> None:
    """Of the batch that the record before is in; of what is before all of them nothing is known."""
    parts = [
        BatchPart(decoded(10, "a", "b", epoch=3), 0, 2),
        BatchPart(decoded(12, "c", epoch=5), 0, 1),
    ]
    batch = ConsumedBatch("t", 0, parts, high_watermark=20)
    assert [batch.epoch_before(each) for each in (10, 11, 12, 13)] == [-1, 3, 3, 5]


def test_a_gap_behind_the_last_record() -> None:
    """Reading goes on where the batch ends."""
    wire = decoded(0, "a", "b", offset_deltas=[1, 4])
    first = ConsumedBatch("t", 0, [BatchPart(wire, 0, 1)], high_watermark=9)
    last = ConsumedBatch("t", 0, [BatchPart(wire, 1, 2)], high_watermark=9)
    assert (first.base_offset, first.end_offset) == (1, 2)
    assert (last.base_offset, last.end_offset) == (4, 5)


def test_nothing_is_decoded_before_it_is_touched() -> None:
    """The length and the offsets do not cost the values."""
    wire = decoded(0, "a", "b")
    batch = ConsumedBatch("t", 0, [BatchPart(wire, 0, 2)], high_watermark=9)
    assert (len(batch), batch.base_offset, batch.end_offset) == (2, 0, 2)
    assert "values" not in vars(wire)
    assert batch.values is batch.values
    assert "values" in vars(wire)
    assert "keys" not in vars(wire)


def test_a_batch_of_no_records_is_a_mistake() -> None:
    """Nobody hands one out."""
    with pytest.raises(AssertionError):
        ConsumedBatch("t", 0, [], high_watermark=0)


def test_a_delivery_without_the_records_that_are_cancelled() -> None:
    """What the header counts beside them is not handed out; reading goes on behind all. A12.3."""
    original = encode_batch(values=[b"a", b"b", b"c", b"d"], timestamp=1000, due_ms=2000)
    delivery = bytes(delivery_of(original, original_offset=0, now_ms=2000, left_out=[0, 3]))
    parts = [piece(delivery).part(0, records_max=9)]
    assert values_of(parts) == ["b", "c"]
    batch = ConsumedBatch("t", 0, parts, high_watermark=20)
    assert (len(batch), batch.base_offset, batch.end_offset) == (2, 1, 4)
    assert values_of([piece(delivery).part(2, records_max=9)]) == ["c"]
