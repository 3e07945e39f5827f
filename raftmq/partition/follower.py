"""Rules of a follower: when to fetch from the leader, where to truncate its log. No I/O.

Owns the outstanding fetch and what to do with its answer; one object for each leader epoch (Kafka:
ReplicaFetcherThread). Knows offsets and epochs, never bytes. At most one fetch is outstanding; an
answer to any other is dropped, as a late one could demand to cut records that this replica has
reported as held since.

Invariants:
  F1  Nothing is appended but what follows the own log, under an answer to the outstanding fetch.
  F2  Logs are compared by leader epochs and never by the high watermark (KIP-101, KIP-279).
  F3  The high watermark is at most the log's end; it goes back only when the log is cut, which
      below it takes an unclean election.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from raftmq.partition.leader import FetchFromLeader, HighWatermarkRose, StartOver, Truncate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.epochs import EpochEnd, LeaderEpochs
    from raftmq.partition.leader import Diverged


class Follower:
    """Attributes:
    leader, leader_epoch: the broker that it follows, and since which election.
    high_watermark: what it knows to be committed.
    agrees: whether an answer has shown that its log is a prefix of the leader's. Only then may it
        report what it holds: a report of records that it is about to cut could reach the leader
        after its next fetch, and be believed (decision 0014).
    """

    def __init__(
        self,
        leader: int,
        leader_epoch: int,
        *,
        high_watermark: int,
        answer_seconds_max: float,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`tokens`: shared by all roles of a replica, so that a late answer to an earlier follower
        object is not taken for one to this."""
        self.leader, self.leader_epoch = leader, leader_epoch
        self.high_watermark, self.agrees = high_watermark, False
        self._answer_seconds_max = answer_seconds_max
        self._tokens = count(1) if tokens is None else tokens
        self._token = 0
        self._asked_at: float | None = None  # the outstanding fetch, if there is one

    def next_fetch(
        self, log_end_offset: int, last_epoch: int, *, now: float
    ) -> FetchFromLeader | None:
        """The next fetch request; None while an answer to the outstanding one may come."""
        # At most one in flight: answers could cross.
        if self._asked_at is not None and now - self._asked_at < self._answer_seconds_max:
            return None
        self._token = next(self._tokens)
        self._asked_at = now
        return FetchFromLeader(self._token, log_end_offset, last_epoch)

    def accepts(self, token: int) -> bool:
        """Whether this answers the outstanding fetch, which ends with it. If not, drop it."""
        if self._asked_at is None or token != self._token:  # late, or of another role
            return False
        self._asked_at = None
        return True

    def cut(
        self,
        diverged: Diverged,
        epochs: LeaderEpochs,
        *,
        log_start_offset: int,
        log_end_offset: int,
    ) -> Truncate | StartOver:
        """Where to truncate so that the logs may agree; the next fetch shows whether they do (F2).

        The leader's entries behind `diverged` are of later epochs than any of ours there, so the
        smaller of the two ends is right whether or not we know that epoch. If our log starts
        behind that point, it begins anew at the leader's log start, which the next answer names.
        """
        self.agrees = False
        own: EpochEnd | None = epochs.end_of(diverged.leader_epoch, log_end_offset)
        end_offset = (
            diverged.end_offset if own is None else min(own.end_offset, diverged.end_offset)
        )
        end_offset = min(end_offset, log_end_offset)
        if end_offset < log_start_offset:  # our log starts behind the point where both may agree
            self.high_watermark = 0
            return StartOver(0)  # OffsetOutOfRange will answer with the leader's log start
        self.high_watermark = min(self.high_watermark, end_offset)
        return Truncate(end_offset)

    def start_over(self, leader_start_offset: int, *, log_end_offset: int) -> StartOver | None:
        """The leader has deleted the records that follow our log's end; None if it has not."""
        if log_end_offset >= leader_start_offset:  # a late answer: the log has grown since
            return None
        self.high_watermark = leader_start_offset
        return StartOver(leader_start_offset)

    def is_unproven(
        self, leader_start_offset: int, *, log_start_offset: int, log_end_offset: int
    ) -> bool:
        """Whether the log ends where the leader's begins, and may be another one before: the leader
        has forgotten the epochs there, and this replica does not know it to be committed. Nobody
        can read it any more, but what it schedules would be delivered here (decision 0041)."""
        is_new = not self.agrees and self.high_watermark < log_end_offset
        return is_new and log_start_offset < log_end_offset == leader_start_offset

    def on_appended(self, high_watermark: int, *, log_end_offset: int) -> list[HighWatermarkRose]:
        """After the records of an answer, if any, were appended: what is committed now (F3)."""
        self.agrees = True  # an answer that is no divergence
        known = min(high_watermark, log_end_offset)
        # The leader's may be behind ours: a new leader learns it anew (F3).
        if known <= self.high_watermark:
            return []
        self.high_watermark = known
        return [HighWatermarkRose(known)]
