"""Directory of a columns batch: counts, lengths, CRCs and tags of its chunks, uncompressed.

Owns its layout, its limits and the limits of tags. Never opens a chunk: with header and directory
alone a broker can find the chunks with certain tags. Invariant: lengths and counts of the chunks
add up to exactly the batch that the directory stands in.

     u32 length | {0: [[record count, byte length, CRC-32C, uncompressed length, tags] ...]}

The map is msgpack of at most NESTING_MAX levels. Unknown keys from 128 on are ignored and those
below refused, so that a later version can add both hints and what an older reader must not
overlook (decision 0008). A named producer's digest and generation have keys 128 and 129, and stand
first and at full width, so that their place is fixed. Tags are a sorted list, empty for untagged
records; nil marks the mixed chunk, whose records carry their own.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from raftmq.model import TAG_BYTES_MAX, Compression
from raftmq.wire.batch.compression import codec_of
from raftmq.wire.batch.header import (
    BATCH_BYTES_MAX,
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
DIGEST_KEY, GENERATION_KEY = 128, 129

LENGTH = Struct(">I")
_FIXMAP, _FIXMAP_END = 0x80, 0x90
_ONLY_CHUNKS = bytes([_FIXMAP + 1, CHUNKS_KEY])  # how nearly every directory begins
_ACCOUNT = Struct(">4sI3sQB")  # markers, digest, markers, generation, CHUNKS_KEY
_UINT8, _UINT32, _UINT64 = 0xCC, 0xCE, 0xCF
_BEFORE_DIGEST = bytes([_FIXMAP + 3, _UINT8, DIGEST_KEY, _UINT32])
_BEFORE_GENERATION = bytes([_UINT8, GENERATION_KEY, _UINT64])
ACCOUNT_END = HEADER_SIZE + LENGTH.size + _ACCOUNT.size  # bytes of a batch to read for an account

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


def encode_directory(entries: Sequence[ChunkEntry], account: Account | None = None) -> bytes:
    """The directory with its length in front. `account`: of a named producer."""
    encoded = _ENCODER.encode({CHUNKS_KEY: entries})
    if account is not None:
        generation, digest, _ = account  # the partition count stands in the fence only
        assert 0 <= digest <= DIGEST_MAX, digest
        assert 0 <= generation <= GENERATION_MAX, generation
        said = _ACCOUNT.pack(_BEFORE_DIGEST, digest, _BEFORE_GENERATION, generation, CHUNKS_KEY)
        encoded = said + encoded[len(_ONLY_CHUNKS) :]
    return LENGTH.pack(len(encoded)) + encoded


def read_account(buffer: Buffer, position: int, header: BatchHeader) -> Account | None:
    """The account of a named producer in the columns batch at `position`, if it has one.

    Needs only `ACCOUNT_END` bytes of the batch; `read_directory` checks the whole directory.
    """
    # Kafka's encoding has no directory.
    if not header.is_columns or min(header.size, len(buffer) - position) < ACCOUNT_END:
        return None
    return _account_at(buffer, position + HEADER_SIZE + LENGTH.size)


def _account_at(buffer: Buffer, position: int) -> Account | None:
    before, digest, between, generation, key = _ACCOUNT.unpack_from(buffer, position)
    # Not written by our encoder: keys in another place are ignored.
    if (before, between, key) != (_BEFORE_DIGEST, _BEFORE_GENERATION, CHUNKS_KEY):
        return None
    return Account(generation, digest) if generation <= GENERATION_MAX else None


def read_directory(
    buffer: Buffer, position: int, header: BatchHeader, *, where: str = ""
) -> Directory:
    """Decode and check the directory of the columns batch at `position`.

    Raises:
        CorruptRecord: it is malformed, or does not add up to the batch.
        UnsupportedCompression: the chunks are compressed with an unknown codec.
    """
    codec = codec_of(header.attributes)
    try:
        packed, chunks_position = _find_directory(buffer, position, header)
        entries = _ENTRIES.decode(_packed_entries(packed))
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise _corrupt(str(error), position, where) from error
    room = position + header.size - chunks_position
    problem = _problem_of_sums(entries, header.record_count, room) or _problem_of(entries, codec)
    if problem:
        raise _corrupt(problem, position, where)
    return Directory(entries, chunks_position)


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
    if packed[:2] == _ONLY_CHUNKS:  # the map has no other key, as almost all: nothing to decode
        return packed[2:]
    if len(packed) >= _ACCOUNT.size and _account_at(packed, 0) is not None:
        return packed[_ACCOUNT.size :]  # written by our encoder for a named producer
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
