"""From where, up to where, how many."""

from __future__ import annotations

import pytest

from raftmq.cli.data.consume_run import Range, RemainingRecords, range_of
from raftmq.cli.data.log_bounds import LogBounds
from raftmq.cli.data.offset_option import TIME_MAX, From, StartPlace, parse_from

HERE, THERE = ("t", 0), ("t", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", From(StartPlace.START)),
        ("latest", From(StartPlace.END)),
        ("0", From(StartPlace.OFFSET, 0)),
        ("17", From(StartPlace.OFFSET, 17)),
        ("-17", From(StartPlace.LAST, 17)),
        ("@1763719200017", From(StartPlace.TIME, 1_763_719_200_017)),
        ("@1970-01-01T01:00:01+01:00", From(StartPlace.TIME, 1000)),
        ("1970-01-01T00:00:01Z", From(StartPlace.TIME, 1000)),
        (f"@{TIME_MAX}", From(StartPlace.TIME, TIME_MAX)),
    ],
)
def test_where_to_begin(text: str, expected: From) -> None:
    """Words, offsets, numbers of records and times."""
    assert parse_from(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected earliest, latest"),
        ("middle", "'middle': expected earliest, latest"),
        ("--3", "expected earliest, latest"),
        ("1.5", "expected earliest, latest"),
        (str(1 << 63), "more than"),
        (f"@{TIME_MAX + 1}", "more than"),
        ("@", "is no time"),
        ("@-1fortnight", "-1h30m for so long ago"),
        ("@yesterday", "is no time"),
        ("@20261123", "a date dashes"),
        ("-5fortnights", "'-5fortnights' is no time"),
        ("2026-13-01", "'2026-13-01' is no time"),
        ("=-3", "write it without =, as -o -3"),
    ],
)
def test_nowhere(text: str, reason: str) -> None:
    """The message shows what was typed, and how it is written."""
    with pytest.raises(ValueError, match=reason):
        parse_from(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Range(10, 20)),
        ("latest", Range(20, 20)),
        ("15", Range(15, 20, 15)),
        ("5", Range(10, 20, 5)),
        ("25", Range(20, 20, 25)),
        ("-3", Range(17, 20)),
        ("-30", Range(10, 20)),
        ("@1763719200007", Range(12, 20)),
    ],
)
def test_a_range(text: str, expected: Range) -> None:
    """It lies within what is there; what is not there yet may come, if nobody waits for an end."""
    bounds = LogBounds(10, 20, 12)
    assert range_of(parse_from(text), bounds, until_end=True) == expected
    assert range_of(parse_from(text), bounds, until_end=False) == expected._replace(end=None)


@pytest.mark.parametrize("ago", ["5m", "1h30m"])
def test_a_time_before_now(ago: str) -> None:
    """As for `topic trim`, the @ may be left out where the text can be nothing but a time."""
    with_at, without = parse_from(f"@-{ago}"), parse_from(f"-{ago}")
    assert with_at.place is without.place is StartPlace.TIME
    assert 0 <= without.number - with_at.number < 60_000


def test_a_time_after_all_records() -> None:
    """Reading begins at the end."""
    assert range_of(From(StartPlace.TIME, 9), LogBounds(0, 5), until_end=True).is_empty


def test_up_to_the_ends() -> None:
    """Each partition is cut at its own end; when all are there it is over."""
    extent = RemainingRecords({HERE: Range(0, 5), THERE: Range(3, 4), ("t", 2): Range(7, 7)})
    assert extent.take(HERE, range(3), 3) == slice(0, 3)
    assert extent.is_open(HERE)
    assert extent.take(HERE, range(3, 9), 9) == slice(0, 2)
    assert not extent.is_open(HERE)
    assert not extent.is_over
    assert extent.take(THERE, [3], 4) == slice(0, 1)
    assert extent.is_over


def test_an_end_in_a_gap() -> None:
    """There is no record right before the end: it is over nevertheless."""
    extent = RemainingRecords({HERE: Range(0, 5)})
    assert extent.take(HERE, [0, 1], 5) == slice(0, 2)
    assert extent.is_over


def test_an_end_behind_what_is_no_record() -> None:
    """Nothing that is taken reaches it, reading does, once it is known where that is."""
    extent = RemainingRecords({HERE: Range(0, 5), THERE: Range(0, None)})
    extent.take(HERE, range(3), 3)
    for position in (None, 4):
        extent.reach(HERE, position)
        assert extent.unread == [HERE]
    extent.reach(THERE, 9)
    extent.reach(HERE, 5)
    assert extent.unread == []
    assert extent.is_over


def test_nothing_to_read() -> None:
    """It is over before it begins; without any end it never is."""
    assert RemainingRecords({HERE: Range(5, 5)}).is_over
    assert RemainingRecords({HERE: Range(5, 7, 9)}).is_over
    assert not RemainingRecords({}).is_over
    assert not RemainingRecords({HERE: Range(5, None)}).is_over


def test_so_many_records() -> None:
    """Of all partitions together."""
    extent = RemainingRecords({}, 5)
    assert extent.take(HERE, range(3), 3) == slice(0, 3)
    assert extent.is_open(HERE)
    assert extent.take(THERE, range(9), 9) == slice(0, 2)
    assert extent.is_over


def test_an_offset_that_is_not_there_yet() -> None:
    """What comes before it is passed over, and does not count."""
    extent = RemainingRecords({HERE: Range(20, None, 25)}, 2)
    assert extent.take(HERE, range(20, 23), 23) == slice(3, 3)
    assert extent.take(HERE, range(23, 30), 30) == slice(2, 4)
    assert extent.is_over
