"""Whole batches: their bytes, worked out by hand, and what a decoded one offers."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.errors import CorruptRecord, InvalidRecord, UnsupportedCompression
from raftmq.model import Compression, RecordFormat, TimestampType
from raftmq.wire.batch.header import check_batch, read_header
from raftmq.wire.batch.records import (
    DecodeLimits,
    Record,
    RecordBatch,
    check_structure,
    encode_batch,
    stamp_log_append_time,
)
from tests.unit.wire.batches import set_field, with_header

# The CRCs were computed bit by bit, by a program that shares nothing with this one.
KAFKA_BATCH = bytes.fromhex(
    "0000000000000005 00000049 00000003 02 89a8e988 0010 00000001"  # .. last offset delta
    "00000000000003e8 00000000000003e8 000000000000002a 0007 00000009 00000002"
    "20 00 00 00 026b 047631 04 0268 0278 026e 01"  # k: v1, headers h: x and n: null
    "0c 00 05 02 01 01 00"  # three milliseconds earlier, nothing in it
)
COLUMNS_BATCH = bytes.fromhex(
    "0000000000000000 0000007a ffffffff 02 91280643 4000 00000001"
    "00000000000003e8 00000000000003ed ffffffffffffffff ffff ffffffff 00000002"
    "00000014 82 cc82 ce48c73956"  # {130: CRC of the head,
    "00 91 95 02 31 ce539371d4 31 90"  # 0: [[2, 49, crc, 49, []]]}
    "00000000 00000003 00000005 00000006 0000000f"
    "92 00 05"  # timestamps
    "92 c4016b f9"  # keys
    "92 c4027631 c0"  # values
    "92 c40b 94 c40168 c40178 c4016e c0 c0"  # headers
)
HEADERS = [[("h", b"x"), ("n", None)], None]


def test_kafka_batch_byte_for_byte() -> None:
    """Two records as Kafka's documentation lays them out, written and read."""
    batch = encode_batch(
        values=[b"v1", None],
        keys=[b"k", None],
        headers=HEADERS,
        timestamps=[1000, 997],
        record_format=RecordFormat.KAFKA,
        base_offset=5,
        leader_epoch=3,
        producer_id=42,
        producer_epoch=7,
        base_sequence=9,
        transactional=True,
    )
    assert batch == KAFKA_BATCH
    decoded = RecordBatch.decode(KAFKA_BATCH)
    assert decoded.header.is_transactional
    assert list(decoded.records()) == [
        Record(5, 1000, b"k", b"v1", (("h", b"x"), ("n", None)), ()),
        Record(6, 997, None, None, (), ()),
    ]


def test_columns_batch_byte_for_byte() -> None:
    """Two records as docs/PROTOCOL.md lays columns out, written and read."""
    batch = encode_batch(
        values=[b"v1", None], keys=[b"k", -7], headers=HEADERS, timestamps=[1000, 1005]
    )
    assert batch == COLUMNS_BATCH
    assert list(RecordBatch.decode(COLUMNS_BATCH).records()) == [
        Record(0, 1000, b"k", b"v1", (("h", b"x"), ("n", None)), ()),
        Record(1, 1005, -7, None, (), ()),
    ]


def test_tagged_chunks_byte_for_byte() -> None:
    """Records one and three share a tag, so they share a chunk; offsets say which is where."""
    batch = encode_batch(values=[b"a", b"b", b"c"], tags=[["x"], None, ["x"]], timestamp=1000)
    directory, chunks = batch[65:97], batch[97:]
    assert batch[61:65] == (32).to_bytes(4, "big")
    assert directory.startswith(bytes.fromhex("82 cc82 ce"))
    assert directory[8:].startswith(bytes.fromhex("00 92 95 02 1e ce"))
    assert directory[18:23] == bytes.fromhex("1e 91 a178 95")
    assert chunks[20:30] == bytes.fromhex("92 00 02 92 c40161 c40163")
    assert chunks[50:] == bytes.fromhex("91 01 91 c40162")


def test_mixed_chunk() -> None:
    """The 65th tag set and later ones share the last chunk, and keep their tags and order."""
    tags = [(f"{index % 70:02}",) for index in range(140)]
    batch = encode_batch(
        values=[b"%d" % index for index in range(140)],
        headers=[{"index": b"%d" % index} for index in range(140)],
        tags=tags,
        timestamps=list(range(140)),
    )
    decoded = RecordBatch.decode(batch)
    assert len(decoded.chunks) == 65
    assert decoded.chunks[-1].entry.tags is None
    assert decoded.chunks[-1].entry.record_count == 12
    assert list(decoded.tags) == tags
    assert list(decoded.offsets) == list(decoded.timestamps) == list(range(140))
    for index, record in enumerate(decoded.records()):
        assert record.value == b"%d" % index
        assert record.headers == (("index", b"%d" % index),)


def test_gaps_between_offsets() -> None:
    """What compaction leaves: the records keep their offsets."""
    for record_format in RecordFormat:
        batch = encode_batch(
            values=[b"a", b"b"],
            offset_deltas=[2, 9],
            timestamp=0,
            base_offset=100,
            record_format=record_format,
        )
        decoded = RecordBatch.decode(batch)
        assert list(decoded.offsets) == [102, 109]
        assert (decoded.offsets[-1], decoded.offsets[:1]) == (109, [102])
        assert decoded.header.end_offset == 110


def test_columns_are_sequences() -> None:
    """They have a length, take negative indexes and slices, and refuse what is beyond them."""
    batch = encode_batch(
        values=[b"a"] * 3, headers=[{"n": b"1"}, None, None], timestamps=[5, 4, 1 << 40]
    )
    decoded = RecordBatch.decode(batch)
    assert decoded.headers[0] == (("n", b"1"),)
    assert decoded.headers[-2:] == [(), ()]
    assert decoded.timestamps[1:] == [4, 1 << 40]
    assert (len(decoded.headers), len(decoded.timestamps)) == (3, 3)
    for column in (decoded.headers, decoded.timestamps):
        with pytest.raises(IndexError):
            _ = column[3]


@pytest.mark.parametrize("record_format", RecordFormat)
def test_log_append_time(record_format: RecordFormat) -> None:
    """The broker's stamp replaces every timestamp and leaves a valid CRC."""
    batch = encode_batch(values=[b"a", b"b"], timestamps=[1, 2], record_format=record_format)
    before = bytes(batch)
    stamp_log_append_time(batch, 5_000)
    decoded = RecordBatch.decode(batch)
    assert decoded.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert list(decoded.timestamps) == [5_000, 5_000]
    crc = slice(69, 73) if decoded.header.is_columns else slice(61, 61)  # of the head
    assert (batch[61 : crc.start], batch[crc.stop :]) == (
        before[61 : crc.start],
        before[crc.stop :],
    )
    assert decoded.header.base_timestamp == 1


def test_decoding_copies_nothing_and_opens_no_chunk() -> None:
    """The stored chunk is a window on the buffer; damage in it is noticed when it is touched."""
    batch = encode_batch(values=[b"a" * 100], timestamp=0)
    batch[-50] ^= 1
    set_field(batch, 0, ">q", 3)  # repairs the batch's CRC, not the chunk's
    decoded = RecordBatch.decode(memoryview(batch), where="segment")
    assert decoded.chunks[0].stored.obj is batch
    with pytest.raises(CorruptRecord, match=r"CRC-32C of the chunk .* of segment"):
        _ = decoded.values


def test_batch_in_the_middle_of_a_buffer() -> None:
    """Positions in errors count from the start of the buffer."""
    first = encode_batch(values=[b"a"], timestamp=0)
    second = encode_batch(values=[b"b"], timestamp=0)
    buffer = bytes(first + second + first)
    assert RecordBatch.decode(buffer, len(first)).values == [b"b"]
    check_structure(buffer, len(first), read_header(buffer, len(first)))
    damaged = bytearray(second)
    damaged[61] = 0xFF
    set_field(damaged, 0, ">q", 0)
    with pytest.raises(CorruptRecord) as caught:
        RecordBatch.decode(first + damaged, len(first), where="segment")
    assert (caught.value.position, caught.value.where) == (len(first) + 61, "segment")


@pytest.mark.parametrize("record_format", RecordFormat)
def test_limit_of_uncompressed_bytes(record_format: RecordFormat) -> None:
    """A reader may say how much it is ready to unpack; uncompressed batches are no matter."""
    limits = DecodeLimits(uncompressed_bytes_max=1000)
    for compression in (Compression.NONE, Compression.GZIP):
        batch = encode_batch(
            values=[bytes(2000)],
            timestamp=0,
            record_format=record_format,
            compression=compression,
        )
        if compression is Compression.NONE:
            assert RecordBatch.decode(batch, limits=limits).values == [bytes(2000)]
            continue
        with pytest.raises(CorruptRecord, match="1000"):
            _ = RecordBatch.decode(batch, limits=limits).values


def test_codec_that_is_not_supported() -> None:
    """Snappy: for columns at once, for Kafka's records once they are touched."""
    batch = encode_batch(values=[b"a"], timestamp=0)
    set_field(batch, 21, ">h", 0x4002)
    for read in (RecordBatch.decode, lambda b: check_structure(b, 0, check_batch(b))):
        with pytest.raises(UnsupportedCompression, match="snappy"):
            read(batch)
    kafka = with_header(b"?", 1, attributes=2)
    check_structure(kafka, 0, check_batch(kafka))
    with pytest.raises(UnsupportedCompression, match="snappy"):
        _ = RecordBatch.decode(kafka).values


def test_timestamps_beyond_64_bits() -> None:
    """Base and delta fit, their sum does not."""
    batch = encode_batch(values=[b"a", b"b"], timestamps=[0, 1])
    set_field(batch, 27, ">q", (1 << 63) - 1)
    with pytest.raises(CorruptRecord, match="more than 64 bits"):
        _ = RecordBatch.decode(batch).timestamps


@pytest.mark.parametrize(
    "choice", [{"compression": "zstd"}, {"compression": 2}, {"record_format": "columns"}]
)
def test_a_choice_that_is_none_of_ours(choice: dict[str, Any]) -> None:
    """A plain name or number must not be taken for another format or codec."""
    with pytest.raises(InvalidRecord, match=next(iter(choice))):
        encode_batch(values=[b"a"], timestamp=0, **choice)
