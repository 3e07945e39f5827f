"""Durable end offset of a log: what a flush round made durable, and the age of the oldest wait.

Owns the arithmetic between appends and flush rounds, and in which order and pieces the data of
`page_cache` topics is written back; pure. A round begins with `begin`, and its
outcome comes back through `complete`. A truncation in between voids the round's answer above the
cut, so rounds carry the generation in which they began.

Invariants: durable_end_offset <= log_end_offset; it falls only through a cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Due = TypeVar("Due")


class FlushMark(NamedTuple):
    """What a round that began now makes durable."""

    end_offset: int
    generation: int


@dataclass(slots=True)
class DurableEnd:
    """Times are seconds of the caller's monotonic clock."""

    log_end_offset: int
    durable_end_offset: int
    generation: int = 0
    waiting_since: float | None = None  # oldest append that no round covers yet
    flushing_since: float | None = None  # oldest append that the running round covers

    @property
    def is_dirty(self) -> bool:
        return self.durable_end_offset < self.log_end_offset

    def on_append(self, log_end_offset: int, now: float) -> None:
        assert log_end_offset > self.log_end_offset
        self.log_end_offset = log_end_offset
        if self.waiting_since is None:  # else an older append waits already
            self.waiting_since = now

    def begin(self, now: float) -> FlushMark:
        assert self.flushing_since is None, "one flush round at a time"
        self.flushing_since = now if self.waiting_since is None else self.waiting_since
        self.waiting_since = None
        return FlushMark(self.log_end_offset, self.generation)

    def complete(self, mark: FlushMark) -> None:
        self.flushing_since = None
        if mark.generation == self.generation:  # else the log was cut while it was synced
            self.durable_end_offset = max(self.durable_end_offset, mark.end_offset)
        assert self.durable_end_offset <= self.log_end_offset

    def on_truncate(self, log_end_offset: int) -> None:
        self.generation += 1
        self.log_end_offset = log_end_offset
        self.durable_end_offset = min(self.durable_end_offset, log_end_offset)
        if not self.is_dirty:  # the cut removed all that waited for a sync
            self.waiting_since = None

    def on_start_over(self, offset: int) -> None:
        self.generation += 1
        self.log_end_offset = self.durable_end_offset = offset
        self.waiting_since = None

    def oldest_pending_age(self, now: float) -> float:
        """Seconds for which the oldest append has been waiting; 0.0 if none is."""
        since = self.waiting_since if self.flushing_since is None else self.flushing_since
        return 0.0 if since is None else now - since


# -- Writing back ---------------------------------------------------------------------------------
# What is done before a flush that no acknowledgement waits for: its data is written in pieces.
#
# While a piece is on its way, a sync of any other file of the file system may wait for it: by the
# journal of ext4 even one that has nothing to do with it. So there is one on its way at a time
# (decision 0035).


PIECE_BYTES = 4 << 20


class Piece(NamedTuple):
    """Bytes of a file, to be written back at one go."""

    position: int
    length: int


def is_one_piece(length: int) -> bool:
    """So few bytes are written as soon by the flush itself."""
    return length <= PIECE_BYTES


def pieces(begin: int, end: int) -> Iterator[Piece]:
    """Of bytes of a file that no flush has covered yet; none if it ends before `begin`."""
    for position in range(begin, end, PIECE_BYTES):
        yield Piece(position, min(PIECE_BYTES, end - position))


class FlushQueue(Generic[Due]):
    """The logs to be flushed, one at a time. Those that somebody waits for come first, and overtake
    one of the others that is being written back; but after each of them one of the others has a
    turn that is not overtaken, or these might wait for ever.
    """

    def __init__(self) -> None:
        self._awaited: dict[Due, None] = {}
        self._others: dict[Due, None] = {}
        self._is_turn_of_others = self._may_be_overtaken = self._was_awaited = False

    def __contains__(self, log: Due) -> bool:
        return log in self._awaited or log in self._others

    def logs(self) -> list[Due]:
        return [*self._awaited, *self._others]

    def add(self, log: Due, *, is_awaited: bool) -> None:
        if is_awaited:
            self._others.pop(log, None)
            self._awaited[log] = None
        elif log not in self._awaited:
            self._others[log] = None

    def discard(self, log: Due) -> None:
        self._awaited.pop(log, None)
        self._others.pop(log, None)

    def take(self, is_free: Callable[[Due], bool]) -> Due | None:
        """Remove and return the next one that is free now; None where there is none."""
        lines = [self._awaited, self._others]
        if self._is_turn_of_others:
            lines.reverse()
        for line in lines:
            # Mostly the first one is free.
            log = next(filter(is_free, line), None)
            if log is not None:
                del line[log]
                is_other = line is self._others
                self._was_awaited = not is_other
                self._may_be_overtaken = is_other and not self._is_turn_of_others
                self._is_turn_of_others = not is_other
                return log
        return None

    def put_back(self, log: Due) -> None:
        """The one that was taken last has to be flushed later."""
        self.add(log, is_awaited=self._was_awaited)

    @property
    def overtakes(self) -> bool:
        """Whether somebody waits for a log that comes before the one that was taken last."""
        return self._may_be_overtaken and bool(self._awaited)
