"""The option `-o` of `raftmq consume`: earliest, latest, an offset, -N or @TIME, parsed."""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import Enum, auto
from typing import NamedTuple

from raftmq.cli.terminal.times import parse_time, time_within
from raftmq.wire.bodies import NUMBER_MAX

_NUMBER = re.compile(r"(-?)([0-9]{1,19})", re.ASCII)
TIME_MAX = 253_402_300_799_999  # the last millisecond of 9999, the last year of `datetime`
WORDS = EARLIEST, LATEST = "earliest", "latest"  # the SDK's words, and no others
# What other programs call them, for the hint in the error.
OTHER_WORDS = {"start": EARLIEST, "beginning": EARLIEST, "end": LATEST}


class StartPlace(Enum):
    START = auto()
    END = auto()
    OFFSET = auto()
    LAST = auto()  # N offsets before the end of each partition
    TIME = auto()  # milliseconds since 1970-01-01 UTC


class From(NamedTuple):
    """`number` is an offset, a count of offsets (LAST), or milliseconds (TIME)."""

    place: StartPlace
    number: int = 0


def parse_from(text: str) -> From:
    """Raises ValueError: says how it is written."""
    if text in WORDS:
        return From(StartPlace.START if text == EARLIEST else StartPlace.END)
    if (time := time_within(text)) is not None:
        return From(
            StartPlace.TIME, _in_range(text, parse_time(time, is_local_allowed=True), TIME_MAX)
        )
    # The shell passes it on as it is: -o=-3
    if text.startswith("=") and _NUMBER.fullmatch(text[1:]):
        raise ValueError(f"{text!r}: write it without =, as -o {text[1:]}")
    if text == "json":  # -o is the output of most other commands
        raise ValueError("'json' is no place to begin: for JSON write -f json")
    found = _NUMBER.fullmatch(text)
    if found is None:
        close = [OTHER_WORDS[text]] if text in OTHER_WORDS else get_close_matches(text, WORDS, n=1)
        raise ValueError(
            f"{text!r}: expected earliest, latest, an offset, -N for the last N offsets of each"
            " partition, or @TIME like @-1h30m, @2026-11-21T10:00:00Z or @ and milliseconds since"
            " 1970" + (f"; did you mean {close[0]!r}?" if close else "")
        )
    number = _in_range(text, int(found[2]))
    return From(StartPlace.LAST if found[1] else StartPlace.OFFSET, number)


def _in_range(text: str, number: int, number_max: int = NUMBER_MAX) -> int:
    if number > number_max:
        raise ValueError(f"{text!r}: {number} is more than {number_max}, the largest there is")
    return number
