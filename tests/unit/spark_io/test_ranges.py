"""Ranges of offsets, their pieces, and what is gone."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_io.offsets import nested
from spark_io.ranges import OffsetRange, check_loss, ranges, split, tasks

RANGES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)),
    st.tuples(st.integers(0, 1000), st.integers(0, 400)),
).map(lambda found: [OffsetRange(*key, at, at + size) for key, (at, size) in sorted(found.items())])
LIMITS = st.none() | st.integers(1, 50)


def of_sizes(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 100, 100 + size) for number, size in enumerate(sizes)]


def sizes(pieces: list[OffsetRange]) -> list[list[int]]:
    """Of each partition."""
    return [[each.size for each in group] for _, group in groupby(pieces, lambda r: r.partition)]


def test_a_range_for_each_partition_with_anything_new() -> None:
    """In order; new partitions from their beginning; nothing of what is deleted."""
    start = {"b": {0: 5}, "a": {1: 7, 0: 3, 2: 8, 3: 0}}
    end = {"b": {0: 9}, "a": {0: 3, 1: 9, 2: 2, 3: 9, 10: 4, 9: 6, 11: 6}}
    begins = {"a": {3: 4, 10: 0, 9: 5}}
    assert [str(each) for each in ranges(start, end, begins)] == [
        "a-1[7:9]",
        "a-3[4:9]",
        "a-9[5:6]",
        "a-10[0:4]",
        "b-0[5:9]",
    ]
    assert ranges({}, {}, {}) == []
    assert ranges(end, end, {}) == []


def test_a_topic_that_was_made_again_is_read_from_its_beginning() -> None:
    """A checkpoint at offset 100 of a topic that was deleted, made again and has five records."""
    start, end = {"t": {0: 100, 1: 7}}, {"t": {0: 5, 1: 9}}
    found = ranges(start, end, {"t": {0: 0, 1: 0}})
    assert [str(each) for each in found] == ["t-0[0:5]", "t-1[7:9]"]


def test_the_size_of_a_range() -> None:
    """Ends are exclusive."""
    assert OffsetRange("t", 0, 5, 9).size == 4


@pytest.mark.parametrize(
    ("whole", "min_partitions", "max_records", "expected"),
    [
        # As they are.
        ((10, 20), None, None, [[10], [20]]),
        ((10, 0, 20), None, None, [[10], [20]]),
        ((10, 20), 2, None, [[10], [20]]),
        ((10, 20), 1, 100, [[10], [20]]),
        # By the number of tasks: shares by size, rounded half up.
        ((100,), 4, None, [[25, 25, 25, 25]]),
        ((100, 100), 4, None, [[50, 50], [50, 50]]),
        ((100, 100, 100), 4, None, [[100], [100], [100]]),
        ((55, 45), 3, None, [[27, 28], [45]]),
        ((300, 100), 4, None, [[100, 100, 100], [100]]),
        ((10, 990), 4, None, [[10], [330, 330, 330]]),
        # No more pieces than records.
        ((3,), 10, None, [[1, 1, 1]]),
        # By the size of a task.
        ((10,), None, 3, [[2, 3, 2, 3]]),
        ((9, 3, 1), None, 3, [[3, 3, 3], [3], [1]]),
        # Both: the pieces of the one are counted by the other.
        ((100, 10), 3, 50, [[50, 50], [10]]),
        ((100, 10), 5, 50, [[25, 25, 25, 25], [10]]),
        ((100, 10), 3, 10, [[10] * 10, [10]]),
        ((), 4, 5, []),
    ],
)
def test_pieces(
    whole: tuple[int, ...],
    min_partitions: int | None,
    max_records: int | None,
    expected: list[list[int]],
) -> None:
    """As Spark's source for Kafka cuts them."""
    found = split(of_sizes(*whole), min_partitions=min_partitions, max_records=max_records)
    assert sizes(found) == expected


@given(RANGES, LIMITS, LIMITS)
def test_pieces_are_the_whole(
    whole: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    """In order, without gaps and overlaps, none empty and none too large."""
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert pieces == sorted(pieces)
    assert all(each.size > 0 for each in pieces)
    assert max_records is None or all(each.size <= max_records for each in pieces)
    for before, after in pairwise(pieces):
        is_same = (before.topic, before.partition) == (after.topic, after.partition)
        assert not is_same or before.end == after.start
    assert _joined(pieces) == [each for each in whole if each.size]


def _joined(pieces: list[OffsetRange]) -> list[OffsetRange]:
    groups = groupby(pieces, lambda each: (each.topic, each.partition))
    parts = [(key, list(group)) for key, group in groups]
    return [OffsetRange(*key, group[0].start, group[-1].end) for key, group in parts]


@given(RANGES, st.integers(1, 50))
def test_about_as_many_pieces_as_wanted(whole: list[OffsetRange], wanted: int) -> None:
    """Rounding is off by less than half a piece for each range, and nothing is put together."""
    filled = [each for each in whole if each.size]
    pieces = split(whole, min_partitions=wanted)
    assert len(pieces) >= len(filled)
    if len(filled) >= wanted:
        assert pieces == filled
    elif sum(each.size for each in filled) >= wanted * 50:
        assert abs(len(pieces) - wanted) <= len(filled)


@pytest.mark.parametrize(
    ("whole", "min_records", "min_partitions", "max_records", "expected"),
    [
        ((5, 5, 5), 1, None, None, [[5], [5], [5]]),
        ((5, 5, 5, 5), 10, None, None, [[5, 5], [5, 5]]),
        ((5, 5, 5), 100, None, None, [[5, 5, 5]]),
        ((6, 6, 6), 10, None, None, [[6, 6], [6]]),
        ((200, 1, 1, 200), 100, None, None, [[200], [1, 1, 200]]),
        # What is said of single tasks comes first.
        ((5, 5, 5, 5), 100, None, 10, [[5, 5], [5, 5]]),
        ((5, 5, 5, 5), 100, None, 9, [[5], [5], [5], [5]]),
        ((25, 5), 100, None, 10, [[8], [8], [9], [5]]),
        ((5, 5, 5, 5), 10, 2, None, [[5, 5], [5, 5]]),
        ((5, 5, 5, 5), 10, 3, None, [[5], [5], [5], [5]]),
        ((20, 5), 100, 5, None, [[5], [5], [5], [5], [5]]),
        ((), 10, 3, None, []),
    ],
)
def test_what_is_read_together(
    whole: tuple[int, ...],
    min_records: int,
    min_partitions: int | None,
    max_records: int | None,
    expected: list[list[int]],
) -> None:
    found = tasks(
        of_sizes(*whole),
        min_records=min_records,
        min_partitions=min_partitions,
        max_records=max_records,
    )
    assert [[each.size for each in group] for group in found] == expected


@given(RANGES, st.integers(1, 500), LIMITS, LIMITS)
def test_tasks_are_the_pieces_in_order(
    whole: list[OffsetRange],
    min_records: int,
    min_partitions: int | None,
    max_records: int | None,
) -> None:
    """None has two of a partition, and together they are no larger than one may be."""
    limits = {"min_partitions": min_partitions, "max_records": max_records}
    found = tasks(whole, min_records=min_records, **limits)
    pieces = split(whole, **limits)
    assert [each for group in found for each in group] == pieces
    assert len(found) >= min(min_partitions or 0, len(pieces))
    for group in found:
        assert len({(each.topic, each.partition) for each in group}) == len(group)
        assert max_records is None or sum(each.size for each in group) <= max_records


@pytest.mark.parametrize(
    ("start", "end", "begin", "told"),
    [
        (5, 9, 0, None),
        (5, 9, 5, None),
        (5, 5, 9, None),  # all was read before it was deleted
        (5, 9, None, None),
        (None, 9, 0, None),
        (5, 9, 7, "t-0 has lost the offsets 5 to 6: deleted before being read"),
        (5, 9, 20, "t-0 has lost the offsets 5 to 8: deleted before being read"),
        (5, 3, 0, "t-0 ends before offset 5, where reading is to go on, as after"),
        (5, None, None, "t-0 is gone, with what was to be read from offset 5 on"),
        (None, 9, 4, "t-0 was added and begins at offset 4"),
        (None, 9, None, "t-0 was added and is gone again"),
    ],
)
def test_losses(start: int | None, end: int | None, begin: int | None, told: str | None) -> None:
    """One sentence for what is gone."""
    found = check_loss(*({} if one is None else {"t": {0: one}} for one in (start, end, begin)))
    assert len(found) == (told is not None)
    assert told is None or found[0].startswith(told)


def test_each_partition_has_its_own_sentence() -> None:
    """In order."""
    losses = check_loss({"t": {10: 5, 9: 5}, "a": {0: 1}}, {"t": {10: 3}}, {})
    assert [loss.split()[0] for loss in losses] == ["a-0", "t-9", "t-10"]


@given(RANGES, st.data())
def test_without_a_loss_all_is_read(whole: list[OffsetRange], data: st.DataObject) -> None:
    """What no sentence is about is in the ranges from start to end."""
    keys = {(each.topic, each.partition): each for each in whole}
    start = nested({key: each.start for key, each in keys.items()})
    end = nested({key: each.end for key, each in keys.items()})
    begins = nested({key: data.draw(st.integers(0, each.start)) for key, each in keys.items()})
    assert check_loss(start, end, begins) == []
    assert ranges(start, end, begins) == [each for each in whole if each.size]
