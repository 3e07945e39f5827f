"""Chunks of columns: what a hostile one may claim, and how it is refused."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.records import RecordBatch, encode_batch
from tests.unit.wire.batches import (
    NIL,
    PACK,
    RawChunk,
    array,
    columns_batch,
    entry_of,
    with_directory,
)

VALUES = array([PACK(b"a"), PACK(b"b")])
CHUNK = RawChunk(2, VALUES)


def read_all(batch: bytes | bytearray) -> list[object]:
    return list(RecordBatch.decode(batch).records())


def packed_headers(*bins: bytes) -> bytes:
    return array([PACK(each) for each in bins])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": array([PACK(b"a")])}, "values column: not an array of 2"),
        ({"values": array([PACK(b"a")] * 3)}, "values column: not an array of 2"),
        ({"values": b"\xdc\x00\x02" + VALUES[1:]}, "values column: not an array of 2"),
        ({"values": b"\xdd\xff\xff\xff\xff"}, "values column: not an array of 2"),
        ({"values": b"\xc0"}, "values column: not an array of 2"),
        ({"values": VALUES + b"\xc0"}, "values column: .* trailing"),
        ({"values": VALUES[:-1]}, "values column: .* truncated"),
        ({"values": b"\x92\xc6\xff\xff\xff\xffab"}, "values column: .* truncated"),
        ({"values": b"\x92\xa1a\xa1b"}, "values column: .* got `str`"),
        ({"values": b"\x92\x90\x80"}, "values column: .* got `array`"),
        ({"values": b"\x92" + b"\x91" * 100_000}, "values column: "),
        ({"keys": b"\x92\xa1a\xa1\xff"}, "keys column: .*utf-8"),
        ({"keys": b"\x92\xa1a\xa3\xed\xa0\x80"}, "keys column: .*utf-8"),
        ({"keys": b"\x92\xc4\1a\xa1\xff"}, "keys column: .*utf-8"),
        ({"keys": b"\x92\xa1a\xa5b"}, "keys column: .* truncated"),
        ({"keys": b"\x92\xa1a\xa1b\xc0"}, "keys column: .* trailing"),
        ({"keys": b"\x92\xa1a\x90"}, "keys column: .* got `array`"),
        ({"keys": b"\x92\xc4\1a\xa1"}, "keys column: .* truncated"),
        ({"keys": b"\x92\xa1a" + b"\x91" * 100_000}, "keys column: "),
        ({"keys": b"\x92\xcf" + b"\xff" * 8 + b"\xc0"}, "keys column: .* <= 9223372036854775807"),
        ({"keys": b"\x92\xcb" + bytes(8) + b"\xc0"}, "keys column: .* got `float`"),
        ({"timestamps": b"\x92\x00\xc0"}, "timestamps column: .* got `null`|`None`"),
        ({"timestamps": b"\x92\x00\xcf" + b"\xff" * 8}, "timestamps column: .* too"),
        ({"offsets": b"\x92\x00\x00"}, "offsets column: not strictly increasing"),
        ({"offsets": b"\x92\x01\x00"}, "offsets column: not strictly increasing"),
        ({"offsets": b"\x92\xff\x00"}, "offsets column: not strictly increasing"),
        ({"offsets": b"\x92\x00\xce\xff\xff\xff\xff"}, "offsets column: not strictly increasing"),
        ({"offsets": b"\x92\x00\x02"}, "offset delta 2, the last one is 1"),
        ({"headers": b"\x91\xc0"}, "headers column: not an array of 2"),
        ({"headers": b"\x92\xc0"}, "headers column: record 1 is not a whole bin"),
        ({"headers": b"\x92\xc0\xc4"}, "headers column: record 1 is not a whole bin"),
        ({"headers": b"\x92\xc0\xc6\xff\xff\xff\xff"}, "record 1 is not a whole bin"),
        ({"headers": b"\x92\xc0\xa1a"}, "headers column: record 1 is not a whole bin"),
        ({"headers": b"\x92\xc0\xc0\xc0"}, "headers column: 1 bytes too many"),
        ({"headers": packed_headers(b"", b"\x90")}, "headers of record 0: .* truncated"),
        ({"headers": packed_headers(b"\x91\xc4\0", b"\x90")}, "record 0: a name without a value"),
        ({"headers": packed_headers(b"\x92\xc0\xc0", b"\x90")}, "a value without a name"),
        ({"headers": packed_headers(b"\x90", b"\x92\xa1a\xc0")}, "headers of record 1: .* `str`"),
        ({"headers": packed_headers(b"\x90", b"\x92\xc4\1\xff\xc0")}, "record 1: .*utf-8"),
        ({"headers": packed_headers(b"\x90", b"\xdd\xff\xff\xff\xff")}, "headers of record 1: "),
        ({"headers": packed_headers(b"\x90", PACK([b"n", None] * 1025))}, "headers of record 1: "),
        ({"tags": None, "headers": packed_headers(b"\x90", b"\x90")}, "no tags in front"),
        ({"tags": None, "headers": packed_headers(PACK([["b", "a"]]), b"\xc0")}, "not sorted"),
        ({"tags": None, "headers": packed_headers(PACK([[], []]), b"\xc0")}, "a list where bytes"),
    ],
)
def test_refused(changes: dict[str, bytes], message: str) -> None:
    """One thing is wrong with a chunk whose lengths and CRCs are right."""
    batch = columns_batch(CHUNK._replace(**changes))  # type: ignore[arg-type]
    with pytest.raises(CorruptRecord, match=message):
        read_all(batch)


@pytest.mark.parametrize(
    "keys",
    [
        ["c-17", "", "\u00fc\U0001f600", None, 7, "x" * 70_000],
        [None, "text", b"bytes", -7, "", b"", 1 << 40, "\u00fc" * 200],
        [b"bytes", "text"],
        [7, "text"],
    ],
)
def test_keys_come_back_as_they_were_sent(keys: list[object]) -> None:
    """Text as text, bytes as bytes, numbers as numbers, also all in one batch (A17.3)."""
    for codec in (Compression.NONE, Compression.GZIP):
        batch = encode_batch(
            values=[b"x"] * len(keys), keys=keys, timestamp=1, compression=codec,
            tags=[[f"t{index % 2}"] for index in range(len(keys))],
        )  # fmt: skip
        found = list(RecordBatch.decode(batch).keys)
        assert found == keys
        assert list(map(type, found)) == list(map(type, keys))


@pytest.mark.parametrize("stored", [b"\0" * 19, CHUNK.pack() + b"\0", CHUNK.pack()[:-1]])
def test_lengths_that_do_not_add_up(stored: bytes) -> None:
    """The chunk is cut off, or goes on after its last column."""
    entry = entry_of(CHUNK, stored)
    entry[3] = len(stored)
    batch = with_directory(PACK({0: [entry]}), stored, 2)
    with pytest.raises(CorruptRecord, match=r"columns claim|chunk of 19 bytes"):
        read_all(batch)


def test_two_chunks_claim_one_offset() -> None:
    """Each is in order, but together they are not."""
    tagged = CHUNK._replace(tags=["a"], offsets=PACK([1, 3]))
    with pytest.raises(CorruptRecord, match="two chunks claim the same offset"):
        read_all(columns_batch(CHUNK, tagged))


def test_all_columns_nil() -> None:
    """A batch of nothing but offsets and a timestamp is a batch."""
    records = read_all(columns_batch(RawChunk(2, NIL)))
    assert records == [(0, 1000, None, None, (), ()), (1, 1000, None, None, (), ())]


def test_mixed_chunk_with_records_that_say_nothing() -> None:
    """Nil in place of a header bin means neither tags nor headers."""
    mixed = RawChunk(
        2, VALUES, headers=array([PACK(PACK([["t"], b"n", b"v"])), b"\xc0"]), tags=None
    )
    batch = RecordBatch.decode(columns_batch(mixed))
    assert list(batch.tags) == [("t",), ()]
    assert list(batch.headers) == [(("n", b"v"),), ()]


@pytest.mark.parametrize("claim", [-1, 1, 1 << 20])
def test_compressed_chunk_with_a_false_length(claim: int) -> None:
    """The directory claims less or more than the stream holds."""
    batch = columns_batch(CHUNK, codec=Compression.GZIP)
    entry = RecordBatch.decode(batch).chunks[0].entry
    fields = [2, entry.byte_length, entry.crc, entry.uncompressed_length + claim, []]
    stored = bytes(batch[-entry.byte_length :])
    damaged = with_directory(PACK({0: [fields]}), stored, 2, codec=Compression.GZIP)
    with pytest.raises(CorruptRecord, match="bytes uncompressed, holds"):
        read_all(damaged)


def test_mixed_chunk_whose_tags_are_damaged() -> None:
    """Tags alone are touched: the complaint is about them."""
    mixed = RawChunk(2, VALUES, headers=packed_headers(b"\x90", b"\x91\xc0"), tags=None)
    batch = RecordBatch.decode(columns_batch(mixed))
    with pytest.raises(CorruptRecord, match="tags of record 1: no tags in front"):
        _ = batch.tags[1]
    assert list(RecordBatch.decode(columns_batch(RawChunk(1, NIL, tags=None))).tags) == [()]


def test_columns_as_they_were_sent() -> None:
    """Without the head of the array, whose count is checked; nothing else is."""
    batch = RecordBatch.decode(encode_batch(values=[b"a", None], keys=["k", 7], timestamp=1))
    assert bytes(batch.packed("values") or b"") == b"\xc4\x01a\xc0"
    assert bytes(batch.packed("keys") or b"") == b"\xa1k\x07"
    absent = RecordBatch.decode(encode_batch(values=[b"a"], timestamp=1))
    assert bytes(absent.packed("keys") or b"") == b""
    false_count = RecordBatch.decode(bytes(columns_batch(RawChunk(2, values=b"\x91\xc0"))))
    with pytest.raises(CorruptRecord, match="not an array of 2 items"):
        false_count.packed("values")


def test_columns_that_do_not_stand_in_one_piece() -> None:
    """Two chunks whose records alternate, and Kafka's format."""
    chunks = encode_batch(values=[b"a", b"b"], tags=[["x"], ["y"]], timestamp=1)
    kafka = encode_batch(values=[b"a"], timestamp=1, record_format=RecordFormat.KAFKA)
    for data in (chunks, kafka):
        assert RecordBatch.decode(data).packed("values") is None
