"""Directory of a columns batch: counts, lengths, CRCs and tags of its chunks, uncompressed.

Owns its layout, its limits and the limits of tags. Never opens a chunk: with header and directory
alone a broker can find the chunks with certain tags. Invariant: lengths and counts of the chunks
add up to exactly the batch that the directory stands in.

     u32 length | {0: [[record count, byte length, CRC-32C, uncompressed length, tags] ...]}

The map is msgpack of at most NESTING_MAX levels. Unknown keys from 128 on are ignored and those
below refused, so that a later version can add both hints and what an older reader must not
overlook (decision 0008). A named producer's digest and generation have keys 128 and 129, the CRC of
the head key 130 (`head`). They stand first, in this order and at full width, so that their places
are fixed. Tags are a sorted list, empty for untagged records; nil marks the mixed chunk, whose
records carry their own.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from raftmq.model import TAG_BYTES_MAX, Compression
from raftmq.wire.batch.compression import codec_of
from raftmq.wire.batch.header import (
    BATCH_BYTES_MAX,
    COLUMNS_BIT,
    CRC_START,
    DIGEST_MAX,
    GENERATION_MAX,
    HEADER_SIZE,
    RECORDS_MAX,
    Account,
    BatchHeader,
    BytesOrigin,
)
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.errors import CorruptRecord
    from raftmq.wire.batch.header import Buffer

Tags = tuple[str, ...]

# Of one batch, one per tag set; records of further sets share the mixed chunk. Bounds the size of
# the directory, and the loss of compression by many small chunks.
TAGGED_CHUNKS_MAX = 64
TAGS_MAX = 16  # of one record; with TAG_BYTES_MAX 4 KB, as each chunk's directory entry holds them
DIRECTORY_BYTES_MAX = 512 << 10  # about twice the largest one that can be written
# Of the map: the list of chunks.
CHUNKS_KEY = 0
# See the top: hints, which an older reader may overlook.
IGNORED_KEYS_START = 128
DIGEST_KEY, GENERATION_KEY, CHECK_KEY = 128, 129, 130

LENGTH = Struct(">I")
_FIXMAP, _FIXMAP_END = 0x80, 0x90
_ONLY_CHUNKS = bytes([_FIXMAP + 1, CHUNKS_KEY])
# Entries of the map, markers, digest, markers, generation, what comes next.
_ACCOUNT = Struct(">B3sI3sQ3s")
_UINT8, _UINT32, _UINT64 = 0xCC, 0xCE, 0xCF
_BEFORE_DIGEST = bytes([_UINT8, DIGEST_KEY, _UINT32])
_BEFORE_GENERATION = bytes([_UINT8, GENERATION_KEY, _UINT64])
_BEFORE_CHECK = bytes([_UINT8, CHECK_KEY, _UINT32])
_DIRECTORY_START = HEADER_SIZE + LENGTH.size  # of its map, in the batch
ACCOUNT_END = _DIRECTORY_START + _ACCOUNT.size  # bytes of a batch to read for an account
# How nearly every directory begins; then come the CRC and the key of the chunks.
_CHECK_FIRST = bytes([_FIXMAP + 2, *_BEFORE_CHECK])
_CHECK_FIRST_END = len(_CHECK_FIRST) + 4 + 1
_CHECK_FOURTH = _FIXMAP + 4, _BEFORE_CHECK  # of an account
_COLUMNS = COLUMNS_BIT >> 8  # in the first byte of the attributes

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


def encode_directory(
    entries: Sequence[ChunkEntry], account: Account | None = None, *, has_check: bool = True
) -> bytes:
    """The directory with its length in front. `account`: of a named producer. With `has_check`
    there is room for the CRC of the head, which `seal_batch` writes."""
    chunks = _ENCODER.encode({CHUNKS_KEY: entries})[1:]
    said = b""
    if account is not None:
        generation, digest, _ = account  # the partition count stands in the fence only
        assert 0 <= digest <= DIGEST_MAX, digest
        assert 0 <= generation <= GENERATION_MAX, generation
        said = b"".join(
            (_BEFORE_DIGEST, LENGTH.pack(digest), _BEFORE_GENERATION, generation.to_bytes(8, "big"))
        )
    count = _FIXMAP + 1 + 2 * (account is not None) + has_check
    check = _BEFORE_CHECK + bytes(4) if has_check else b""
    encoded = b"".join((bytes((count,)), said, check, chunks))
    return LENGTH.pack(len(encoded)) + encoded


def read_account(buffer: Buffer, position: int, header: BatchHeader) -> Account | None:
    """The account of a named producer in the columns batch at `position`, if it has one.

    Needs only `ACCOUNT_END` bytes of the batch; `read_directory` checks the whole directory.
    """
    # Kafka's encoding has no directory.
    if not header.is_columns or min(header.size, len(buffer) - position) < ACCOUNT_END:
        return None
    return _account_at(buffer, position + _DIRECTORY_START)


def _account_at(buffer: Buffer, position: int) -> Account | None:
    count, before, digest, between, generation, following = _ACCOUNT.unpack_from(buffer, position)
    is_ours = (
        following[0] == CHUNKS_KEY if count == _FIXMAP + 3 else (count, following) == _CHECK_FOURTH
    )
    # Else not written by our encoder: keys in another place are ignored.
    if not is_ours or (before, between) != (_BEFORE_DIGEST, _BEFORE_GENERATION):
        return None
    return Account(generation, digest) if generation <= GENERATION_MAX else None


def check_position(buffer: Buffer, position: int) -> int | None:
    """Where the CRC of the head stands in the batch at `position`; None: it has none. Needs no more
    bytes of it than its head has."""
    start, view = position + _DIRECTORY_START, memoryview(buffer)
    if len(view) - start < _CHECK_FIRST_END or not view[position + CRC_START] & _COLUMNS:
        return None
    (length,) = LENGTH.unpack_from(buffer, position + HEADER_SIZE)
    at = _check_at(view[start : start + length])
    return None if at is None else start + at


def _check_at(packed: memoryview) -> int | None:
    """The same in the map of a directory."""
    if packed[: len(_CHECK_FIRST)] == _CHECK_FIRST and len(packed) >= _CHECK_FIRST_END:
        return len(_CHECK_FIRST)
    at = _ACCOUNT.size  # behind what comes before the CRC
    if len(packed) <= at + 4 or packed[0] != _FIXMAP + 4 or _account_at(packed, 0) is None:
        return None
    return at


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
    # Written by our encoder, as almost all: nothing to decode. First without any other key.
    if packed[:2] == _ONLY_CHUNKS:
        return packed[2:]
    if (at := _check_at(packed)) is not None and packed[at + 4] == CHUNKS_KEY:
        return packed[at + 5 :]
    is_account = len(packed) >= _ACCOUNT.size and packed[0] == _FIXMAP + 3
    if is_account and _account_at(packed, 0) is not None:
        return packed[_ACCOUNT.size - len(_BEFORE_CHECK) + 1 :]
    if not packed or not _FIXMAP <= packed[0] < _FIXMAP_END:
        raise ValueError("not a map of at most 15 entries")
    fields = _MAP.decode(packed)
    if len(fields) != packed[0] - _FIXMAP:  # two readers might take different ones
        raise ValueError("a key occurs twice")
    unknown = [key for key in fields if key != CHUNKS_KEY and key < IGNORED_KEYS_START]
    if unknown or CHUNKS_KEY not in fields:  # below 128: what this version must understand
        raise ValueError(f"unknown keys {unknown}" if unknown else "no chunks")
    return fields[CHUNKS_KEY]


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
