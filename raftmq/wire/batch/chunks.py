"""Chunks of a columns batch: groups records by tags, and merges chunks back into offset order.

Owns which record goes to which chunk, and the way back: `ChunkedContents` is all that stands
behind the header. Invariant: the chunks' offset deltas are disjoint and lie within 0 to the
batch's last offset delta.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, repeat
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar

import msgspec
from crc32c import crc32c

from raftmq.model import Compression
from raftmq.wire.batch.columns import Chunk, Columns, Computed, encode_chunk, is_increasing
from raftmq.wire.batch.compression import compress
from raftmq.wire.batch.directory import TAGGED_CHUNKS_MAX, ChunkEntry, encode_directory
from raftmq.wire.batch.record_headers import NO_HEADERS, pack_headers, pack_mixed_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.arguments import CheckedRecords
    from raftmq.wire.batch.columns import Key, OpenedChunk, PackedColumn, Value
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.header import Account, Buffer, BytesOrigin
    from raftmq.wire.batch.record_headers import Headers

Item = TypeVar("Item")


def encode_chunks(
    records: CheckedRecords,
    codec: Compression,
    account: Account | None = None,
    *,
    has_check: bool = True,
    due_ms: int | None = None,
) -> list[bytes]:
    """Directory and chunks, as pieces to be joined."""
    entries: list[ChunkEntry] = []
    pieces: list[bytes] = []
    for tags, indexes in _deal_out(records):
        chosen = records if indexes is None else _choose(records, indexes)
        packed = _pack_headers(chosen, mixed=tags is None)
        columns = Columns(
            chosen.offset_deltas, chosen.timestamp_deltas, chosen.keys, chosen.values, packed
        )
        stored, length = _compressed(encode_chunk(columns), codec)
        entries.append(_entry(chosen.record_count, stored, length, tags))
        pieces += stored
    directory = encode_directory(entries, account, has_check=has_check, due_ms=due_ms)
    return [directory, *pieces]


def _deal_out(records: CheckedRecords) -> list[tuple[Tags | None, list[int] | None]]:
    """Each chunk's tags (None: mixed) and the indexes of its records (None: all)."""
    if records.tags is None:  # one untagged chunk: nearly all batches
        return [((), None)]
    groups: dict[Tags | None, list[int]] = {}
    mixed: list[int] = []
    for index, tags in enumerate(records.tags):
        # Each chunk costs a directory entry and compresses by itself: rare tag sets share one.
        if tags in groups or len(groups) < TAGGED_CHUNKS_MAX:
            groups.setdefault(tags, []).append(index)
        else:
            mixed.append(index)
    if mixed:
        groups[None] = mixed
    return [(records.tags[0], None)] if len(groups) == 1 else list(groups.items())


def _choose(records: CheckedRecords, indexes: list[int]) -> CheckedRecords:
    """Only the records at `indexes`."""
    offsets = _pick(records.offset_deltas, indexes) or indexes
    return records._replace(
        record_count=len(indexes),
        offset_deltas=None if offsets[-1] == len(indexes) - 1 else offsets,
        timestamp_deltas=_pick(records.timestamp_deltas, indexes),
        keys=_pick(records.keys, indexes),
        values=_pick(records.values, indexes),
        headers=_pick(records.headers, indexes),
        tags=_pick(records.tags, indexes),
    )


def _pick(column: Sequence[Item] | None, indexes: Sequence[int]) -> list[Item] | None:
    return None if column is None else [column[index] for index in indexes]


def _pack_headers(records: CheckedRecords, *, mixed: bool) -> list[bytes | None] | None:
    if mixed:
        headers = records.headers or [[]] * records.record_count
        return list(map(pack_mixed_headers, records.tags or (), headers))
    return None if records.headers is None else list(map(pack_headers, records.headers))


def _compressed(pieces: list[bytes], codec: Compression) -> tuple[list[bytes], int]:
    """The pieces as they are stored, and their length before compression."""
    length = sum(map(len, pieces))
    if codec is Compression.NONE:  # stored as pieces, without a copy
        return pieces, length
    return [compress(codec, b"".join(pieces))], length


def _entry(count: int, stored: list[bytes], length: int, tags: Tags | None) -> ChunkEntry:
    crc = 0
    for piece in stored:
        crc = crc32c(piece, crc)
    return ChunkEntry(count, sum(map(len, stored)), crc, length, tags)


def pick_records(chunk: Chunk, asked: TagFilter | None, left_out: frozenset[int]) -> Chunk | None:
    """Those records of a chunk that the filter lets pass, where they carry their own tags, and that
    are not left out, by their deltas; None: no record does.

    Raises:
        CorruptRecord: it cannot be decoded.
    """
    count = chunk.entry.record_count
    indexes: Sequence[int] = range(count)
    if asked is not None and chunk.entry.tags is None:
        indexes = [index for index in indexes if asked.matches(chunk.tags_at(index))]
    if left_out:
        deltas = chunk.opened.offset_deltas
        indexes = [index for index in indexes if deltas[index] not in left_out]
    if len(indexes) == count:
        return chunk
    return PickedChunk(chunk, indexes) if indexes else None


class PickedChunk(Chunk):
    """Some records of a chunk."""

    def __init__(self, chunk: Chunk, indexes: Sequence[int]) -> None:
        self._chunk, self._indexes = chunk, indexes
        self.entry = msgspec.structs.replace(chunk.entry, record_count=len(indexes))

    @cached_property
    def opened(self) -> OpenedChunk:
        whole = self._chunk.opened
        times = whole.timestamp_deltas
        return whole._replace(
            offset_deltas=array("I", map(whole.offset_deltas.__getitem__, self._indexes)),
            timestamp_deltas=times and array(times.typecode, _pick(times, self._indexes) or ()),
        )

    def keys(self) -> Sequence[Key]:
        return _pick(self._chunk.keys(), self._indexes) or ()

    def values(self) -> Sequence[Value]:
        return _pick(self._chunk.values(), self._indexes) or ()

    def packed(self, column: PackedColumn) -> Buffer | None:
        return None

    def headers_at(self, index: int) -> Headers:
        return self._chunk.headers_at(self._indexes[index])

    def tags_at(self, index: int) -> Tags:
        return self._chunk.tags_at(self._indexes[index])


class ChunkedContents:
    """The records of all chunks, as columns in offset order."""

    def __init__(
        self, chunks: Sequence[Chunk], last_offset_delta: int, origin: BytesOrigin
    ) -> None:
        self.chunks = chunks
        self._last_offset_delta = last_offset_delta
        self._origin = origin

    @cached_property
    def offset_deltas(self) -> range | array[int]:
        order = self._order
        deltas = self.chunks[0].opened.offset_deltas
        if order is not None:
            deltas = array("I", map(self._concatenated_deltas().__getitem__, order))
            if not is_increasing(deltas):  # checked here, as sorting put equal offsets side by side
                raise self._origin.corrupt("two chunks claim the same offset")
        if deltas[-1] > self._last_offset_delta:  # the header would give the batch too few offsets
            raise self._origin.corrupt(
                f"offset delta {deltas[-1]}, the last one is {self._last_offset_delta}"
            )
        return deltas

    @cached_property
    def _order(self) -> array[int] | None:
        """Record numbers, counted through all chunks, in offset order; None: one chunk, in order
        already."""
        if len(self.chunks) == 1:
            return None
        deltas = self._concatenated_deltas()
        return array("I", sorted(range(len(deltas)), key=deltas.__getitem__))

    def _concatenated_deltas(self) -> array[int]:
        deltas = array("I")
        for chunk in self.chunks:
            deltas.extend(chunk.opened.offset_deltas)
        return deltas

    @cached_property
    def timestamp_deltas(self) -> array[int] | None:
        columns = [chunk.opened.timestamp_deltas for chunk in self.chunks]
        if self._order is None:
            return columns[0]
        if not any(columns):  # no chunk has the column: all records have the base timestamp
            return None
        deltas = array("q")
        for chunk, column in zip(self.chunks, columns, strict=True):
            deltas.extend(iter(column) if column else repeat(0, chunk.entry.record_count))
        return array("q", map(deltas.__getitem__, self._order))

    def keys(self) -> Sequence[Key]:
        return self._merged(methodcaller("keys"))

    def values(self) -> Sequence[Value]:
        return self._merged(methodcaller("values"))

    def packed(self, column: PackedColumn) -> Buffer | None:
        """See `RecordBatch.packed`."""
        assert self.offset_deltas  # as in `_merged`
        return self.chunks[0].packed(column) if self._order is None else None

    def _merged(self, read: Callable[[Chunk], Sequence[Item]]) -> Sequence[Item]:
        deltas = self.offset_deltas  # first: small, and checked before anything larger is decoded
        if self._order is None:
            return read(self.chunks[0])
        column: list[Item] = []
        for chunk in self.chunks:
            column.extend(read(chunk))
        assert len(column) == len(deltas)
        return list(map(column.__getitem__, self._order))

    def headers(self) -> Sequence[Headers]:
        count = len(self.offset_deltas)
        if not any(chunk.opened.headers for chunk in self.chunks):
            return (NO_HEADERS,) * count
        if self._order is None:  # one chunk: indexes need no mapping
            return Computed(count, self.chunks[0].headers_at)
        return Computed(count, self._headers_at)

    def tags(self) -> Sequence[Tags]:
        count = len(self.offset_deltas)
        if self._order is None and (tags := self.chunks[0].entry.tags) is not None:
            return (tags,) * count
        return Computed(count, self._tags_at)

    def _headers_at(self, index: int) -> Headers:
        chunk, index = self._place_of(index)
        return chunk.headers_at(index)

    def _tags_at(self, index: int) -> Tags:
        chunk, index = self._place_of(index)
        return chunk.tags_at(index)

    def _place_of(self, index: int) -> tuple[Chunk, int]:
        """The chunk of a record, and its index in there."""
        number = index if self._order is None else self._order[index]
        chunk = bisect_right(self._chunk_starts, number) - 1
        return self.chunks[chunk], number - self._chunk_starts[chunk]

    @cached_property
    def _chunk_starts(self) -> list[int]:
        return list(accumulate([chunk.entry.record_count for chunk in self.chunks], initial=0))
