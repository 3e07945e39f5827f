"""Offsets of many partitions: how Spark keeps them, and how far a microbatch goes. Pure.

Ends are exclusive. Invariant: equal offsets give equal JSON texts, which Spark compares; partitions
are in order, and a topic without any does not appear.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Key: TypeAlias = tuple[str, int]  # topic, partition
Offsets: TypeAlias = dict[str, dict[int, int]]  # topic -> partition -> offset

OFFSET_MAX = (1 << 63) - 1
PARTITION_MAX = (1 << 31) - 1
EXAMPLE = '{"topic": {"0": 5, "1": 7}}'
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def name_of(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def flat(offsets: Offsets) -> dict[Key, int]:
    return {
        (topic, partition): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def nested(offsets: Mapping[Key, int]) -> Offsets:
    """In order."""
    found: Offsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[partition] = offset
    return found


def to_json_dict(offsets: Offsets) -> dict[str, dict[str, int]]:
    """For Spark's checkpoint."""
    ordered = nested(flat(offsets))
    return {
        topic: {str(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in ordered.items()
    }


def from_json_dict(found: object) -> Offsets:
    """Out of Spark's checkpoint.

    Raises:
        InvalidConfig: they are no offsets of this source.
    """
    try:
        return numbers_of_partitions(found)
    except ValueError as error:
        way_out = (
            "was it written by another source? Give this query a checkpointLocation of its own"
        )
        raise InvalidConfig([f"offsets in the checkpoint: {error}; {way_out}"]) from None


def numbers_of_partitions(found: object, *, low: int = 0) -> Offsets:
    """Out of JSON: topic -> partition -> a number that is at least `low`.

    Raises:
        ValueError: says which part is something else.
    """
    return nested(dict(_numbers(found, low)))


def first_offsets(start: Offsets, end: Offsets, begins: Offsets) -> dict[Key, int]:
    """Where reading begins in each partition of `end`: where it stopped, or where the log begins
    by now, if that is later or the partition is new.

    Args:
        begins: log start offsets, at least of the partitions that `start` does not have. One of
            which neither is known is left out.
    """
    stopped, begun = flat(start), flat(begins)
    return {
        key: max(stopped.get(key, 0), begun.get(key, 0))
        for key in flat(end)
        if key in stopped or key in begun
    }


def limited(start: Offsets, end: Offsets, max_records: int | None, *, begins: Offsets) -> Offsets:
    """Where a microbatch ends that begins at `start` and takes about `max_records`, at most to
    `end`; None: all.

    As in Spark's source for Kafka each partition has a share by its lag, rounded down, and one
    record if that is less: so none starves, each with a lag goes on, and there may be more than
    `max_records`, by at most one record for each partition whose share is below one.
    """
    lags = _lags(start, end, begins)
    total = sum(lags.values())
    if max_records is None or total <= max_records:
        return nested(flat(end))
    until = flat(end)
    for key, lagging in lags.items():
        until[key] -= lagging - max(1, max_records * lagging // total)
    return nested(until)


def is_enough(
    start: Offsets, end: Offsets, min_records: int, *, begins: Offsets | None = None
) -> bool:
    """Whether there is so much that a microbatch should not wait for more."""
    return lag(start, end, begins=begins) >= min_records


def lag(start: Offsets, end: Offsets, *, begins: Offsets | None = None) -> int:
    """Offsets from `start` to `end`. A partition that is new, and of which `begins` does not say
    where it begins, does not count; one that ends before its start does not, either.
    """
    return sum(_lags(start, end, begins or {}).values())


def is_whole(found: object, low: int, high: int) -> TypeGuard[int]:
    """Of what JSON may hold."""
    return isinstance(found, int) and not isinstance(found, bool) and low <= found <= high


def _lags(start: Offsets, end: Offsets, begins: Offsets) -> dict[Key, int]:
    """Of those that have any."""
    ends = flat(end)
    firsts = first_offsets(start, end, begins)
    return {key: ends[key] - first for key, first in firsts.items() if first < ends[key]}


def _numbers(found: object, low: int) -> Iterator[tuple[Key, int]]:
    for topic, partitions in _members(found, "topics").items():
        for partition, number in _members(partitions, f"partitions of {topic!r}").items():
            if not _PARTITION.fullmatch(partition) or int(partition) > PARTITION_MAX:
                raise ValueError(f"{partition!r} is no partition of {topic!r}; expected {EXAMPLE}")
            if not is_whole(number, low, OFFSET_MAX):
                where = name_of((topic, int(partition)))
                raise ValueError(f"{where}: {number!r} is no whole number from {low} on")
            yield (topic, int(partition)), number


def _members(found: object, what: str) -> dict[str, object]:
    if not isinstance(found, dict) or not all(isinstance(name, str) and name for name in found):
        raise ValueError(f"{found!r} is no object with {what}; expected {EXAMPLE}")
    return found
