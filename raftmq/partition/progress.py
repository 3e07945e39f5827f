"""What a leader knows about one of its followers, in one leader epoch.

Owns how far a follower is and since when it lags. Two things travel apart: where its log ends
(`fetch_offset`, what it asked for last) and what it holds (`held_offset`, what a crash does not
take from it, as the topic's durability says). Only the second one counts for anything that was
promised; the first one bounds it.

Invariant: held_offset <= fetch_offset.
"""

from __future__ import annotations

from typing import NamedTuple

NEVER = float("-inf")


class _Mark(NamedTuple):
    """Where the leader's log ended at some time; the follower has yet to hold that much."""

    at: float
    log_end_offset: int


class FollowerProgress:
    """Attributes:
    broker_epoch: of the newest incarnation that fetched; None before the first fetch.
    has_fetched: whether its log is known to agree with the leader's: before, nothing counts.
    fetch_offset: its log end, as it says and as the epochs of both logs confirm.
    held_offset: everything before it is held.
    """

    def __init__(self, *, caught_up_at: float) -> None:
        self.broker_epoch: int | None = None
        self.has_fetched = False
        self.fetch_offset = 0
        self.held_offset = 0
        self._caught_up_at = caught_up_at
        self._mark = _Mark(NEVER, 0)

    def on_fetch(self, broker_epoch: int, fetch_offset: int) -> None:
        """A fetch that did not diverge. A new incarnation holds nothing until it says so; what
        an older one left on its way tells of a log that a crash may have cut since.
        """
        known = self.broker_epoch
        if known is not None and broker_epoch < known:
            return
        if broker_epoch != known:
            self.broker_epoch, self.held_offset = broker_epoch, 0
        self.has_fetched, self.fetch_offset = True, fetch_offset
        self.held_offset = min(self.held_offset, fetch_offset)

    def on_diverging(self) -> None:
        """It is about to cut its log: what it said before holds no more."""
        self.has_fetched = False
        self.fetch_offset = self.held_offset = 0

    def on_held(self, held_offset: int) -> None:
        """Never beyond what a fetch has shown to agree; never less than it said before."""
        self.held_offset = max(self.held_offset, min(held_offset, self.fetch_offset))

    def look(self, *, log_end_offset: int, now: float) -> None:
        """After each word of it: note since when it holds all that the leader had.

        The mark stays until it is reached. A follower whose disk is always 50 ms behind a busy
        leader is never level, and its words come more often than that: it lags by 50 ms.
        """
        if self.held_offset >= log_end_offset:
            self._caught_up_at, self._mark = now, _Mark(now, log_end_offset)
        elif self.held_offset >= self._mark.log_end_offset:
            self._caught_up_at = max(self._caught_up_at, self._mark.at)
            self._mark = _Mark(now, log_end_offset)

    def lags(self, *, log_end_offset: int, now: float, lag_seconds_max: float) -> bool:
        is_level = self.has_fetched and self.held_offset >= log_end_offset
        return not is_level and now - self._caught_up_at > lag_seconds_max
