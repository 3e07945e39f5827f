"""How a record fares that members of a group handle: good, failing for a while or always, rejected.

The words of the history, for those who draw them and those who judge. Pure.
"""

from __future__ import annotations

from enum import StrEnum


class RecordFate(StrEnum):
    """`ONCE`, `TWICE`: so often handling it fails, and then it is good. `REJECTED`: it is set aside
    at its first attempt.
    """

    GOOD = "good"
    ONCE = "once"
    TWICE = "twice"
    ALWAYS = "always"
    REJECTED = "rejected"

    def is_good_at(self, attempt: int) -> bool:
        """The first attempt is 1."""
        return attempt > _FAILURES.get(self, attempt)

    @property
    def is_good_at_last(self) -> bool:
        return self in _FAILURES


_FAILURES = {RecordFate.GOOD: 0, RecordFate.ONCE: 1, RecordFate.TWICE: 2}
