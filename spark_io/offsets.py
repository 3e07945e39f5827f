"""Offsets of many partitions: their JSON in Spark's checkpoint, lag, and the limit of a microbatch.

Ends are exclusive. Invariant: equal offsets give equal JSON texts, which Spark compares; partitions
are in order, and a topic without any does not appear. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Key: TypeAlias = tuple[str, int]  # topic, partition
Offsets: TypeAlias = dict[str, dict[int, int]]  # topic -> partition -> offset

OFFSET_MAX = (1 << 63) - 1  # int64 on the wire
PARTITION_MAX = (1 << 31) - 1  # int32 on the wire
EXAMPLE = '{"topic": {"0": 5, "1": 7}}'
# No leading zeros: "01" and "1" would be the same partition twice.
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
    """By topic and partition, in order."""
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
    """The offset where reading begins in each partition of `end`.

    It is where the query stopped, or the log start offset, if that is later, or the partition is
    new, or it ends before (its topic was made again, or truncated): rather twice than never.

    Args:
        begins: log start offsets, at least of the partitions that `start` does not have. A
            partition that is in neither is left out.
    """
    stopped, begun = flat(start), flat(begins)
    found = {}
    for key, ended in flat(end).items():
        if key in begun and ended < stopped.get(key, 0):
            found[key] = begun[key]
        elif key in stopped or key in begun:
            found[key] = max(stopped.get(key, 0), begun.get(key, 0))
    return found


def limited(start: Offsets, end: Offsets, max_records: int | None, *, begins: Offsets) -> Offsets:
    """Where a microbatch from `start` ends that takes about `max_records`, at most `end`; None:
    all.

    As in Spark's source for Kafka each partition has a share by its lag, rounded down, and at least
    one record: so no partition starves, and there may be more than `max_records`, by at most one
    record for each partition whose share is below one.
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
    """Whether the lag is large enough for a microbatch to begin (`minOffsetsPerTrigger`)."""
    return lag(start, end, begins=begins) >= min_records


def lag(start: Offsets, end: Offsets, *, begins: Offsets | None = None) -> int:
    """Offsets from `start` to `end`. A new partition without its log start offset in `begins` does
    not count; neither does one without it that ends before its start.
    """
    return sum(_lags(start, end, begins or {}).values())


def is_whole(found: object, low: int, high: int) -> TypeGuard[int]:
    """Whether a value out of JSON is a whole number in this range."""
    # JSON's true and false are ints in Python.
    return isinstance(found, int) and not isinstance(found, bool) and low <= found <= high


def _lags(start: Offsets, end: Offsets, begins: Offsets) -> dict[Key, int]:
    """Of the partitions that have any lag."""
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
