"""Points in time as programs hand them in: milliseconds, or a datetime with a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from raftmq.errors import InvalidRecord

GivenTimestamp: TypeAlias = int | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(given: object, name: str) -> int:
    """Since 1970-01-01 UTC.

    Raises:
        InvalidRecord: neither of both, or a datetime without a time zone: nobody knows which one
            was meant.
    """
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidRecord(
                f"{name} = {given!r} has no time zone: write datetime(..., tzinfo=UTC), or "
                "datetime.now(UTC)"
            )
        return (given - _EPOCH) // _MILLISECOND
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    kind = type(given).__name__
    raise InvalidRecord(f"{name} is a {kind}, expected int milliseconds, or a datetime")
