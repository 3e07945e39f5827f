"""What was read of one partition for a fetch, and how far a filtered request has looked. Pure.

Owns the limits of looking: after so many batches a request is answered, so that its reader learns
how far it has come, also where nothing passes its filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.partition.filtered_read import FilterLimits
from raftmq.wire.messages.fetch import (
    ABORTED_MAX,
    LEFT_OUT_MAX,
    AbortedTransaction,
    LeftOutRange,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.partition.epochs import LeaderEpochs
    from raftmq.partition.filtered_read import FilteredSlice
    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.rpc.reply import Piece

# Work of one pass on the loop, of all partitions together, about 1 ms: 64 batches of one tag set.
# Other requests have their turn in between.
LOOK_UNITS = 576
# Batches that one request looks at, and how long it does so where the disk is slow; then it is
# answered, so that its reader learns how far it has come, and others have their turn.
LOOKED_MAX, LOOK_SECONDS_MAX = 3_000, 0.1


class Records(msgspec.Struct, frozen=True):
    """Whole batches, of `length` bytes, in memory or in a file.

    Attributes:
        left_out: what a filter has left out, between them and behind them.
        is_cut: more is there than was read.
    """

    end_offset: int
    pieces: Sequence[Piece]
    length: int
    aborted: tuple[AbortedTransaction, ...] = ()
    left_out: tuple[LeftOutRange, ...] = ()
    is_cut: bool = False

    @property
    def row_count(self) -> int:
        """Rows about them in the answer's header."""
        return len(self.aborted) + len(self.left_out)


NO_RECORDS = Records(0, (), 0)


def told_aborted(aborted: Sequence[Aborted]) -> tuple[AbortedTransaction, ...]:
    return tuple([AbortedTransaction(*one) for one in aborted[:ABORTED_MAX]])


class Looked:
    """How far a request with a filter has looked at a partition, and what it has found.

    Attributes:
        leader_epoch: the leadership in which it looked; in another one the log may be another.
        next_offset: where it goes on.
        length: bytes that it has found.
    """

    def __init__(self, offset: int, leader_epoch: int) -> None:
        self.next_offset, self.leader_epoch = offset, leader_epoch
        self._pieces: list[Piece] = []
        self._left_out: list[LeftOutRange] = []
        self.length = self._batch_count = 0
        self._is_full = False
        self._end_seen = -1  # the end for the reader, before which no batch ends any more

    def limits(self, bytes_max: int, units_max: int) -> FilterLimits:
        ranges_max = LEFT_OUT_MAX - len(self._left_out)
        left = bytes_max - self.length
        return FilterLimits(left, units_max, ranges_max, is_first=not self.length)

    def add(self, part: FilteredSlice, end_offset: int, epochs: LeaderEpochs) -> None:
        """`epochs`: of the log, which says what the bytes before a batch's CRC cannot vouch for."""
        assert part.start_offset <= self.next_offset, "looked at from somewhere else"
        self._is_full = part.is_full
        # The next batch ends behind what the reader may see.
        if part.end_offset == self.next_offset and not part.is_full:
            self._end_seen = end_offset
        self.next_offset = part.end_offset
        self._pieces += part.pieces
        self.length += part.length
        self._batch_count += part.batch_count
        for start, end in part.left_out:
            if self._left_out and self._left_out[-1].end_offset == start:
                start = self._left_out.pop().start_offset
            self._left_out.append(LeftOutRange(start, end, epochs.epoch_at(end - 1)))

    def stop(self) -> None:
        """What was found is answered, and no more looked at."""
        self._is_full = True

    def goes_on(self, end_offset: int, bytes_max: int) -> bool:
        """Whether to look at more, up to `end_offset`."""
        if self.next_offset >= end_offset or self._end_seen == end_offset:
            return False
        return not (self._is_full or self.length >= bytes_max or self._is_long)

    @property
    def _is_long(self) -> bool:
        return self._batch_count >= LOOKED_MAX or len(self._left_out) >= LEFT_OUT_MAX

    def records(self, end_offset: int, aborted: Sequence[Aborted]) -> Records:
        is_cut = self.next_offset < end_offset and self._end_seen != end_offset
        return Records(
            self.next_offset,
            tuple(self._pieces),
            self.length,
            told_aborted(aborted),
            tuple(self._left_out),
            is_cut,
        )
