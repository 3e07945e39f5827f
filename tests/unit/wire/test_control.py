"""Control batches: transaction markers, and markers of times to come."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.wire.control import ControlRecord, ControlType
from raftmq.wire.header import CONTROL_BIT
from raftmq.wire.kafka_records import encode_record
from raftmq.wire.records import RecordBatch, encode_control_batch
from tests.unit.wire.batches import with_header


def control_of(key: bytes | None, value: bytes | None) -> ControlRecord:
    record = encode_record(0, 0, key, value, None)
    return RecordBatch.decode(with_header(record, 1, attributes=CONTROL_BIT)).control


@pytest.mark.parametrize("kind", ControlType)
def test_round_trip(kind: ControlType) -> None:
    """A marker says which way the transaction ended, and who said so."""
    batch = encode_control_batch(
        kind=kind, coordinator_epoch=7, producer_id=42, producer_epoch=3, timestamp=1000
    )
    decoded = RecordBatch.decode(batch)
    assert decoded.is_control
    assert decoded.header.is_transactional
    assert (decoded.header.producer_id, decoded.header.producer_epoch) == (42, 3)
    assert decoded.control == ControlRecord(0, kind, bytes.fromhex("0000 00000007"), 7)


def test_byte_for_byte() -> None:
    """The record behind the header, as Kafka's documentation lays it out."""
    batch = encode_control_batch(
        kind=ControlType.COMMIT, coordinator_epoch=7, producer_id=1, producer_epoch=0, timestamp=0
    )
    assert batch[61:] == bytes.fromhex("20 00 00 00 08 00000001 0c 000000000007 00")
    assert batch[21:23] == bytes.fromhex("0030")


@pytest.mark.parametrize("value", [None, b"", b"whatever"])
def test_unknown_type(value: bytes | None) -> None:
    """It is handed on as it is: type number and raw value."""
    control = control_of(bytes.fromhex("0001 0005 ff"), value)
    assert control == ControlRecord(1, 5, value or b"", None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"", "without version and type"),
        (b"\0\0\0", b"", "without version and type"),
        (bytes(4), None, "type 0 with a value of 0 bytes"),
        (bytes(4), bytes(5), "type 0 with a value of 5 bytes"),
    ],
)
def test_too_short(key: bytes | None, value: bytes | None, message: str) -> None:
    """Key or value do not hold what the type promises."""
    with pytest.raises(CorruptRecord, match=message):
        control_of(key, value)


def test_more_than_one_record() -> None:
    """A control batch holds one record."""
    record = encode_record(0, 0, bytes(4), bytes(6), None)
    second = encode_record(0, 1, bytes(4), bytes(6), None)
    batch = RecordBatch.decode(with_header(record + second, 2, attributes=CONTROL_BIT))
    with pytest.raises(CorruptRecord, match="control batch of 2 records"):
        _ = batch.control
