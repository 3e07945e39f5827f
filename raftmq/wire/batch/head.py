"""Head of a columns batch: its checksum, and partial batches, of which chunks were left out. Pure.

The head is the header from its attributes on, and the directory. Its CRC-32C stands in the
directory, computed with zero in its own place: by it a reader believes tags, counts, lengths and
CRCs of the chunks without reading any chunk. Owns that CRC, and the form of a partial batch.

A partial batch is what a broker sends to a reader with a filter of tags: the header, with another
magic and the length of what follows; the whole directory; and only the chunks that the filter lets
pass, with the mixed chunk, whose records the reader filters. Its head is believed by its CRC, each
chunk by its own. Invariant: no bytes are both a batch and a partial batch.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from raftmq.errors import CorruptRecord, UnsupportedCompression
from raftmq.wire.batch.directory import DIRECTORY_BYTES_MAX, read_directory, read_entries
from raftmq.wire.batch.fixed_keys import LENGTH, check_position
from raftmq.wire.batch.header import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    check_batch,
    pack_producer,
    read_header,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.directory import ChunkEntry, Directory
    from raftmq.wire.batch.header import Buffer

PARTIAL_MAGIC = 66  # of no version of Kafka's batches
_MAGIC_POSITION = 16
_CHECK = Struct(">I")
_ZERO = bytes(_CHECK.size)


def seal_batch(batch: bytearray) -> bytearray:
    """Write the CRC of its head, where its directory has room for it, length and CRC into a batch
    whose other fields are final."""
    if (position := check_position(batch, 0)) is not None:
        chunks_position = HEADER_SIZE + LENGTH.size + LENGTH.unpack_from(batch, HEADER_SIZE)[0]
        _CHECK.pack_into(batch, position, _head_crc(batch, 0, position, chunks_position))
    return seal(batch)


def renumbered(
    batch: Buffer, *, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray:
    """A copy of one whole batch with another producer id, epoch and sequence."""
    copy = bytearray(batch)
    pack_producer(copy, producer_id, producer_epoch, base_sequence)
    return seal_batch(copy)


def _head_crc(buffer: Buffer, position: int, check: int, chunks_position: int) -> int:
    view = memoryview(buffer)
    before = crc32c(view[position + CRC_START : check])
    return crc32c(view[check + _CHECK.size : chunks_position], crc32c(_ZERO, before))


def is_head_sound(buffer: Buffer, position: int, check: int, chunks_position: int) -> bool:
    """Whether the CRC of the head of the batch at `position`, which stands at `check`, is right."""
    computed = _head_crc(buffer, position, check, chunks_position)
    return _CHECK.unpack_from(buffer, check) == (computed,)


def head_length(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """Bytes of header and directory of the columns batch at `position`, of which the first
    HEADER_SIZE + 4 must be in `buffer`; 0: it has no directory of a possible length."""
    if not header.is_columns or header.size < HEADER_SIZE + LENGTH.size:
        return 0
    (length,) = LENGTH.unpack_from(buffer, position + HEADER_SIZE)
    end: int = HEADER_SIZE + LENGTH.size + length
    return end if length <= DIRECTORY_BYTES_MAX and end <= header.size else 0


def believed_directory(buffer: Buffer, position: int, header: BatchHeader) -> Directory | None:
    """The directory of the columns batch at `position`, of which the head must be in `buffer`;
    None if its CRC does not vouch for it, or it cannot be read."""
    check = check_position(buffer, position)
    if check is None:
        return None
    try:
        directory = read_directory(buffer, position, header)
    except (CorruptRecord, UnsupportedCompression):
        return None
    is_sound = is_head_sound(buffer, position, check, directory.chunks_position)
    return directory if is_sound else None


# -- Partial batches ------------------------------------------------------------------------------


def passes(entry: ChunkEntry, asked: TagFilter) -> bool:
    """Whether a reader with that filter gets the chunk: it matches, or it is the mixed one."""
    return entry.tags is None or asked.matches(entry.tags)


def partial_head(head: Buffer, header: BatchHeader, chunks_length: int) -> bytes:
    """Header and directory as they stand before the chunks of a partial batch, of so many bytes.
    `head`: those of the whole batch."""
    length = len(head) - LENGTH_END + chunks_length
    changed = header._replace(batch_length=length, magic=PARTIAL_MAGIC)
    return HEADER.pack(*changed) + bytes(memoryview(head)[HEADER_SIZE:])


class SentBatch(NamedTuple):
    """One batch of a fetch answer, `length` bytes at `position`, checked.

    Attributes:
        header: of the whole batch, also where it is a partial one.
    """

    position: int
    length: int
    header: BatchHeader


def is_partial(buffer: Buffer, position: int) -> bool:
    return memoryview(buffer)[position + _MAGIC_POSITION] == PARTIAL_MAGIC


def iter_sent(buffer: Buffer, asked: TagFilter | None, *, where: str = "") -> Iterator[SentBatch]:
    """The batches in `buffer`, each one checked; partial ones only where a filter was asked for.

    Raises:
        CorruptRecord: names what is wrong, and where.
    """
    position, end = 0, len(buffer)
    while position < end:
        if asked is not None and end - position > HEADER_SIZE and is_partial(buffer, position):
            sent = _check_partial(buffer, position, asked, where)
        else:
            header = check_batch(buffer, position, where=where)
            if header.is_scheduled:  # sound, and a fault of the broker that has sent it
                raise CorruptRecord(
                    f"a scheduled batch at offset {header.base_offset}: nobody gets one before its"
                    " delivery",
                    position=position,
                    where=where,
                )
            sent = SentBatch(position, header.size, header)
        yield sent
        position += sent.length


def _check_partial(buffer: Buffer, position: int, asked: TagFilter, where: str) -> SentBatch:
    shown = BatchHeader(*HEADER.unpack_from(buffer, position))
    problem = _problem_of_bytes(buffer, position, shown)
    if problem:
        raise CorruptRecord(f"partial batch: {problem}", position=position, where=where)
    entries, chunks_position = read_entries(buffer, position, shown, where=where)
    length = chunks_position - position + sum([entry.byte_length for entry in entries])
    # Of the whole batch; checked as that of any batch is.
    header = shown._replace(batch_length=length - LENGTH_END, magic=MAGIC)
    try:
        read_header(HEADER.pack(*header))
        read_directory(buffer, position, header)
    except CorruptRecord as error:
        raise CorruptRecord(error.what, position=position, where=where) from None
    at, kept = chunks_position, [entry for entry in entries if passes(entry, asked)]
    for entry in kept:
        if crc32c(memoryview(buffer)[at : at + entry.byte_length]) != entry.crc:
            problem = "the CRC-32C of a chunk is wrong"
        at += entry.byte_length
    if at != position + shown.size:
        problem = f"{at - chunks_position} bytes of chunks were asked for, others came"
    if problem:
        raise CorruptRecord(f"partial batch: {problem}", position=position, where=where)
    return SentBatch(position, shown.size, header)


def _problem_of_bytes(buffer: Buffer, position: int, shown: BatchHeader) -> str:
    missing = position + shown.size - len(buffer)
    if missing > 0:
        return f"it claims {shown.size} bytes, {missing} are missing"
    length = head_length(buffer, position, shown)
    check = check_position(buffer, position) if length else None
    if check is None:
        return "it has no head that can be checked"
    is_sound = is_head_sound(buffer, position, check, position + length)
    return "" if is_sound else "its head's CRC-32C is wrong"
