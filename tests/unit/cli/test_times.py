"""Points in time, as people type them."""

from __future__ import annotations

import pytest

from raftmq.cli.terminal.times import parse_time


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
        ("2026-11-21T10:00:00", "add Z for UTC"),
        ("1969-12-31T23:59:59Z", "lies before 1970"),
    ],
)
def test_what_is_none(text: str, told: str) -> None:
    """It says how a time is written."""
    with pytest.raises(ValueError, match=told):
        parse_time(text)
