"""Control batches: transaction markers, and markers of times to come."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.wire.batch.control import CANCELLED_MAX, ControlRecord, ControlType
from raftmq.wire.batch.header import (
    CONTROL_BIT,
    NAMED_FIRST,
    TRANSACTIONAL_BIT,
    Account,
    read_header,
)
from raftmq.wire.batch.kafka_records import encode_record
from raftmq.wire.batch.records import (
    RecordBatch,
    account_of,
    encode_cancel,
    encode_control_batch,
    encode_fence,
    marker_of,
)
from tests.unit.wire.batches import with_header

NAMED = NAMED_FIRST + 5


def control_of(key: bytes | None, value: bytes | None) -> ControlRecord:
    record = encode_record(0, 0, key, value, None)
    return RecordBatch.decode(with_header(record, 1, attributes=CONTROL_BIT)).control


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
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


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
@pytest.mark.parametrize("coordinator_epoch", [0, 7])
def test_the_kind_of_a_marker(kind: ControlType, coordinator_epoch: int) -> None:
    """Wherever it stands; by its usual bytes, or by decoding what somebody else wrote."""
    batch = encode_control_batch(
        kind=kind,
        coordinator_epoch=coordinator_epoch,
        producer_id=42,
        producer_epoch=3,
        timestamp=1000,
        base_offset=17,
    )
    assert marker_of(b"before" + batch, 6, read_header(batch)) is kind


def test_a_marker_of_more_records_than_it_has() -> None:
    """What looks usual behind a header that says something else is not believed."""
    batch = encode_control_batch(
        kind=ControlType.COMMIT, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=0
    )
    wrong = with_header(bytes(batch[61:]), 2, attributes=CONTROL_BIT | TRANSACTIONAL_BIT)
    header = read_header(wrong)._replace(producer_id=1)
    with pytest.raises(CorruptRecord):
        marker_of(wrong, 0, header)


def test_byte_for_byte() -> None:
    """The record behind the header, as Kafka's documentation lays it out."""
    batch = encode_control_batch(
        kind=ControlType.COMMIT, coordinator_epoch=7, producer_id=1, producer_epoch=0, timestamp=0
    )
    assert batch[61:] == bytes.fromhex("20 00 00 00 08 00000001 0c 000000000007 00")
    assert batch[21:23] == bytes.fromhex("0030")


def test_a_fence() -> None:
    """It says who goes on, from where, and what stands there; it belongs to no transaction."""
    batch = encode_fence(
        Account(17, 0xDEADBEEF, 6),
        producer_id=NAMED,
        producer_epoch=3,
        next_sequence=7,
        timestamp=9,
    )
    decoded = RecordBatch.decode(batch)
    header, control = decoded.header, decoded.control
    assert (header.is_control, header.is_transactional, header.record_count) == (True, False, 1)
    assert header[9:12] == (NAMED, 3, 7)
    assert (control.type, control.account) == (ControlType.FENCE, Account(17, 0xDEADBEEF, 6))
    assert control.coordinator_epoch is None
    assert batch[61:] == bytes.fromhex(
        "38 00 00 00 08 00000080 24 0000 0000000000000011 deadbeef 00000006 00"
    )


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ("ffffffffffffffff 00000000 00000000", "fence of generation"),
        ("0000000000000011 00000000 80000000", "fence of a topic with 2147483648 partitions"),
    ],
)
def test_a_fence_of_impossible_numbers(numbers: str, message: str) -> None:
    """A generation of more than 63 bits, a count of more than 31."""
    with pytest.raises(CorruptRecord, match=message):
        control_of(bytes.fromhex("00000080"), bytes.fromhex("0000" + numbers))


def test_a_cancel() -> None:
    """It names the records that are not to be delivered; of no producer, nor of a transaction.

    A12.2, A12.3.
    """
    batch = encode_cancel([5, 7, 1 << 40], timestamp=9, base_offset=1 << 41, leader_epoch=3)
    decoded = RecordBatch.decode(batch)
    header, control = decoded.header, decoded.control
    assert (header.is_control, header.is_transactional, header.record_count) == (True, False, 1)
    assert header[9:12] == (-1, -1, -1)
    assert (control.type, control.cancelled) == (ControlType.CANCEL, (5, 7, 1 << 40))
    assert (control.coordinator_epoch, control.account) == (None, None)
    assert account_of(batch, 0, header) is None
    assert marker_of(batch, 0, header) is None
    assert batch[61:] == bytes.fromhex(
        "48 00 00 00 08 00000081 34 0000 0000000000000005 0000000000000007 0000010000000000 00"
    )


def test_the_largest_cancel() -> None:
    """10,000 records, and no more: a program error of the leader. A12.3."""
    offsets = range(3, 3 + 2 * CANCELLED_MAX, 2)
    batch = encode_cancel(offsets, timestamp=9)
    assert RecordBatch.decode(batch).control.cancelled == tuple(offsets)
    for wrong in (range(CANCELLED_MAX + 1), [], [5, 5], [7, 5], [-1, 5]):
        with pytest.raises(AssertionError):
            encode_cancel(wrong, timestamp=9)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("00", "type 129 with a value of 1 bytes"),
        ("0000", "of no record, or of more than 10000"),
        ("0000" + "0000000000000005" + "00", "version 0 with a value of 11 bytes"),
        ("0000" + "00000000000005", "version 0 with a value of 9 bytes"),
        ("0001" + "0000000000000005", "version 1"),
        ("0000" + "ffffffffffffffff", "do not rise from 0"),
        ("0000" + "0000000000000005" * 2, "do not rise from 0"),
        ("0000" + "0000000000000006" + "0000000000000005", "do not rise from 0"),
        ("0000" + "0000000000000005" * 10_001, "of no record, or of more than 10000"),
    ],
)
def test_a_cancel_that_is_not_sound(value: str, message: str) -> None:
    """What settles records is believed in one form only. A12.3."""
    with pytest.raises(CorruptRecord, match=message):
        control_of(bytes.fromhex("00000081"), bytes.fromhex(value))


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
        (bytes.fromhex("00000080"), bytes(13), "type 128 with a value of 13 bytes"),
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
