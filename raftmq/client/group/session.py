"""Until when a member may believe that what it has is its own. Pure.

A coordinator gives partitions away once it has heard nothing for the session timeout, or once it
has waited for something for the rebalance timeout. Its clocks start when it receives, ours when the
request was sent: so ours end first.
"""

from __future__ import annotations

import math


class Session:
    """Attributes:
    heard_at: a request was sent then that found the coordinator, and this member known there.
    settled_at: so late at least the group did not wait for this member.
    """

    def __init__(self, *, session_seconds: float, rebalance_seconds: float) -> None:
        self._session_seconds, self._rebalance_seconds = session_seconds, rebalance_seconds
        self.heard_at = self.settled_at = -math.inf

    def hear(self, sent_at: float, *, is_settled: bool) -> None:
        """The coordinator has answered what was sent at `sent_at`."""
        self.heard_at = max(self.heard_at, sent_at)
        if is_settled:
            self.settled_at = max(self.settled_at, sent_at)

    @property
    def ends_at(self) -> float:
        """From then on others may have been given what this member had."""
        return min(self.heard_at + self._session_seconds, self.rejoin_by)

    @property
    def rejoin_by(self) -> float:
        """If the group has begun to deal anew, so long it waits at least."""
        return self.settled_at + self._rebalance_seconds
