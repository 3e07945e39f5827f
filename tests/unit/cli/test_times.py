"""Points in time, as people type them."""

from __future__ import annotations

from datetime import datetime

import pytest

from raftmq.cli.terminal.times import parse_size, parse_time
from raftmq.words import parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1763719200000", 1_763_719_200_000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.5Z", 500),
        ("1970-01-02T00Z", 86_400_000),
    ],
)
def test_what_is_a_time(text: str, milliseconds: int) -> None:
    """Numbers are milliseconds already."""
    assert parse_time(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no time"),
        ("tomorrow", "is no time"),
        ("-5", "is no time"),
        ("9" * 19, "is no time"),
        ("1_0", "is no time"),
        ("20261123", "a date dashes"),
        ("1763719200", "seconds want three more zeros"),
        ("2026-11-21T10:00:00", "add Z for UTC"),
        ("1969-12-31T23:59:59Z", "lies before 1970"),
    ],
)
def test_what_is_none(text: str, told: str) -> None:
    """It says how a time is written."""
    with pytest.raises(ValueError, match=told):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("-1h", 3_600_000),
        ("-1h30m", 5_400_000),
        ("-2d", 172_800_000),
        ("-1w2d3h4m5s6ms", 788645006),
    ],
)
def test_so_long_ago(text: str, ago: int) -> None:
    """A duration before now, by the units of people."""
    assert parse_time(text, now_ms=10**12) == 10**12 - ago
    assert parse_time(text, now_ms=0) == 0


def test_so_long_ago_where_that_is_no_answer() -> None:
    """As when a record is sent for later: somebody meant "in an hour". (A12.2)"""
    with pytest.raises(ValueError, match="'-1h' is no time: write 2026-11-21T10:00:00Z, or mill"):
        parse_time("-1h", is_ago_allowed=False)


def test_a_time_of_this_machine() -> None:
    """A date without a time zone is local, where that does no harm; else it is refused."""
    here = datetime(2026, 11, 22, 10).astimezone()
    assert parse_time("2026-11-22T10:00", is_local_allowed=True) == here.timestamp() * 1000
    with pytest.raises(ValueError, match="add Z for UTC"):
        parse_time("2026-11-22T10:00")


@pytest.mark.parametrize("text", ["", "7", "-1", "d", "1.5h", "7 d", "7days", "1h-30m"])
def test_what_is_no_duration(text: str) -> None:
    """Numbers without units are left to whoever knows their unit."""
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64MiB", 64 << 20), ("1GB", 10**9), ("10kB", 10_000), ("2tib", 2 << 40), ("64", None),
        ("64M", None), ("-1", None), ("1.5GiB", None),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int | None) -> None:
    """With an i of 1024, without it of 1000, as everywhere."""
    assert parse_size(text) == count
