"""Which records are still to be taken: from where, up to where, and how many. Pure.

Ends are exclusive. A partition without an end goes on for ever. What is before an end need not be a
record: control batches take offsets, too, and are never handed out. So an end is reached by what is
taken, or by where reading goes on (`reach`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.data.offset_option import From, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Key = tuple[str, int]  # topic and partition


class Bounds(NamedTuple):
    """What a partition holds, and where a time lies in it.

    Attributes:
        at_time: None: no record is so young, or no time is asked for.
    """

    start: int
    end: int
    at_time: int | None = None


class Range(NamedTuple):
    """Attributes:
    start: where reading begins.
    end: None: nowhere.
    first: what is before it is not wanted. It is beyond `start` where the partition has not grown
        so far yet.
    """

    start: int
    end: int | None
    first: int = 0

    @property
    def is_empty(self) -> bool:
        return self.end is not None and max(self.start, self.first) >= self.end


def range_of(wanted: From, bounds: Bounds, *, until_end: bool) -> Range:
    end = bounds.end if until_end else None
    match wanted.place:
        case Place.START:
            return Range(bounds.start, end)
        case Place.END:
            return Range(bounds.end, end)
        case Place.OFFSET:
            start = min(max(wanted.number, bounds.start), bounds.end)
            return Range(start, end, wanted.number)
        case Place.LAST:
            return Range(max(bounds.start, bounds.end - wanted.number), end)
        case Place.TIME:
            return Range(bounds.end if bounds.at_time is None else bounds.at_time, end)


class Extent:
    """What one command takes.

    Args:
        ranges: of some partitions; of others everything is taken.
        records_max: of all partitions together; None: no limit.
    """

    def __init__(self, ranges: Mapping[Key, Range], records_max: int | None = None) -> None:
        self._ranges = {key: one for key, one in ranges.items() if not one.is_empty}
        self._open = {key for key, one in self._ranges.items() if one.end is not None}
        self._has_end = any(one.end is not None for one in ranges.values())
        self._left = records_max

    @property
    def is_over(self) -> bool:
        return self._left == 0 or (self._has_end and not self._open)

    def take(self, key: Key, offsets: Sequence[int], end_offset: int) -> slice:
        """Which of these records are wanted; they count as taken.

        Args:
            end_offset: where reading goes on after them.
        """
        start, stop = 0, len(offsets)
        if (wanted := self._ranges.get(key)) is not None:
            if offsets[0] < wanted.first:
                start = bisect_left(offsets, wanted.first)
            if wanted.end is not None and end_offset >= wanted.end:
                stop = bisect_left(offsets, wanted.end)
                self._open.discard(key)
        if self._left is not None:
            stop = min(stop, start + self._left)
            self._left -= max(stop - start, 0)
        return slice(start, max(start, stop))

    @property
    def unread(self) -> list[Key]:
        """Partitions that have an end which is not reached yet."""
        return sorted(self._open)

    def reach(self, key: Key, position: int | None) -> None:
        """Reading has come so far; what is before it and was not taken is no record.

        Args:
            position: None: where reading begins is not known yet.
        """
        if position is None or (wanted := self._ranges.get(key)) is None:
            return
        if wanted.end is not None and position >= wanted.end:
            self._open.discard(key)

    def is_open(self, key: Key) -> bool:
        """Whether more of that partition is wanted."""
        return key in self._open or (key not in self._ranges or self._ranges[key].end is None)
