"""From batch to batch through a segment file, without an index.

Owns the two ways to do it: `walk` trusts lengths and looks at headers only, `scan` checks every
CRC. Both read in blocks and name file and byte in every CorruptRecord.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.entries import read_waiting
from raftmq.wire.header import (
    HEADER_SIZE,
    RECORDS_MAX,
    BatchHeader,
    check_batch,
    compute_crc,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.disk.files import File
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.segment_index import BatchStart

WALK_BLOCK_BYTES = 4096
SCAN_BLOCK_BYTES = 1 << 20
CHECKED_BYTES_FACTOR = 4  # of the bytes that are searched
# A header as a regular expression: magic 2 at byte 16, no unknown attribute bit, small positive
# last offset delta and record count. Only a filter, so that Python looks at few positions.
_HEADER_LIKE = re.compile(
    rb"(?s)(?=[\x00-\x7f].{7}[\x00-\x3f].{7}\x02.{4}[\x00\x40][\x00-\x3f][\x00-\x7f].{33}\x00[\x00\x01])"
)


class FoundBatch(NamedTuple):
    position: int
    header: BatchHeader


class Window:
    """The part of a file that was read last; slides forward as it is asked for more."""

    def __init__(self, file: File, block_bytes: int, read: ReadBytes = read_waiting) -> None:
        self._file, self._block_bytes, self._read = file, block_bytes, read
        self._start, self._block = 0, memoryview(b"")

    def at(self, position: int, length: int) -> memoryview:
        """`length` bytes from `position`; fewer only at the end of the file."""
        first = position - self._start
        if first < 0 or first + length > len(self._block):
            data = self._read(self._file, position, max(length, self._block_bytes))
            self._start, self._block, first = position, memoryview(data), 0
        return self._block[first : first + length]


def walk(
    file: File, start: BatchStart, end: int, read: ReadBytes = read_waiting
) -> Iterator[FoundBatch]:
    """Every batch from `start` up to byte `end`, by its header alone.

    Raises:
        CorruptRecord: an impossible header, a batch that reaches beyond `end`, or an offset that
            does not follow from the one before.
    """
    window = Window(file, WALK_BLOCK_BYTES, read)
    offset, position = start
    while position < end:
        header = _header_at(window, offset, position, file)
        _check_place(header, offset, position, end, file)
        yield FoundBatch(position, header)
        offset, position = header.end_offset, position + header.size


def _check_place(header: BatchHeader, offset: int, position: int, end: int, file: File) -> None:
    problem = ""
    if header.base_offset != offset:
        problem = f"base offset {header.base_offset}, expected {offset}"
    elif position + header.size > end:
        problem = f"batch of {header.size} bytes, {position + header.size - end} are missing"
    if problem:
        raise CorruptRecord(problem, position=position, where=str(file.path), offset=offset)


def _header_at(window: Window, offset: int, position: int, file: File) -> BatchHeader:
    try:
        return read_header(window.at(position, HEADER_SIZE))
    except CorruptRecord as error:
        where = str(file.path)
        raise CorruptRecord(error.what, position=position, where=where, offset=offset) from None


def scan(file: File, start: BatchStart, end: int, leader_epoch: int) -> Iterator[FoundBatch]:
    """Every batch from `start` up to byte `end`, its CRC checked, epochs never falling.

    Raises:
        CorruptRecord: at the first batch that is not whole, sound and in its place.
    """
    window = Window(file, SCAN_BLOCK_BYTES)
    offset, position = start
    while position < end:
        header = _header_at(window, offset, position, file)
        _check_place(header, offset, position, end, file)
        _check_bytes(window, position, header, file)
        if header.leader_epoch < leader_epoch:
            what = f"leader epoch {header.leader_epoch} after {leader_epoch}"
            raise CorruptRecord(what, position=position, where=str(file.path))
        yield FoundBatch(position, header)
        leader_epoch = header.leader_epoch
        offset, position = header.end_offset, position + header.size


def _check_bytes(window: Window, position: int, header: BatchHeader, file: File) -> None:
    try:
        check_batch(window.at(position, header.size))
    except CorruptRecord as error:
        raise CorruptRecord(error.what, position=position, where=str(file.path)) from None


def find_sound_batch(file: File, position: int, end: int, offset: int) -> FoundBatch | None:
    """The first sound batch at or after `position` whose base offset is plausible behind `offset`.

    Looks at every byte, because the lengths of damaged batches cannot be trusted. A producer can
    fill its values with what looks like batches: after a number of bytes was checked that honest
    data never needs, the search ends, and what looked like a batch last counts as one.
    """
    furthest = offset + RECORDS_MAX * ((end - position) // HEADER_SIZE + 1)
    left = CHECKED_BYTES_FACTOR * (end - position) + SCAN_BLOCK_BYTES
    window = Window(file, SCAN_BLOCK_BYTES)
    while end - position >= HEADER_SIZE:
        block = window.at(position, min(SCAN_BLOCK_BYTES, end - position))
        for match in _HEADER_LIKE.finditer(block):
            found = _likely_batch_at(window, position + match.start(), end)
            if found is None or not offset <= found.header.base_offset <= furthest:
                continue
            left -= found.header.size
            if left < 0 or _is_sound(file, found):
                return found
        position += max(len(block) - HEADER_SIZE + 1, 1)
    return None


def _likely_batch_at(window: Window, position: int, end: int) -> FoundBatch | None:
    try:
        header = read_header(window.at(position, HEADER_SIZE))
    except CorruptRecord:
        return None
    return FoundBatch(position, header) if position + header.size <= end else None


def _is_sound(file: File, found: FoundBatch) -> bool:
    data = file.read(found.position, found.header.size)
    return len(data) == found.header.size and compute_crc(data) == found.header.crc
