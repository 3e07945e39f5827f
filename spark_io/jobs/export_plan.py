"""The plan of an export: the gaps between its files, cut into ranges at fixed multiples. Pure.

Ends are exclusive. The names of files are all that is known of earlier runs, so a plan begins with
every offset from 0 on and takes away what files hold. Invariants: no offset is in two ranges, or in
a range and a file; a range ends where every run would end it (at a multiple of the records per
file, at a file, or at the log start offset), unless it is the end of the log and that was asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from raftmq.errors import OffsetOutOfRange
from spark_io.jobs.causes import JobError
from spark_io.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Planned:
    """`is_lost`: retention has deleted it before it was exported; its file will have no rows."""

    range: OffsetRange
    is_lost: bool = False


def plan(
    log: OffsetRange, files: Iterable[OffsetRange], *, records_per_file: int, is_final: bool
) -> list[Planned]:
    """The missing ranges, in order.

    Args:
        log: the partition's log start and end offset now.
        files: of this partition.
        is_final: the last file may hold fewer offsets than the others.

    Raises:
        JobError: files overlap.
        OffsetOutOfRange: files hold offsets that the partition never had.
    """
    have = sorted(files)
    _check(log, have)
    planned: list[Planned] = []
    for gap in _gaps(log, have):
        begin = min(max(gap.start, log.start), gap.end)
        if gap.start < begin:  # retention was faster than the exports
            planned.append(Planned(_part(log, gap.start, begin), is_lost=True))
        pieces = _cut(_part(log, begin, gap.end), records_per_file)
        planned += [Planned(piece) for piece in pieces]
    # A short last file would overlap with the full one of a later run.
    if planned and not is_final and _is_short(planned[-1], log, records_per_file):
        planned.pop()
    return planned


def check_loss(planned: Iterable[Planned]) -> None:
    """Raises: OffsetOutOfRange: something is lost; names each range."""
    losses = [str(each.range) for each in planned if each.is_lost]
    if losses:
        raise OffsetOutOfRange(
            f"deleted before it was exported: {', '.join(losses)}; --allow-loss notes that down in "
            "files without rows, and exports what is left"
        )


def _check(log: OffsetRange, have: Sequence[OffsetRange]) -> None:
    for one, other in pairwise(have):
        if other.start < one.end:
            raise JobError(
                f"the files of {one} and {other} overlap: move one of them away, and run again"
            )
    if have and have[-1].end > log.end:
        raise OffsetOutOfRange(
            f"there is a file of {have[-1]}, but the partition ends at offset {log.end}: was the "
            "topic deleted and created again? Export it to another folder"
        )


def _gaps(log: OffsetRange, have: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
    ends = [0, *(each.end for each in have)]
    starts = [*(each.start for each in have), log.end]
    for end, start in zip(ends, starts, strict=True):
        if end < start:
            yield _part(log, end, start)


def _cut(gap: OffsetRange, size: int) -> Iterator[OffsetRange]:
    """At multiples of `size`, so that every run cuts at the same offsets."""
    start = gap.start
    while start < gap.end:
        end = min((start // size + 1) * size, gap.end)
        yield _part(gap, start, end)
        start = end


def _is_short(last: Planned, log: OffsetRange, size: int) -> bool:
    """It ends at the log's end of this moment, so that the next run would end it elsewhere."""
    return not last.is_lost and last.range.end == log.end and log.end % size != 0


def _part(log: OffsetRange, start: int, end: int) -> OffsetRange:
    return OffsetRange(log.topic, log.partition, start, end)
