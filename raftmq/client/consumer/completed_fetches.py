"""What was fetched of one partition and not handed out yet. Pure.

Owns the batches as they came, in a row, and their bytes; decodes a batch when its records are
about to be handed out. Control batches are for readers of transactions: they are passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

from raftmq.client.consumer.batch import BatchPart
from raftmq.errors import RaftmqError
from raftmq.wire.batch.header import BytesOrigin
from raftmq.wire.batch.records import DecodeLimits, RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.wire.batch.header import BatchHeader, Buffer

LIMITS = DecodeLimits()


class CompletedFetch:
    """One batch as it came, whole at `position` of `data`; header and CRC have been checked."""

    def __init__(self, data: Buffer, position: int, header: BatchHeader, *, where: str) -> None:
        self.header = header
        self._data, self._origin = data, BytesOrigin(position, where)

    @cached_property
    def batch(self) -> RecordBatch:
        """Raises CorruptRecord, UnsupportedCompression."""
        return RecordBatch(self._data, self.header, self._origin, LIMITS)

    def part(self, position: int, *, records_max: int) -> BatchPart:
        """From the first record at or after `position` on; it may be empty.

        Raises:
            CorruptRecord, UnsupportedCompression.
        """
        header, start = self.header, 0
        if header.is_control:
            return BatchPart(self.batch, 0, 0)
        if position > header.base_offset:
            start = bisect_left(self.batch.offsets, position)
        return BatchPart(self.batch, start, min(header.record_count, start + records_max))


class CompletedFetches:
    """Attributes:
    byte_count: of all batches of which a record may be left.
    """

    def __init__(self) -> None:
        self._pieces: deque[CompletedFetch] = deque()
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Iterable[CompletedFetch]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            self.byte_count += piece.header.size

    def clear(self) -> None:
        self._pieces.clear()
        self.byte_count = 0

    def peek(self, position: int, *, records_max: int) -> list[BatchPart]:
        """The next records from `position` on, out of as many batches as it takes.

        What cannot be decoded ends them, and is told once it is the first.

        Raises:
            CorruptRecord, UnsupportedCompression: the first of them cannot be decoded.
        """
        parts: list[BatchPart] = []
        for piece in self._pieces:
            try:
                part = piece.part(position, records_max=records_max)
            except RaftmqError:
                if parts:
                    break
                raise
            if part.start < part.stop:
                parts.append(part)
                records_max -= part.stop - part.start
            if records_max == 0:
                break
        return parts

    def pass_over(self, offset: int) -> tuple[int, int | None]:
        """Where records may go on after what ends at `offset`: behind control batches.

        Returns:
            And the epoch of the last of these; None: there is none.
        """
        epoch = None
        for piece in self._pieces:
            header = piece.header
            if header.end_offset <= offset:
                continue
            if not header.is_control or header.base_offset > offset:
                break
            offset, epoch = header.end_offset, header.leader_epoch
        return offset, epoch

    def drop_before(self, position: int) -> tuple[int, int | None]:
        """Forget what ends there, and what follows without any records.

        Returns:
            Where records go on, and the epoch of the batch that reaches up to there; None: it is
            none of these.
        """
        epoch = None
        while self._pieces:
            header = self._pieces[0].header
            if header.base_offset < position or header.is_control:
                epoch = header.leader_epoch
            if header.end_offset > position and not header.is_control:
                break
            self._pieces.popleft()
            self.byte_count -= header.size
            position = max(position, header.end_offset)
        return position, epoch
