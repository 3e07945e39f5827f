"""Fetched batches of one partition that were not handed out yet, decoded lazily. Pure.

Kafka: CompletedFetch. Owns the batches in log order, and their bytes; decodes a batch only when its
records are about to be handed out. Batches without records for the program are passed over, and
never decoded: control batches, and those of aborted transactions.
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

# The defaults: batches come from other programs, so decoding bounds what they may allocate.
LIMITS = DecodeLimits()


class CompletedFetch:
    """One batch, whole at `position` of `data`; its header and CRC have been checked.

    Attributes:
        is_passed_over: it has no record for the program: a control batch, or an aborted one.
    """

    def __init__(
        self,
        data: Buffer,
        position: int,
        header: BatchHeader,
        *,
        where: str,
        is_aborted: bool = False,
    ) -> None:
        self.header = header
        self.is_passed_over = is_aborted or header.is_control
        self._data, self._origin = data, BytesOrigin(position, where)

    @cached_property
    def batch(self) -> RecordBatch:
        """Raises CorruptRecord, UnsupportedCompression."""
        return RecordBatch(self._data, self.header, self._origin, LIMITS)

    def part(self, position: int, *, records_max: int) -> BatchPart:
        """Its records from the first one at or after `position` on; may be empty. Not of a batch
        that is passed over.

        Raises:
            CorruptRecord, UnsupportedCompression: it cannot be decoded.
        """
        assert not self.is_passed_over, "no record of it is for the program"
        header, start = self.header, 0
        # The fetch began within the batch, or part was handed out
        if position > header.base_offset:
            start = bisect_left(self.batch.offsets, position)
        return BatchPart(self.batch, start, min(header.record_count, start + records_max))


class CompletedFetches:
    """The batches of one partition that wait to be handed out.

    Attributes:
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

        A batch that cannot be decoded ends them; its error is raised once it is the first.

        Raises:
            CorruptRecord, UnsupportedCompression: the first batch cannot be decoded.
        """
        parts: list[BatchPart] = []
        for piece in self._pieces:
            if piece.is_passed_over:
                continue
            try:
                part = piece.part(position, records_max=records_max)
            except RaftmqError:
                if parts:  # hand out what is before the damage; its error comes next
                    break
                raise
            if part.start < part.stop:
                parts.append(part)
                records_max -= part.stop - part.start
            if records_max == 0:
                break
        return parts

    def pass_over(self, offset: int) -> tuple[int, int | None]:
        """The offset at which records go on after `offset`: behind what is passed over.

        Returns:
            That offset, and the leader epoch of the last batch passed over; None without any.
        """
        epoch = None
        for piece in self._pieces:
            header = piece.header
            if header.end_offset <= offset:  # handed out already
                continue
            if not piece.is_passed_over or header.base_offset > offset:  # records follow, or a gap
                break
            offset, epoch = header.end_offset, header.leader_epoch
        return offset, epoch

    def drop_before(self, position: int) -> tuple[int, int | None]:
        """Drop batches before `position`, and those that follow and are passed over.

        Returns:
            Where records go on, and the leader epoch of the batch that reaches up to there; None:
            it is none of these.
        """
        epoch = None
        while self._pieces:
            header, is_passed_over = self._pieces[0].header, self._pieces[0].is_passed_over
            # This batch reaches up to the position, so its epoch is that of the record before.
            if header.base_offset < position or is_passed_over:
                epoch = header.leader_epoch
            if header.end_offset > position and not is_passed_over:  # records are left in it
                break
            self._pieces.popleft()
            self.byte_count -= header.size
            position = max(position, header.end_offset)
        return position, epoch
