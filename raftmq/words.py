"""Words of messages that depend on a value: its type with the article, a count with its noun.

Also durations, as people type them. Imports nothing of raftmq, so that every module may import it.
"""

from __future__ import annotations

import re

_UNITS_MS = {
    "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1,
}  # fmt: skip
_PART = r"([0-9]{1,15})(ms|w|d|h|m|s)"
_DURATION = re.compile(rf"(?:{_PART})+", re.ASCII)
_PARTS = re.compile(_PART, re.ASCII)
DURATION_FORM = "like 7d, 12h, 1h30m, 5s, 500ms"


def kind_of(value: object) -> str:
    """Its type, for "timeout is an int"."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


def counted(count: int, what: str) -> str:
    """For "1 partition", and "2 partitions"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def parse_duration(text: str) -> int | None:
    """Milliseconds of `7d` or `1h30m`; None: it is no duration."""
    if not _DURATION.fullmatch(text):
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PARTS.findall(text))
