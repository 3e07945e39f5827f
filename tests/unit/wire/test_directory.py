"""The directory in front of the chunks: everything that can be wrong with it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from raftmq.errors import CorruptRecord, InvalidRecord
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.fixed_keys import ACCOUNT_END, check_position, read_account
from raftmq.wire.batch.header import (
    COLUMNS_BIT,
    CONTROL_BIT,
    DIGEST_MAX,
    GENERATION_MAX,
    Account,
    check_batch,
)
from raftmq.wire.batch.records import RecordBatch, check_structure, encode_batch
from tests.unit.wire.batches import PACK, RawChunk, array, entry_of, with_directory, with_header

CHUNK = RawChunk(2, array([PACK(b"a"), PACK(b"b")]))
STORED = CHUNK.pack()
ENTRY = entry_of(CHUNK, STORED)


def entry(**changes: Any) -> list[Any]:
    names = ("record_count", "byte_length", "crc", "uncompressed_length", "tags")
    return list((dict(zip(names, ENTRY, strict=True)) | changes).values())


def refusal(directory: bytes, chunks: bytes = STORED, count: int = 2) -> str:
    """How both the reader and the broker refuse it."""
    batch = with_directory(directory, chunks, count)
    with pytest.raises(CorruptRecord) as by_reader:
        RecordBatch.decode(batch)
    with pytest.raises(CorruptRecord) as by_broker:
        check_structure(batch, 0, check_batch(batch))
    assert str(by_reader.value) == str(by_broker.value)
    return str(by_reader.value)


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ({}, "no chunks"),
        ({0: []}, "Expected `array` of length >= 1"),
        ({0: [[]]}, "at least length 5"),
        ({0: [[*ENTRY, 0]]}, "at most length 5"),
        ({0: {}}, "Expected `array`, got `object`"),
        ({0: [ENTRY], 1: 0}, r"unknown keys \[1\]"),
        ({0: [ENTRY], 127: 0}, r"unknown keys \[127\]"),
        ({0: [ENTRY], -1: 0}, r"unknown keys \[-1\]"),
        ({0: [ENTRY], "a": 0}, "Expected `int`, got `str`"),
        ({0: [entry(record_count=0)]}, "Expected `int` >= 1"),
        ({0: [entry(record_count=-2)]}, "Expected `int` >= 1"),
        ({0: [entry(record_count=1)]}, "chunks hold 1 records, the batch 2"),
        ({0: [entry(record_count=65_537)]}, "Expected `int` <= 65536"),
        ({0: [entry(byte_length=len(STORED) + 1)]}, "chunks claim 28 bytes, 27 follow"),
        ({0: [entry(byte_length=len(STORED) - 1)]}, "chunks claim 26 bytes, 27 follow"),
        ({0: [entry(uncompressed_length=34)]}, "claims 34 bytes uncompressed"),
        ({0: [entry(tags=["b", "a"])]}, "not sorted"),
        ({0: [entry(tags=["a", "a"])]}, "not unique"),
        ({0: [entry(tags=[""])]}, "1 to 255 bytes"),
        ({0: [entry(tags=["a" * 256])]}, "1 to 255 bytes"),
        ({0: [entry(tags=[f"{n:02}" for n in range(17)])]}, "length <= 16"),
        ({0: [entry(tags=[b"a"])]}, "Expected `str`, got `bytes`"),
    ],
)
def test_refused(directory: dict[Any, Any], message: str) -> None:
    """One thing is wrong with a directory that is well-formed msgpack."""
    assert re.search(message, refusal(PACK(directory)))


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        (b"", "not a map"),
        (b"\xde\x00\x01\x00" + PACK([ENTRY]), "not a map of at most 15"),
        (b"\x82\x00\xc0\x00" + PACK([ENTRY]), "a key occurs twice"),
        (b"\x82\x00" + PACK([ENTRY]), "truncated"),
        (PACK({0: [ENTRY]}) + b"\xc0", "trailing"),
        (b"\x81\x00\xdd\xff\xff\xff\xff", "length <= 65"),
        (b"\x81\x00" + b"\x91" * 100_000, "directory: "),
        (b"\x82\xcc\x80" + b"\x91" * 100_000 + b"\xc0\x00" + PACK([ENTRY]), "directory: "),
        (PACK({0: [ENTRY]}).replace(b"\x90", b"\x91\xa1\xff"), "utf-8"),
    ],
)
def test_malformed(directory: bytes, message: str) -> None:
    """Bytes that are not the map they should be; nesting does not overflow any stack."""
    assert re.search(message, refusal(directory))


def test_chunks_that_cannot_stand_together() -> None:
    """A tag set occurs twice, the mixed chunk is not the last, there are too many chunks."""
    both = STORED + STORED
    assert "two chunks of one tag set" in refusal(PACK({0: [ENTRY, ENTRY]}), both, 4)
    mixed_first = [entry(tags=None), ENTRY]
    assert "mixed chunk is not the last" in refusal(PACK({0: mixed_first}), both, 4)
    many = [entry(tags=[f"{index:02}"]) for index in range(65)]
    assert "more than 64 tagged" in refusal(PACK({0: many}), STORED * 65, 130)
    too_many = [*many, entry(tags=None)]
    assert "length <= 65" in refusal(PACK({0: too_many}), STORED * 66, 132)


@pytest.mark.parametrize("contents", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\x10\0\0" + bytes(99)])
def test_directory_beyond_the_batch(contents: bytes) -> None:
    """The length in front is cut off, or claims more than there is."""
    with pytest.raises(CorruptRecord, match="directory"):
        RecordBatch.decode(with_header(contents, 1, attributes=COLUMNS_BIT))


def test_directory_over_its_limit() -> None:
    """However long the batch, a directory has a limit of its own."""
    batch = with_directory(bytes(600 << 10), STORED, 2)
    with pytest.raises(CorruptRecord, match="directory: it claims 614400 bytes"):
        RecordBatch.decode(batch)


def test_keys_of_later_versions_are_ignored() -> None:
    """From key 128 on a reader steps over what it does not know."""
    directory = PACK({0: [ENTRY], 130: ["deliver", {"at": 1}], 1 << 40: None})
    batch = with_directory(directory, STORED, 2)
    check_structure(batch, 0, check_batch(batch))
    assert RecordBatch.decode(batch).values == [b"a", b"b"]


def test_control_batch_of_columns() -> None:
    """Markers are always in Kafka's encoding."""
    batch = with_header(b"", 1, attributes=COLUMNS_BIT | CONTROL_BIT)
    with pytest.raises(CorruptRecord, match="control batch of columns"):
        RecordBatch.decode(batch)
    with pytest.raises(CorruptRecord, match="control batch of columns"):
        check_structure(batch, 0, check_batch(batch))


@pytest.mark.parametrize("compression", Compression)
def test_what_the_encoder_writes_passes(compression: Compression) -> None:
    """The broker's check takes every batch of ours, without opening it."""
    tags = [[str(index)] for index in range(70)]
    batch = encode_batch(values=[b"a"] * 70, tags=tags, timestamp=0, compression=compression)
    check_structure(batch, 0, check_batch(batch))


# -- what named producers say ------------------------------------------------------------------

ACCOUNT = Account(17, 0xDEADBEEF)
BEFORE = bytes.fromhex("83 cc80 ce deadbeef cc81 cf 0000000000000011 00")


def named(directory: bytes) -> bytes:
    return bytes(with_directory(directory, STORED, 2))


def said_by(batch: bytes, position: int = 0) -> Account | None:
    return read_account(batch, position, check_batch(batch, position))


def test_an_account_stands_at_a_fixed_place() -> None:
    """Header and 26 bytes more are enough to know it; no reader of records is disturbed."""
    batch = bytes(encode_batch(values=[b"a", b"b"], timestamp=1, account=ACCOUNT, has_check=False))
    assert batch[65:].startswith(BEFORE)
    assert msgspec.msgpack.decode(batch[65 : 65 + batch[64]])[128] == 0xDEADBEEF
    header = check_batch(batch)
    assert read_account(batch[:ACCOUNT_END], 0, header) == ACCOUNT
    assert read_account(batch[: ACCOUNT_END - 1], 0, header) is None
    assert said_by(b"xyz" + batch, 3) == ACCOUNT
    check_structure(batch, 0, header)
    assert RecordBatch.decode(batch).values == [b"a", b"b"]


def test_an_account_with_the_crc_of_the_head_behind_it() -> None:
    """What brokers of this version read as well, and those before do not (feature level)."""
    batch = bytes(encode_batch(values=[b"a", b"b"], timestamp=1, account=ACCOUNT, has_check=True))
    assert batch[65:].startswith(b"\x84" + BEFORE[1:-1] + bytes.fromhex("cc82 ce"))
    assert said_by(batch) == ACCOUNT
    assert read_account(batch[:ACCOUNT_END], 0, check_batch(batch)) == ACCOUNT
    assert check_position(batch, 0) == ACCOUNT_END
    check_structure(batch, 0, check_batch(batch))
    assert RecordBatch.decode(batch).values == [b"a", b"b"]


@pytest.mark.parametrize("account", [Account(0, 0), Account(GENERATION_MAX, DIGEST_MAX)])
def test_an_account_has_one_width(account: Account) -> None:
    """Small numbers and large ones; tags and compression change nothing."""
    batch = bytes(
        encode_batch(
            values=[b"a", b"b"],
            tags=[["x"], ["y"]],
            timestamp=1,
            compression=Compression.GZIP,
            account=account,
        )
    )
    assert said_by(batch) == account
    assert RecordBatch.decode(batch).values == [b"a", b"b"]


@pytest.mark.parametrize(
    "directory",
    [
        PACK({0: [ENTRY]}),
        PACK({128: 5, 129: 17, 0: [ENTRY]}),  # in the shortest form
        PACK({0: [ENTRY], 128: 0xDEADBEEF, 129: 1 << 40}),  # not in front
        PACK({128: 0xDEADBEEF, 0: [ENTRY]}),
        BEFORE.replace(b"\x83", b"\x84")[:-1] + PACK(130) + b"\xc0\x00" + PACK([ENTRY]),
        BEFORE.replace(bytes(7), b"\xff" * 7) + PACK([ENTRY]),  # a generation of 64 bits
    ],
    ids=["none", "short", "behind", "alone", "more", "too large"],
)
def test_whatever_is_not_at_its_place_is_no_account(directory: bytes) -> None:
    """Keys from 128 on are nobody's concern then, and the batch is as readable as any."""
    batch = named(directory)
    assert said_by(batch) is None
    assert RecordBatch.decode(batch).values == [b"a", b"b"]


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (b"", "not a map|truncated"),
        (PACK([]), "length >= 1"),
        (PACK([ENTRY]) + b"\xc0", "trailing"),
        (PACK([entry(record_count=1)]), "chunks hold 1 records, the batch 2"),
    ],
)
def test_a_broken_directory_behind_an_account(rest: bytes, message: str) -> None:
    """What follows is checked as without it."""
    assert re.search(message, refusal(BEFORE + rest))


def test_kafka_records_have_no_place_for_an_account() -> None:
    """Named producers need columns; and a short batch says nothing."""
    with pytest.raises(InvalidRecord, match="no place for an account"):
        encode_batch(values=[b"a"], timestamp=1, record_format=RecordFormat.KAFKA, account=ACCOUNT)
    plain = bytes(encode_batch(values=[b"a"], timestamp=1, record_format=RecordFormat.KAFKA))
    assert said_by(plain) is None
    assert said_by(bytes(with_header(b"\0\0\0\1", 1, attributes=COLUMNS_BIT))) is None
