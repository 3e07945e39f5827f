"""Where reading begins: an end of the log, an offset, or a point in time. Pure.

Owns what programs may say for it. Which offset an end or a time is, only a leader can tell.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from raftmq.errors import InvalidConfig
from raftmq.wire.bodies import NUMBER_MAX
from raftmq.wire.messages.offsets import EARLIEST, LATEST

GivenStart: TypeAlias = str | int | datetime  # as programs say it

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StartKind(Enum):
    OFFSET = auto()
    TIMESTAMP = auto()  # milliseconds; EARLIEST and LATEST are such ones, too


class Start(NamedTuple):
    kind: StartKind
    number: int

    @property
    def offset(self) -> int | None:
        """Where it is known without asking."""
        return self.number if self.kind is StartKind.OFFSET else None


FROM_EARLIEST = Start(StartKind.TIMESTAMP, EARLIEST)
FROM_LATEST = Start(StartKind.TIMESTAMP, LATEST)
_NAMED = {"earliest": FROM_EARLIEST, "latest": FROM_LATEST}


def start_of(given: object) -> Start:
    """What `start=` says.

    Raises:
        InvalidConfig: it is none of "earliest", "latest", an offset and a datetime with a zone.
    """
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    if isinstance(given, datetime):
        return Start(StartKind.TIMESTAMP, _milliseconds(given, name="start"))
    if _is_natural(given):
        return Start(StartKind.OFFSET, given)  # type: ignore[arg-type]
    raise InvalidConfig(
        [f'start = {given!r}: expected "earliest", "latest", an offset from 0, or a datetime']
    )


def seek_start(*, offset: object, timestamp: object) -> Start:
    """What the arguments of a `seek` say, of which one is None.

    Raises:
        InvalidConfig: both or none, or not a place in a log.
    """
    if (offset is None) == (timestamp is None):
        raise InvalidConfig(["seek: expected either offset=... or timestamp=..."])
    if timestamp is None:
        if not _is_natural(offset):
            raise InvalidConfig([f"offset = {offset!r}: expected a whole number from 0"])
        return Start(StartKind.OFFSET, offset)  # type: ignore[arg-type]
    if isinstance(timestamp, datetime):
        return Start(StartKind.TIMESTAMP, _milliseconds(timestamp, name="timestamp"))
    if not _is_natural(timestamp):
        raise InvalidConfig(
            [f"timestamp = {timestamp!r}: expected a datetime, or milliseconds since 1970 UTC"]
        )
    return Start(StartKind.TIMESTAMP, timestamp)  # type: ignore[arg-type]


def start_of_added(start: Start) -> Start:
    """For a partition that is added while others are read.

    All of it is new. So whoever wants new records wants it from its beginning; an offset was meant
    for the partitions that there were.
    """
    if start == FROM_LATEST or start.kind is StartKind.OFFSET:
        return FROM_EARLIEST
    return start


def _is_natural(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= NUMBER_MAX


def _milliseconds(moment: datetime, *, name: str) -> int:
    if moment.utcoffset() is None:
        raise InvalidConfig(
            [
                f"{name} = {moment!r}: a datetime without a time zone, which could mean any; add "
                "one, as in datetime.now(timezone.utc) or moment.astimezone()"
            ]
        )
    return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
