"""Fetched batches of one partition that were not handed out yet, decoded lazily. Pure.

Kafka: CompletedFetch. Owns the batches in log order, and their bytes; decodes a batch only when its
records are about to be handed out. What has no records for the program is passed over, and never
decoded: control batches, those of aborted transactions, and what the broker has left out, by a
filter of tags or as it is scheduled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.client.consumer.batch import BatchPart
from raftmq.errors import RaftmqError
from raftmq.wire.batch.header import BytesOrigin
from raftmq.wire.batch.records import DecodeLimits, RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.header import BatchHeader, Buffer

# The defaults: batches come from other programs, so decoding bounds what they may allocate.
LIMITS = DecodeLimits()


class PassedOver(NamedTuple):
    """Offsets of which nothing was sent: no record there is for this reader.

    Attributes:
        leader_epoch: of the last batch there.
    """

    base_offset: int
    end_offset: int
    leader_epoch: int
    size: int = 0
    is_passed_over: bool = True


class CompletedFetch:
    """One batch at `position` of `data`, whole or partial, which has been checked.

    Args:
        size: bytes of the batch there; of a partial one fewer than its header says.
        asked: only the records that this filter lets pass are for the program.

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
        size: int | None = None,
        asked: TagFilter | None = None,
    ) -> None:
        self.header = header
        self.base_offset, self.end_offset = header.base_offset, header.end_offset
        self.leader_epoch = header.leader_epoch
        self.size = header.size if size is None else size
        self.is_passed_over = is_aborted or header.is_control
        self._data, self._origin, self._asked = data, BytesOrigin(position, where), asked

    @cached_property
    def batch(self) -> RecordBatch:
        """Raises CorruptRecord, UnsupportedCompression."""
        return RecordBatch(self._data, self.header, self._origin, LIMITS, self._asked)

    def part(self, position: int, *, records_max: int) -> BatchPart:
        """Its records from the first one at or after `position` on; may be empty. Not of a batch
        that is passed over.

        Raises:
            CorruptRecord, UnsupportedCompression: it cannot be decoded.
        """
        assert not self.is_passed_over, "no record of it is for the program"
        count = self.batch.header.record_count  # the header may count some that are left out
        start = 0
        # The fetch began within the batch, or part was handed out
        if count and position > self.base_offset:
            start = bisect_left(self.batch.offsets, position)
        return BatchPart(self.batch, start, min(count, start + records_max))


Fetched: TypeAlias = CompletedFetch | PassedOver


class CompletedFetches:
    """The batches of one partition that wait to be handed out.

    Attributes:
        byte_count: of all batches of which a record may be left.
    """

    def __init__(self) -> None:
        self._pieces: deque[Fetched] = deque()
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Iterable[Fetched]) -> None:
        for piece in pieces:
            last = self._pieces[-1] if self._pieces else None
            # One for all that follow each other, so that a program that stands still keeps few.
            if isinstance(last, PassedOver) and isinstance(piece, PassedOver):
                self._pieces[-1] = piece._replace(base_offset=last.base_offset)
            else:
                self._pieces.append(piece)
            self.byte_count += piece.size

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
            if isinstance(piece, PassedOver) or piece.is_passed_over:
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
            if piece.end_offset <= offset:  # handed out already
                continue
            if not piece.is_passed_over or piece.base_offset > offset:  # records follow, or a gap
                break
            offset, epoch = piece.end_offset, piece.leader_epoch
        return offset, epoch

    def drop_before(self, position: int) -> tuple[int, int | None]:
        """Drop batches before `position`, and those that follow and are passed over.

        Returns:
            Where records go on, and the leader epoch of the batch that reaches up to there; None:
            it is none of these.
        """
        epoch = None
        while self._pieces:
            piece = self._pieces[0]
            # This batch reaches up to the position, so its epoch is that of the record before.
            if piece.base_offset < position or piece.is_passed_over:
                epoch = piece.leader_epoch
            if piece.end_offset > position and not piece.is_passed_over:  # records are left in it
                break
            self._pieces.popleft()
            self.byte_count -= piece.size
            position = max(position, piece.end_offset)
        return position, epoch
