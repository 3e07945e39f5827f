"""Kafka's record encoding: what a hostile records section gets, and what is written."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.model import RecordFormat
from raftmq.wire.batch.records import RecordBatch, encode_batch
from tests.unit.wire.batches import with_header

RECORD = "10 00 00 00 01 04 7631 00"  # no key, v1, no headers
BARE = "0c 00 00 00 01 01 00"


def read_all(contents: str, count: int = 1, last_offset_delta: int | None = None) -> list[object]:
    batch = with_header(bytes.fromhex(contents), count, last_offset_delta=last_offset_delta)
    return list(RecordBatch.decode(batch).records())


def test_examples_are_records() -> None:
    """The examples that the tests below damage are right as they stand."""
    assert read_all(RECORD) == [(0, 1000, None, b"v1", (), ())]
    assert read_all(BARE) == [(0, 1000, None, None, (), ())]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", "1 records in 0 bytes"),
        ("0c 00 00 00 01 01", "1 records in 6 bytes"),
        ("0e 00 00 00 01 01 00", "claims 7 bytes, 6 follow"),
        ("01 00 00 00 01 01 00", "claims -1 bytes"),
        ("00 00 00 00 01 01 00", "claims 0 bytes"),
        ("0a 00 00 00 01 01 00", "its fields reach beyond it"),
        (BARE + "00", "1 bytes after the last record"),
        (BARE + BARE, "7 bytes after the last record"),
        ("0c 00 00 02 01 01 00", "record 0: offset delta 1"),
        ("0c 00 00 01 01 01 00", "record 0: offset delta -1"),
        ("0c 00 00 00 03 01 00", "a field claims -2 bytes"),
        ("0c 00 00 00 01 7e 00", "a field claims 63 bytes"),
        ("10 00 ffffffffff01 00", "record 0 *"),
        ("0c 00 00 ff ff ff ff", "records end within record 0"),
        ("18 00 00 ff ff ff ff ff ff 01 01 00 00", "more than 32 bits"),
        ("22 00 ff ff ff ff ff ff ff ff ff ff 01 00 01 01 00 00", "more than 64 bits"),
        ("0c 00 00 00 01 01 01", "headers of record 0: -1 headers"),
        ("0c 00 00 00 01 01 02", "headers of record 0 end early"),
        ("0e 00 00 00 01 01 02 01", "a header without a name"),
        ("0e 00 00 00 01 01 00 00", "headers of record 0: 1 bytes too many"),
        ("12 00 00 00 01 01 02 02ff 01", "headers of record 0: 'utf-8'"),
        ("12 00 00 00 01 01 02 0461 01", "a field claims|end early"),
        ("0e 00 00 00 01 01 8210", "1025 headers, allowed 1024"),
    ],
)
def test_refused(contents: str, message: str) -> None:
    """One thing is wrong with a section of one record."""
    with pytest.raises(CorruptRecord, match=message):
        read_all(contents)


@pytest.mark.parametrize("second", ["0c 00 00 00 01 01 00", "0c 00 00 01 01 01 00"])
def test_offsets_that_do_not_increase(second: str) -> None:
    """The second record has the first one's offset, or one before it."""
    with pytest.raises(CorruptRecord, match="record 1: offset delta"):
        read_all(BARE + second, 2)


def test_unknown_attributes_are_ignored() -> None:
    """Kafka defines no attributes of a record yet, and its clients look at none."""
    assert read_all("0c 7f 00 00 01 01 00") == [(0, 1000, None, None, (), ())]


def test_last_offset_may_be_gone() -> None:
    """Compaction removes records and leaves the batch's last offset as it was."""
    batch = with_header(bytes.fromhex(BARE), 1, last_offset_delta=9)
    decoded = RecordBatch.decode(batch)
    assert (list(decoded.offsets), decoded.header.end_offset) == ([0], 10)


@pytest.mark.parametrize(
    ("key", "encoded"),
    [(1, "0000000000000001"), (-2, "fffffffffffffffe"), ("\u00fc", "c3bc")],
)
def test_keys_that_are_no_bytes(key: int | str, encoded: str) -> None:
    """As Kafka's LongSerializer and StringSerializer write them; they come back as bytes."""
    batch = encode_batch(values=[b""], keys=[key], timestamp=0, record_format=RecordFormat.KAFKA)
    assert RecordBatch.decode(batch).keys == [bytes.fromhex(encoded)]
