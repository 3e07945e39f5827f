"""What was acknowledged against what was read: nothing missing, doubled or out of order.

Pure. Records are distinguished by partition, key and value, so that no two with one key may have
the same value. Order counts within a key, which is what a partition promises.

Nothing may be there twice, though batches were sent again when their outcome was unknown:
producers number what they send.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SentRecord(NamedTuple):
    """A record that was acknowledged.

    Attributes:
        offset: where it stands, as the acknowledgement says.
    """

    partition: int
    offset: int
    key: bytes
    value: bytes


class ReadRecord(NamedTuple):
    """A record that a consumer has read."""

    partition: int
    offset: int
    key: bytes
    value: bytes


class Comparison(NamedTuple):
    """Numbers of records that are wrong.

    Attributes:
        missing: acknowledged, and not read.
        doubled: second copies.
        out_of_order: so many would have to be moved for each key to be in order.
        misplaced: read, but not at the offset that was acknowledged.
        unknown: read, and never acknowledged.
    """

    missing: int = 0
    doubled: int = 0
    out_of_order: int = 0
    misplaced: int = 0
    unknown: int = 0

    @property
    def faults(self) -> dict[str, int]:
        """By name, those that there are."""
        return {name.replace("_", " "): count for name, count in self._asdict().items() if count}


def compare(sent: Iterable[SentRecord], read: Iterable[ReadRecord]) -> Comparison:
    """Both in their order within each key."""
    sent_of: defaultdict[tuple[int, bytes], list[SentRecord]] = defaultdict(list)
    read_of: defaultdict[tuple[int, bytes], list[ReadRecord]] = defaultdict(list)
    for one in sent:
        sent_of[one.partition, one.key].append(one)
    for other in read:
        read_of[other.partition, other.key].append(other)
    found = [
        _compare_key(sent_of.get(key, []), read_of.get(key, []))
        for key in sent_of.keys() | read_of.keys()
    ]
    return Comparison(*map(sum, zip(*found, strict=True)))


def _compare_key(sent: Sequence[SentRecord], read: Sequence[ReadRecord]) -> Comparison:
    number_of = {record.value: number for number, record in enumerate(sent)}
    assert len(number_of) == len(sent), f"two records of key {sent[0].key!r} look alike"
    numbers = [number_of[record.value] for record in read if record.value in number_of]
    times_read = Counter(numbers)
    places = {(record.value, record.offset) for record in read}
    return Comparison(
        missing=len(sent) - len(times_read),
        doubled=len(numbers) - len(times_read),
        out_of_order=len(times_read) - _longest_ascent(numbers),
        misplaced=sum((sent[each].value, sent[each].offset) not in places for each in times_read),
        unknown=len(read) - len(numbers),
    )


def _longest_ascent(numbers: Iterable[int]) -> int:
    """How many can be left standing so that they ascend; a number that comes twice counts once."""
    lowest_ends: list[int] = []  # of ascents of 1, 2, 3 ... numbers
    for number in numbers:
        place = bisect_left(lowest_ends, number)
        lowest_ends[place : place + 1] = [number]
    return len(lowest_ends)
