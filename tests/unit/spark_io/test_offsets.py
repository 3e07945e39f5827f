"""Offsets in the checkpoint, and how far a microbatch goes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import InvalidConfig
from spark_io.offsets import (
    OFFSET_MAX,
    first_offsets,
    flat,
    from_json_dict,
    is_enough,
    lag,
    limited,
    nested,
    to_json_dict,
)

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12))
OFFSETS = st.dictionaries(KEYS, st.integers(0, 1000)).map(nested)
FEW = st.dictionaries(KEYS, st.integers(0, 50)).map(nested)


@given(OFFSETS)
def test_a_checkpoint_comes_back(offsets: dict[str, dict[int, int]]) -> None:
    """Through the JSON text that Spark keeps."""
    text = json.dumps(to_json_dict(offsets))
    assert from_json_dict(json.loads(text)) == offsets
    assert nested(flat(offsets)) == offsets


@given(OFFSETS, st.randoms(use_true_random=False))
def test_equal_offsets_are_equal_texts(offsets: dict[str, dict[int, int]], random: Any) -> None:
    """In whichever order they were found: Spark compares texts."""
    items = list(flat(offsets).items())
    random.shuffle(items)
    mixed: dict[str, dict[int, int]] = {"empty": {}}
    for (topic, partition), offset in items:
        mixed.setdefault(topic, {})[partition] = offset
    assert json.dumps(to_json_dict(mixed)) == json.dumps(to_json_dict(offsets))


def test_partitions_are_in_the_order_of_numbers() -> None:
    """10 comes after 9."""
    assert json.dumps(to_json_dict({"t": {10: 1, 9: 2}})) == '{"t": {"9": 2, "10": 1}}'


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "None is no object with topics"),
        ([1], "is no object with topics"),
        ({"": {"0": 1}}, "is no object with topics"),
        ({"t": 5}, "5 is no object with partitions of 't'"),
        ({"t": {"x": 5}}, "'x' is no partition of 't'"),
        ({"t": {"01": 5}}, "'01' is no partition of 't'"),
        ({"t": {"-1": 5}}, "'-1' is no partition of 't'"),
        ({"t": {"2147483648": 5}}, "'2147483648' is no partition"),
        ({"t": {"٣": 5}}, "is no partition of 't'"),
        ({"t": {"0": -1}}, "t-0: -1 is no whole number from 0 on"),
        ({"t": {"0": "5"}}, "t-0: '5' is no whole number"),
        ({"t": {"0": True}}, "t-0: True is no whole number"),
        ({"t": {"0": OFFSET_MAX + 1}}, "is no whole number"),
        ({"t": {"0": None}}, "is no whole number"),
    ],
)
def test_a_checkpoint_of_something_else(found: object, told: str) -> None:
    """What it is instead, and the way out."""
    with pytest.raises(InvalidConfig, match="checkpointLocation of its own") as caught:
        from_json_dict(found)
    assert told in str(caught.value)


def test_where_reading_begins() -> None:
    """Where it stopped; where a new partition begins; behind what is deleted meanwhile."""
    start = {"t": {0: 5, 1: 5}}
    end = {"t": {0: 9, 1: 9, 2: 9, 3: 9}}
    begins = {"t": {1: 7, 2: 4}}
    found = first_offsets(start, end, begins)
    assert found == {("t", 0): 5, ("t", 1): 7, ("t", 2): 4}


@pytest.mark.parametrize(
    ("start", "end", "max_records", "expected"),
    [
        # Shares by lag: 30 of 300, 60 of 600, 10 of 100.
        ((0, 0, 0), (300, 600, 100), 100, (30, 60, 10)),
        # Rounded down ...
        ((0, 0, 0), (1, 1, 1), 100, (1, 1, 1)),
        ((0, 0, 0), (100, 100, 100), 100, (33, 33, 33)),
        # ... but one at least, though it is more than was allowed.
        ((0, 0, 0), (1000, 1, 1), 10, (9, 1, 1)),
        ((0, 0, 0), (5, 5, 5), 1, (1, 1, 1)),
        # Without a lag nothing moves, and a partition that ends before its start ends there.
        ((7, 0, 9), (7, 100, 3), 10, (7, 10, 3)),
        ((7, 8, 9), (7, 8, 9), 10, (7, 8, 9)),
        # As large as offsets can be: no rounding of floats.
        ((0, 0, 0), (OFFSET_MAX, 1, 0), OFFSET_MAX, (OFFSET_MAX - 1, 1, 0)),
        ((0, 0, 0), (300, 600, 100), None, (300, 600, 100)),
    ],
)
def test_shares(
    start: tuple[int, ...], end: tuple[int, ...], max_records: int | None, expected: tuple[int, ...]
) -> None:
    """As Spark's source for Kafka gives them out."""
    found = limited(_topic(start), _topic(end), max_records, begins={})
    assert found == _topic(expected)


def _topic(offsets: tuple[int, ...]) -> dict[str, dict[int, int]]:
    return {"t": dict(enumerate(offsets))}


def test_a_new_partition_has_its_share_from_where_it_begins() -> None:
    """And one of which nobody knows that goes to its end: there is nothing to read in it."""
    start, end = {"t": {0: 0}}, {"t": {0: 100, 1: 1100, 2: 50}}
    assert limited(start, end, 20, begins={"t": {1: 1000}}) == {"t": {0: 10, 1: 1010, 2: 50}}


def test_what_is_deleted_has_no_share() -> None:
    """A limit of 10 does not step through a million offsets that are gone."""
    start, end, begins = {"t": {0: 0}}, {"t": {0: 1_000_020}}, {"t": {0: 1_000_000}}
    assert limited(start, end, 10, begins=begins) == {"t": {0: 1_000_010}}


@given(OFFSETS, OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_microbatch_goes_on_and_not_too_far(
    start: dict[str, dict[int, int]],
    end: dict[str, dict[int, int]],
    begins: dict[str, dict[int, int]],
    max_records: int,
) -> None:
    """Each partition with a lag goes on, none beyond its end; the limit holds but for the ones
    that would starve.
    """
    until = flat(limited(start, end, max_records, begins=begins))
    ends, firsts = flat(end), first_offsets(start, end, begins)
    lagging = {key for key, first in firsts.items() if first < ends[key]}
    assert until.keys() == ends.keys()
    assert all(until[key] == ends[key] for key in ends.keys() - lagging)
    assert all(firsts[key] < until[key] <= ends[key] for key in lagging)
    total = sum(ends[key] - firsts[key] for key in lagging)
    starving = [key for key in lagging if max_records * (ends[key] - firsts[key]) < total]
    taken = sum(until[key] - firsts[key] for key in lagging)
    assert taken <= max_records + len(starving)
    assert taken == total or total > max_records


@given(FEW, FEW, FEW, st.integers(1, 50))
def test_microbatches_come_to_the_end(
    start: dict[str, dict[int, int]],
    end: dict[str, dict[int, int]],
    begins: dict[str, dict[int, int]],
    max_records: int,
) -> None:
    """One after the other, and what is new is never read twice."""
    at = limited(start, end, max_records, begins=begins)
    while at != end:
        later = limited(at, end, max_records, begins=begins)
        assert lag(later, end, begins=begins) < lag(at, end, begins=begins)
        at = later


def test_lag() -> None:
    """Over all partitions; what ends before its start does not make up for others."""
    start, end = {"t": {0: 5, 1: 9}, "u": {0: 0}}, {"t": {0: 8, 1: 2}, "u": {0: 4}}
    assert lag(start, end) == 7
    assert lag(start, start) == 0
    assert lag({}, end) == 0  # nobody says where they begin
    assert lag({}, end, begins={"t": {0: 6}, "u": {0: 0}}) == 6


def test_enough() -> None:
    """From so many records on."""
    start, end = {"t": {0: 5}}, {"t": {0: 8, 1: 4}}
    assert is_enough(start, end, 3)
    assert not is_enough(start, end, 4)
    assert is_enough(start, end, 7, begins={"t": {1: 0}})
