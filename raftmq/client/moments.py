"""Points in time as programs hand them in: milliseconds, or a datetime with a time zone.

Owns the conversion for producers; a datetime without a zone is refused, not guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from raftmq.errors import InvalidRecord
from raftmq.words import kind_of

GivenTimestamp: TypeAlias = int | datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # timestamps count from here
MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(given: object, name: str) -> int:
    """Since 1970-01-01 UTC.

    Raises:
        InvalidRecord: neither of both, or a datetime without a time zone, which could mean any.
    """
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidRecord(
                f"{name} = {given!r} has no time zone: write datetime(..., tzinfo=UTC), or "
                "datetime.now(UTC)"
            )
        return (given - EPOCH) // MILLISECOND
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    kind = kind_of(given)
    raise InvalidRecord(f"{name} is {kind}, expected int milliseconds, or a datetime")
