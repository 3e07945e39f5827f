"""Batches that no encoder would write: raw pieces with a header that vouches for them.

Owns the building and the repairing of damaged batches, for unit tests and the fuzzer.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from raftmq.model import Compression
from raftmq.wire.batch.compression import compress
from raftmq.wire.batch.header import COLUMNS_BIT, HEADER, HEADER_SIZE, MAGIC, seal

LENGTHS = Struct(">5I")
NIL = b""
PACK = msgspec.msgpack.encode


class RawChunk(NamedTuple):
    """Columns as bytes, so that a test can put anything there."""

    count: int
    values: bytes
    offsets: bytes = NIL
    timestamps: bytes = NIL
    keys: bytes = NIL
    headers: bytes = NIL
    tags: list[str] | None = []  # noqa: RUF012  # never changed

    def pack(self) -> bytes:
        columns = (self.offsets, self.timestamps, self.keys, self.values, self.headers)
        return LENGTHS.pack(*map(len, columns)) + b"".join(columns)


def entry_of(chunk: RawChunk, stored: bytes) -> list[Any]:
    return [chunk.count, len(stored), crc32c(stored), len(chunk.pack()), chunk.tags]


def columns_batch(*chunks: RawChunk, codec: Compression = Compression.NONE) -> bytearray:
    """A whole batch with an honest directory."""
    stored = [compress(codec, chunk.pack()) for chunk in chunks]
    entries = [entry_of(*pair) for pair in zip(chunks, stored, strict=True)]
    count = sum(chunk.count for chunk in chunks)
    return with_directory(PACK({0: entries}), b"".join(stored), count, codec=codec)


def with_directory(
    directory: bytes, chunks: bytes, count: int, *, codec: Compression = Compression.NONE
) -> bytearray:
    length = len(directory).to_bytes(4, "big")
    return with_header(length + directory + chunks, count, attributes=COLUMNS_BIT | codec)


def with_header(
    contents: bytes, count: int, *, attributes: int = 0, last_offset_delta: int | None = None
) -> bytearray:
    """A valid header, CRC included, in front of any contents."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    header = HEADER.pack(0, 0, -1, MAGIC, 0, attributes, last, 1000, 1000, -1, -1, -1, count)
    return seal(bytearray(header + contents))


def array(items: list[bytes]) -> bytes:
    """A msgpack array of items that are packed already."""
    count = len(items)
    if count < 16:
        return bytes((0x90 | count,)) + b"".join(items)
    wide = count >= 1 << 16
    start = b"\xdd" + count.to_bytes(4, "big") if wide else b"\xdc" + count.to_bytes(2, "big")
    return start + b"".join(items)


def set_field(batch: bytearray, position: int, kind: str, value: int) -> bytearray:
    """Overwrite one header field and repair the CRC."""
    Struct(kind).pack_into(batch, position, value)
    return seal(batch)


def contents_of(batch: bytearray) -> bytes:
    return bytes(batch[HEADER_SIZE:])
