"""Where reading begins, as people say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from raftmq.client.consumer.partition_state import (
    FROM_EARLIEST,
    FROM_LATEST,
    Start,
    StartKind,
    seek_start,
    start_of,
    start_of_added,
)
from raftmq.errors import InvalidConfig

AT_SECOND_ONE = Start(StartKind.TIMESTAMP, 1000)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("earliest", FROM_EARLIEST),
        ("latest", FROM_LATEST),
        (0, Start(StartKind.OFFSET, 0)),
        (1 << 40, Start(StartKind.OFFSET, 1 << 40)),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), AT_SECOND_ONE),
        (datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1))), AT_SECOND_ONE),
        (datetime(1970, 1, 1, 0, 0, 0, 999_001, tzinfo=UTC), AT_SECOND_ONE),
        (datetime(1960, 1, 1, tzinfo=UTC), Start(StartKind.TIMESTAMP, 0)),
    ],
)
def test_starts(given: object, expected: Start) -> None:
    """Ends, offsets and times; a time within a millisecond is the next one."""
    assert start_of(given) == expected


@pytest.mark.parametrize("given", ["first", "", -1, True, 1.5, None, b"latest", 1 << 63])
def test_what_is_no_start(given: object) -> None:
    """The value is named, and what may be said."""
    with pytest.raises(InvalidConfig) as caught:
        start_of(given)
    assert f"start = {given!r}: expected" in str(caught.value)
    assert "earliest" in str(caught.value)


def test_a_time_without_a_zone() -> None:
    """It could be any of 24 hours: refused, with the way out."""
    with pytest.raises(InvalidConfig, match=r"without a time zone.*astimezone\(\)"):
        start_of(datetime(2026, 1, 1))
    with pytest.raises(InvalidConfig, match=r"timestamp = .*without a time zone"):
        seek_start(offset=None, timestamp=datetime(2026, 1, 1))


def test_seeks() -> None:
    """An offset, milliseconds or a datetime."""
    assert seek_start(offset=7, timestamp=None) == Start(StartKind.OFFSET, 7)
    assert seek_start(offset=None, timestamp=1000) == AT_SECOND_ONE
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert seek_start(offset=None, timestamp=moment) == AT_SECOND_ONE


@pytest.mark.parametrize(
    ("offset", "timestamp", "told"),
    [
        (None, None, "either offset=... or timestamp="),
        (1, 1, "either offset=... or timestamp="),
        (-1, None, "offset = -1"),
        ("3", None, "offset = '3'"),
        (None, -5, "timestamp = -5"),
        (None, 1.5, "timestamp = 1.5"),
    ],
)
def test_what_is_no_seek(offset: object, timestamp: object, told: str) -> None:
    """The value is named."""
    with pytest.raises(InvalidConfig) as caught:
        seek_start(offset=offset, timestamp=timestamp)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (FROM_LATEST, FROM_EARLIEST),
        (FROM_EARLIEST, FROM_EARLIEST),
        (Start(StartKind.OFFSET, 42), FROM_EARLIEST),
        (AT_SECOND_ONE, AT_SECOND_ONE),
    ],
)
def test_a_partition_that_is_added(start: Start, expected: Start) -> None:
    """Nothing of it is passed over, but what is before a time that was asked for."""
    assert start_of_added(start) == expected
