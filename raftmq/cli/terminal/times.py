"""Points in time as people type them: a date with its time zone, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# 18 digits fit an int64, as the protocol has it; a date without dashes (20261121) is taken as
# number.
_MILLISECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)


def parse_time(text: str) -> int:
    """Milliseconds since 1970-01-01 UTC.

    Raises:
        ValueError: says what is wrong with the text, and how it is written.
    """
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        form = "2026-11-21T10:00:00Z, or milliseconds since 1970"
        raise ValueError(f"{text!r} is no time: write {form}") from error
    if found.tzinfo is None:
        raise ValueError(f"{text!r} may be anywhere on earth: add Z for UTC, or like +01:00")
    if found < _EPOCH:
        raise ValueError(f"{text!r} lies before 1970")
    return (found - _EPOCH) // timedelta(milliseconds=1)
