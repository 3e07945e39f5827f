"""Offset ranges that the tasks of a query read: gaps by data loss, and who reads what. Pure.

Ends are exclusive. Invariants: the pieces of a split are the whole of each range, in order, without
gaps and overlaps; no range is empty; a task has one range of a partition at most. What a task reads
follows from offsets and options alone: not from the size of the cluster, which may differ when a
microbatch is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from spark_io.offsets import Offsets, first_offsets, flat, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, order=True)
class OffsetRange:
    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of records at most: some offsets may have none."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}:{self.end}]"


def ranges(start: Offsets, end: Offsets, begins: Offsets) -> list[OffsetRange]:
    """What there is to read from `start` to `end`, a range for each partition that has any.

    Args:
        begins: log start offsets, at least of the partitions that are new in `end`, which begin
            there, as do those that end before their start. Offsets before them are skipped:
            `check_loss` reports both.
    """
    ends = flat(end)
    return [
        OffsetRange(*key, first, ends[key])
        for key, first in sorted(first_offsets(start, end, begins).items())
        if first < ends[key]
    ]


def check_loss(start: Offsets, end: Offsets, begins: Offsets) -> list[str]:
    """A sentence for each partition that has lost records which were to be read."""
    stopped, ends, begun = flat(start), flat(end), flat(begins)
    losses = []
    for key in sorted(stopped.keys() | ends.keys()):
        if key in stopped:  # else it was added since: all of it was to be read
            loss = _loss(stopped[key], ends.get(key), begun.get(key, 0))
        else:
            loss = _loss_of_added(begun.get(key))
        if loss:
            losses.append(f"{name_of(key)} {loss}")
    return losses


def split(
    whole: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges into more tasks, as Spark's source for Kafka does it.

    Args:
        min_partitions: about so many tasks at least: larger ranges are cut into more pieces, and
            those that are too small for two stay whole. Rounding may give some more or fewer.
        max_records: no piece is larger.
    """
    pieces = [each for each in whole if each.size > 0]
    if max_records is not None:
        pieces = [part for each in pieces for part in _cut(each, -(-each.size // max_records))]
    # After the cut by size, which may have made enough of them.
    if min_partitions is not None and len(pieces) < min_partitions:
        pieces = _spread(pieces, min_partitions)
    return pieces


def tasks(
    whole: Sequence[OffsetRange],
    *,
    min_records: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[OffsetRange]]:
    """What each task reads, one range after the other.

    Args:
        min_records: ranges with fewer are read together, until a task has so many.
        min_partitions, max_records: as `split` has them; they come before `min_records`.
    """
    pieces = split(whole, max_records=max_records)
    if min_partitions is not None and len(pieces) < min_partitions:
        return [[each] for each in split(pieces, min_partitions=min_partitions)]
    grouped = _grouped(pieces, min_records, max_records)
    return grouped if len(grouped) >= (min_partitions or 0) else [[each] for each in pieces]


def _grouped(
    pieces: Iterable[OffsetRange], min_records: int, max_records: int | None
) -> list[list[OffsetRange]]:
    """Neighbours together. The last group may stay small."""
    groups: list[list[OffsetRange]] = []
    size = min_records  # of the last group: as if there were a full one
    for each in pieces:
        is_full = max_records is not None and size + each.size > max_records
        if size >= min_records or is_full:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    return groups


def _loss(stopped: int, end: int | None, begin: int) -> str:
    # 1. The partition was deleted. 2. Its log ends before what was read. 3. Retention was faster.
    if end is None:
        return f"is gone, with what was to be read from offset {stopped} on"
    if end < stopped:
        # Without the end: a read limit may have lowered it.
        return (
            f"ends before offset {stopped}, where reading is to go on, as after the topic was "
            f"deleted and created again; what is there now begins at offset {begin}"
        )
    if stopped < min(begin, end):
        return f"has lost the offsets {stopped} to {min(begin, end) - 1}: deleted before being read"
    return ""


def _loss_of_added(begin: int | None) -> str:
    if begin is None:
        return "was added and is gone again"
    return f"was added and begins at offset {begin}: what was before is deleted" if begin else ""


def _spread(pieces: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Share tasks among the large ranges, after those that stay whole have got theirs."""
    total = sum(each.size for each in pieces)
    small = {each for each in pieces if _share(each.size, total, min_partitions) == 1}
    total -= sum(each.size for each in small)
    wanted = max(min_partitions - len(small), 1)
    return [
        part
        for each in pieces
        for part in _cut(each, 1 if each in small else _share(each.size, total, wanted))
    ]


def _share(size: int, total: int, wanted: int) -> int:
    """Its share of the tasks, rounded half up, but one at least."""
    return max((2 * size * wanted + total) // (2 * total), 1)


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Pieces whose sizes differ by one record at most."""
    count = min(count, whole.size)
    marks = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, start, end) for start, end in pairwise(marks)]
