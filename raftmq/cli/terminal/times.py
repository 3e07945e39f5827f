"""Points in time and sizes as people type them: `2026-11-21T10:00Z`, `-1h30m`, `64MiB`.

Owns what is understood, and the words of what is not. A time that has no time zone is local, and
only taken where the caller allows it.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from raftmq.words import parse_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# 18 digits fit an int64, as the protocol has it; a date without dashes (20261121) is taken as
# number.
_MILLISECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)
MILLISECONDS_MIN = 10**11  # March 1973: numbers below it are seconds, or dates without dashes
_TIME = re.compile(r"-[0-9]+[a-z]|[0-9]{4}-", re.ASCII)  # `-5m`, or a date with its dashes
_SIZE = re.compile(r"([0-9]{1,15})(k|M|G|T)(i?)B", re.ASCII | re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
SIZE_FORM = "like 64MiB, 10GiB, 1GB"


def parse_time(
    text: str,
    *,
    now_ms: int | None = None,
    is_local_allowed: bool = False,
    is_ago_allowed: bool = True,
) -> int:
    """Milliseconds since 1970-01-01 UTC.

    Args:
        text: a date with its time zone, milliseconds, or a duration before now: `-1h30m`.
        now_ms: None: by this machine's clock.
        is_local_allowed: a date without a time zone is of this machine's.
        is_ago_allowed: a duration before now makes sense.

    Raises:
        ValueError: says what is wrong with the text, and how it is written.
    """
    if _MILLISECONDS.fullmatch(text):
        if 0 < int(text) < MILLISECONDS_MIN:
            raise ValueError(
                f"{text!r} lies in the first years after 1970 if these are milliseconds: seconds"
                f" want three more zeros, and a date dashes, like 2026-11-21T10:00:00Z"
            )
        return int(text)
    if is_ago_allowed and text.startswith("-") and (ago := parse_duration(text[1:])) is not None:
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return max(now_ms - ago, 0)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        before_now = " -1h30m for so long ago," if is_ago_allowed else ""
        form = f"2026-11-21T10:00:00Z,{before_now} or milliseconds since 1970"
        raise ValueError(f"{text!r} is no time: write {form}") from error
    if found.tzinfo is None:
        if not is_local_allowed:
            if len(text) <= len("2026-12-24"):
                raise ValueError(f"{text!r} is a day: write a time of it, like {text}T18:00Z")
            raise ValueError(f"{text!r} may be anywhere on earth: add Z for UTC, or like +01:00")
        found = found.astimezone()
    if found < _EPOCH:
        raise ValueError(f"{text!r} lies before 1970")
    return (found - _EPOCH) // timedelta(milliseconds=1)


def time_within(text: str) -> str | None:
    """The time of a place in a log, for `parse_time`: `@TIME`, or what can be nothing but a time.

    None: it is none. Without @ a number is an offset, and -N so many of them.
    """
    return text.removeprefix("@") if text.startswith("@") or _TIME.match(text) else None


def parse_size(text: str) -> int | None:
    """Bytes of `64MiB` (of 1024) or `64MB` (of 1000); None: it is no size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    base = 1024 if found[3] else 1000
    return int(found[1]) * int(base ** _POWERS[found[2].upper()])
