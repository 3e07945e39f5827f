"""Where the bytes under a decoder came from, so that every complaint about them can say it.

Owns one value, `Origin`. Decoders are handed one and raise what its `corrupt` returns.
"""

from __future__ import annotations

from typing import NamedTuple

from raftmq.errors import CorruptRecord


class Origin(NamedTuple):
    """A byte position in the buffer that is decoded, and the file or log it was read from."""

    position: int
    where: str = ""

    def corrupt(self, what: str) -> CorruptRecord:
        return CorruptRecord(what, position=self.position, where=self.where)

    def plus(self, length: int) -> Origin:
        return Origin(self.position + length, self.where)
