"""A batch from somebody else costs what its bytes and its record count allow, and no more.

The bound is 2 x frame + 128 bytes a record, where the frame is the batch, uncompressed. What a
batch costs whatever its size (objects of chunks, codec buffers) is FIXED.
"""

from __future__ import annotations

import tracemalloc
from struct import Struct

import msgspec
import pytest

from raftmq.errors import CorruptRecord
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.header import HEADER_SIZE, RECORDS_MAX
from raftmq.wire.batch.kafka_records import encode_record, write_varint
from raftmq.wire.batch.records import RecordBatch, encode_batch
from tests.unit.wire.batches import RawChunk, array, columns_batch, with_header

FIXED = 128 << 10
PACK = msgspec.msgpack.encode
COUNT = RECORDS_MAX // 4
TWO = [PACK(Struct(">H").pack(index)) for index in range(RECORDS_MAX)]
TINY_HEADERS = [PACK(b"\x90")] * RECORDS_MAX
SHAPES = {
    "two bytes each": RawChunk(
        RECORDS_MAX, array(TWO), keys=array(TWO), headers=array(TINY_HEADERS)
    ),
    "gaps in all": RawChunk(
        COUNT,
        array(TWO[:COUNT]),
        timestamps=array([b"\xe0"] * COUNT),
        keys=array([b"\xd0\xe0"] * COUNT),
        headers=array([PACK(b"\x92\xc4\x01")] * COUNT),
    ),
    "negative integers": RawChunk(
        COUNT, array([b"\xc0"] * COUNT), timestamps=array([b"\xe0"] * COUNT),
        keys=array([b"\xe0"] * COUNT),
    ),
    "fifteen bytes": RawChunk(
        COUNT, array([PACK(bytes(15))] * COUNT), keys=array(TWO[:COUNT])
    ),
    "text of a letter": RawChunk(
        COUNT, array([PACK(b"")] * COUNT), keys=array([PACK("\u00fc")] * COUNT)
    ),
    "text and bytes": RawChunk(
        COUNT, array([b"\xc0"] * COUNT), keys=array([PACK("a"), PACK(b"a")] * (COUNT // 2))
    ),
    "large text": RawChunk(8, array([b"\xc0"] * 8), keys=array([PACK("x" * 200_000)] * 8)),
    "large values": RawChunk(8, array([PACK(bytes(200_000))] * 8)),
}  # fmt: skip
COMPRESSIONS = [Compression.NONE, Compression.GZIP, Compression.ZSTD]


def cost_of(batch: bytes) -> int:
    """Bytes that decoding allocates at its worst moment, every column touched, values first."""
    tracemalloc.start()
    try:
        decoded = RecordBatch.decode(batch)
        kept = (
            decoded.values, decoded.keys, decoded.timestamps, decoded.offsets,
            decoded.headers, decoded.tags,
        )  # fmt: skip
        assert len({len(column) for column in kept}) == 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def allowed(frame: int, count: int) -> int:
    return 2 * frame + 128 * count + FIXED


@pytest.mark.parametrize("codec", COMPRESSIONS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_tiny_items_in_every_column(shape: str, codec: Compression) -> None:
    """Small objects cost many times their bytes; all columns of them are held at once."""
    chunk = SHAPES[shape]
    batch = bytes(columns_batch(chunk, codec=codec))
    assert cost_of(batch) <= allowed(HEADER_SIZE + len(chunk.pack()), chunk.count)


def test_text_of_wide_characters() -> None:
    """Python keeps all characters of a text as wide as its widest: four bytes for each, at most."""
    keys = array([PACK("x" * 200_000 + "\U0001f600")] * 8)
    chunk = RawChunk(8, array([b"\xc0"] * 8), keys=keys)
    cost = cost_of(bytes(columns_batch(chunk)))
    assert cost <= allowed(HEADER_SIZE + len(chunk.pack()), chunk.count) + 4 * len(keys)


@pytest.mark.parametrize("codec", COMPRESSIONS, ids=lambda codec: codec.name)
def test_records_dealt_out_over_chunks(codec: Compression) -> None:
    """Every other record lies in another chunk, so that all of them must be put in order."""
    half = COUNT // 2
    chunks = [
        RawChunk(
            half,
            array(TWO[:half]),
            offsets=PACK(list(range(start, COUNT, 2))),
            keys=array(TWO[:half]),
            headers=array(TINY_HEADERS[:half]),
            tags=tags,
        )
        for start, tags in ((0, []), (1, ["a"]))
    ]
    batch = bytes(columns_batch(*chunks, codec=codec))
    frame = HEADER_SIZE + sum(len(chunk.pack()) for chunk in chunks)
    assert cost_of(batch) <= allowed(frame, COUNT)


def test_many_tiny_tag_sets() -> None:
    """Sixty-five chunks of one record, each with as many two-letter tags as there may be."""
    letters = [f"{index:02x}" for index in range(256)]
    sets = [sorted(letters[(index * 3 + at) % 256] for at in range(16)) for index in range(64)]
    batch = encode_batch(values=[b"x"] * 64, tags=sets, timestamp=0)
    assert cost_of(bytes(batch)) <= allowed(len(batch), 64)


@pytest.mark.parametrize("codec", COMPRESSIONS, ids=lambda codec: codec.name)
def test_kafka_records_of_two_bytes(codec: Compression) -> None:
    """The other format's records, small enough that their objects outweigh them."""
    values = [Struct(">H").pack(index) for index in range(COUNT)]
    plain, batch = (
        encode_batch(
            values=values,
            keys=values,
            timestamps=list(range(0, -COUNT, -1)),
            record_format=RecordFormat.KAFKA,
            compression=compression,
        )
        for compression in (Compression.NONE, codec)
    )
    assert cost_of(bytes(batch)) <= allowed(len(plain), COUNT)


def test_a_thousand_empty_headers_in_each_kafka_record() -> None:
    """Headers of a Kafka record are bytes until they are touched."""
    bare = encode_record(0, 0, None, b"", None)[1:-1]
    body = bare + write_varint(1000) + b"\0\1" * 1000
    records = [
        write_varint(len(body)) + body.replace(bare, bare[:2] + write_varint(index) + bare[3:])
        for index in range(60)
    ]
    batch = bytes(with_header(b"".join(records), 60))
    assert cost_of(batch) <= allowed(len(batch), 60)
    assert len(RecordBatch.decode(batch).headers[59]) == 1000


@pytest.mark.parametrize("item", [b"\x90", b"\x80", b"\x91\x90"])
def test_empty_containers_where_bytes_belong(item: bytes) -> None:
    """A MiB of empty maps would decode to 72 MiB; it is refused at the first one."""
    chunk = RawChunk(COUNT, array([item] * COUNT))
    batch = bytes(columns_batch(chunk))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord, match="values column"):
            _ = RecordBatch.decode(batch).values
        assert tracemalloc.get_traced_memory()[1] <= allowed(len(batch), COUNT)
    finally:
        tracemalloc.stop()
