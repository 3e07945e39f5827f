"""Directory of a columns batch: counts, lengths, CRCs and tags of its chunks, uncompressed.

Owns its layout, its limits and the limits of tags. Never opens a chunk: with header and directory
alone a broker can find the chunks with certain tags. Invariant: lengths and counts of the chunks
add up to exactly the batch that the directory stands in.

     u32 length | {0: [[record count, byte length, CRC-32C, uncompressed length, tags] ...]}

The map is msgpack of at most NESTING_MAX levels. Unknown keys from 128 on are ignored and those
below refused, so that a later version can add both hints and what an older reader must not
overlook (decision 0008). Keys at fixed places stand before the chunks (`fixed_keys`), the deltas of
records that are left out of a delivery behind them. Tags are a sorted list, empty for untagged
records; nil marks the mixed chunk, whose records carry their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from raftmq.model import TAG_BYTES_MAX, Compression
from raftmq.wire.batch.compression import codec_of
from raftmq.wire.batch.fixed_keys import (
    CHUNKS_KEY,
    FIXMAP,
    FIXMAP_END,
    LENGTH,
    FixedKeys,
    entries_at,
    pack_fixed_keys,
    read_fixed_keys,
)
from raftmq.wire.batch.header import BATCH_BYTES_MAX, HEADER_SIZE, RECORDS_MAX, BytesOrigin
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.errors import CorruptRecord
    from raftmq.wire.batch.header import Account, BatchHeader, Buffer

Tags = tuple[str, ...]

# Of one batch, one per tag set; records of further sets share the mixed chunk. Bounds the size of
# the directory, and the loss of compression by many small chunks.
TAGGED_CHUNKS_MAX = 64
TAGS_MAX = 16  # of one record; with TAG_BYTES_MAX 4 KB, as each chunk's directory entry holds them
DIRECTORY_BYTES_MAX = 512 << 10  # about twice the largest one that can be written
# See the top: hints, which an older reader may overlook.
IGNORED_KEYS_START = 128
LEFT_OUT_KEY = 134

_Count = Annotated[int, msgspec.Meta(ge=1, le=RECORDS_MAX)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=BATCH_BYTES_MAX)]
_Crc = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
_TagList = Annotated[tuple[str, ...], msgspec.Meta(max_length=TAGS_MAX)]


class ChunkEntry(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The directory's entry of one chunk."""

    record_count: _Count
    byte_length: _Bytes  # as stored
    crc: _Crc  # of the stored bytes
    uncompressed_length: _Bytes
    tags: _TagList | None  # None: the mixed chunk


class Directory(NamedTuple):
    """`entries` in the order of their chunks, the first of which begins at `chunks_position`."""

    entries: list[ChunkEntry]
    chunks_position: int


_ENCODER = msgspec.msgpack.Encoder()
_MAP = Decoder[dict[int, msgspec.Raw]](dict[int, msgspec.Raw])
_ENTRIES = msgspec.msgpack.Decoder(
    Annotated[list[ChunkEntry], msgspec.Meta(min_length=1, max_length=TAGGED_CHUNKS_MAX + 1)]
)
_Delta = Annotated[int, msgspec.Meta(ge=0, lt=RECORDS_MAX)]
_LEFT_OUT = msgspec.msgpack.Decoder(
    Annotated[tuple[_Delta, ...], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]
)


def encode_directory(
    entries: Sequence[ChunkEntry],
    account: Account | None = None,
    *,
    has_check: bool = True,
    due_ms: int | None = None,
) -> bytes:
    """The directory with its length in front. `account`: of a named producer. With `has_check`
    there is room for the CRC of the head, which `seal_batch` writes."""
    before = pack_fixed_keys(account, has_check=has_check, due_ms=due_ms)
    encoded = before + _ENCODER.encode({CHUNKS_KEY: entries})[1:]
    return LENGTH.pack(len(encoded)) + encoded


class SplitDirectory(NamedTuple):
    """A directory whose entries are not decoded.

    Attributes:
        keys: those at fixed places; None: they mean nothing.
        entries: the value of key 0.
        left_out: deltas of the records that are cancelled.
    """

    keys: FixedKeys | None
    entries: Buffer
    left_out: tuple[int, ...]
    chunks_position: int


def split_directory(
    buffer: Buffer, position: int, header: BatchHeader, *, where: str = ""
) -> SplitDirectory:
    """
    Raises:
        CorruptRecord: it is malformed.
    """
    try:
        packed, chunks_position = _find_directory(buffer, position, header)
        keys = read_fixed_keys(packed)
        if keys is None or not keys.more:
            return SplitDirectory(keys, _packed_entries(packed), (), chunks_position)
        fields = _fields(packed)
        left_out = fields.get(LEFT_OUT_KEY)
        deltas = () if left_out is None else _LEFT_OUT.decode(left_out)
        return SplitDirectory(keys, fields[CHUNKS_KEY], deltas, chunks_position)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise _corrupt(str(error), position, where) from error


def join_directory(
    entries: Buffer,
    left_out: Sequence[int],
    *,
    due_ms: int,
    delivers: int | None = None,
    copy_of: tuple[int, int] | None = None,
) -> bytes:
    """The directory of a delivery or a copy, with its length in front; see `encode_directory`."""
    behind = _ENCODER.encode({LEFT_OUT_KEY: left_out})[1:] if left_out else b""
    before = pack_fixed_keys(
        due_ms=due_ms, delivers=delivers, copy_of=copy_of, more=1 if left_out else 0
    )
    encoded = b"".join((before, bytes([CHUNKS_KEY]), entries, behind))
    return LENGTH.pack(len(encoded)) + encoded


def read_directory(
    buffer: Buffer, position: int, header: BatchHeader, *, where: str = ""
) -> Directory:
    """Decode and check the directory of the columns batch at `position`.

    Raises:
        CorruptRecord: it is malformed, or does not add up to the batch.
        UnsupportedCompression: the chunks are compressed with an unknown codec.
    """
    codec = codec_of(header.attributes)
    entries, chunks_position = read_entries(buffer, position, header, where=where)
    room = position + header.size - chunks_position
    problem = _problem_of_sums(entries, header.record_count, room) or _problem_of(entries, codec)
    if problem:
        raise _corrupt(problem, position, where)
    return Directory(entries, chunks_position)


def read_entries(
    buffer: Buffer, position: int, header: BatchHeader, *, where: str = ""
) -> Directory:
    """As `read_directory`, but the chunks need not add up to the batch.

    Raises:
        CorruptRecord: it is malformed.
    """
    try:
        packed, chunks_position = _find_directory(buffer, position, header)
        return Directory(_ENTRIES.decode(_packed_entries(packed)), chunks_position)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise _corrupt(str(error), position, where) from error


def _corrupt(what: str, position: int, where: str) -> CorruptRecord:
    return BytesOrigin(position + HEADER_SIZE, where).corrupt(f"directory: {what}")


def _find_directory(buffer: Buffer, position: int, header: BatchHeader) -> tuple[memoryview, int]:
    start, end = position + HEADER_SIZE + LENGTH.size, position + header.size
    if start > end:
        raise ValueError("no room for it")
    (length,) = LENGTH.unpack_from(buffer, position + HEADER_SIZE)
    # Before decoding: bounds its time and memory.
    if length > min(end - start, DIRECTORY_BYTES_MAX):
        raise ValueError(f"it claims {length} bytes")
    return memoryview(buffer)[start : start + length], start + length


def _packed_entries(packed: memoryview) -> Buffer:
    """The value of key 0."""
    at = entries_at(packed)  # of what our encoders write nearly always
    return _fields(packed)[CHUNKS_KEY] if at is None else packed[at:]


def _fields(packed: memoryview) -> dict[int, msgspec.Raw]:
    if not packed or not FIXMAP <= packed[0] < FIXMAP_END:
        raise ValueError("not a map of at most 15 entries")
    fields = _MAP.decode(packed)
    if len(fields) != packed[0] - FIXMAP:  # two readers might take different ones
        raise ValueError("a key occurs twice")
    unknown = [key for key in fields if key != CHUNKS_KEY and key < IGNORED_KEYS_START]
    if unknown or CHUNKS_KEY not in fields:  # below 128: what this version must understand
        raise ValueError(f"unknown keys {unknown}" if unknown else "no chunks")
    return fields


def _problem_of_sums(entries: list[ChunkEntry], record_count: int, room: int) -> str:
    counted = sum([entry.record_count for entry in entries])
    if counted != record_count:
        return f"chunks hold {counted} records, the batch {record_count}"
    length = sum([entry.byte_length for entry in entries])
    if length != room:
        return f"chunks claim {length} bytes, {room} follow"
    return ""


def _problem_of(entries: list[ChunkEntry], codec: Compression) -> str:
    """What is wrong with one of the entries, or an empty string."""
    for entry in entries:
        if codec is Compression.NONE and entry.byte_length != entry.uncompressed_length:
            return f"an uncompressed chunk claims {entry.uncompressed_length} bytes uncompressed"
        # Other forms of one set would be different chunks to a filter.
        if entry.tags and (problem := problem_of_tags(entry.tags)):
            return problem
    return _problem_of_tag_sets([entry.tags for entry in entries]) if len(entries) > 1 else ""


def _problem_of_tag_sets(tag_sets: list[Tags | None]) -> str:
    if len(set(tag_sets)) != len(tag_sets):
        return "two chunks of one tag set"
    if None in tag_sets[:-1]:
        return "the mixed chunk is not the last"
    if len(tag_sets) > TAGGED_CHUNKS_MAX and tag_sets[-1] is not None:
        return f"more than {TAGGED_CHUNKS_MAX} tagged chunks"
    return ""


def problem_of_tags(tags: Tags) -> str:
    """Why this is not a valid set of tags in its one canonical form, or an empty string."""
    if not tags:
        return ""
    if len(tags) > TAGS_MAX:
        return f"{len(tags)} tags, allowed {TAGS_MAX}"
    if list(tags) != sorted(set(tags)):
        return "tags that are not sorted or not unique"
    if not all(0 < len(tag.encode()) <= TAG_BYTES_MAX for tag in tags):
        return f"a tag that has not 1 to {TAG_BYTES_MAX} bytes"
    return ""
