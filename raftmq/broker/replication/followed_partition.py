"""One following replica in its fetch session: what was fetched, reported, and when to retry.

Owns what was asked for it and what its leader was told about it in the present session. Decides
nothing about the log, which is the replica's own business.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    RaftmqError,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import FetchPartition

if TYPE_CHECKING:
    from random import Random

    from raftmq.partition.follower import Follower
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.rpc.peers import Peers

NOWHERE = -1  # as an offset: nothing asked or reported in this session
PAUSES = Pauses(0.05, 5.0)  # of one partition; the longest, for a full disk, spares the log file
REPORT_SECONDS_MAX = 10.0  # the answer is ignored; this frees its place in flight
# Leader or follower has not heard yet of an election, or of a topic made or deleted: passes by
# itself, not worth a log line.
PASSING = (FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower, UnknownTopicId)

logger = logging.getLogger("raftmq.broker")


class FollowedPartition:
    """One replica, in one leader epoch.

    Attributes:
        token: of the fetch in flight; None without one.
        asked_in: number of the request that named it last: answers to earlier ones are void.
        named_offset: the leader was asked for records from this offset on.
        told_held: the leader was told that everything before it is held.
        goal: in a copy lane, the leader's high watermark as the last answer had it.
        is_leaving: it leaves its copy lane once the request in flight is answered.
    """

    __slots__ = (
        "_adopts_start",
        "_backoff",
        "_fetch_offset",
        "_problem",
        "asked_in",
        "goal",
        "is_leaving",
        "key",
        "named_offset",
        "part",
        "replica",
        "token",
        "told_held",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, replica: Replica, part: Follower, random: Random) -> None:
        self.key, self.replica, self.part = key, replica, part
        self.token: int | None = None
        self._adopts_start = self.is_leaving = False
        self.asked_in, self.goal = 0, math.inf
        self._fetch_offset = self.named_offset = self.told_held = NOWHERE
        self._backoff, self._problem = Backoff(random, PAUSES), ""

    def ask(self, *, number: int, bytes_max: int) -> FetchPartition | None:
        """The entry for the request with that number; None while there is nothing to ask."""
        # Another role or leader epoch by now: this object is about to be replaced.
        fetch = self.replica.next_fetch() if self.replica.follower is self.part else None
        if fetch is None:  # offline, truncating, or not this epoch's follower any more
            return None
        self.token, self.asked_in, self._fetch_offset = fetch.token, number, fetch.fetch_offset
        return FetchPartition(
            *self.key,
            fetch_offset=fetch.fetch_offset,
            leader_epoch=self.part.leader_epoch,
            last_fetched_epoch=fetch.last_fetched_epoch,
            bytes_max=bytes_max,
        )

    def ask_on(self) -> bool:
        """Expect another answer for the same offset, which the session continues by itself; False
        if the partition must be named again.
        """
        fetch = self.replica.next_fetch() if self.replica.follower is self.part else None
        if fetch is None:  # as in `ask`: the caller asks later
            return False
        self.token = fetch.token
        assert fetch.fetch_offset == self._fetch_offset, "nothing was appended"
        return True

    def on_asked(self) -> None:
        """The request that names it leaves now."""
        self.named_offset = self._fetch_offset

    def held_to_tell(self) -> int | None:
        """How much is held, if the leader does not know it yet.

        The leader believes nothing beyond what it was asked for. Nothing is reported of a log that
        may have to be truncated, nor of one that begins before the leader's.
        """
        # Not compared with the leader's log yet: a tail that diverges does not count.
        if self.replica.follower is not self.part or not self.part.agrees:
            return None
        # Held records below the leader's start would be compared with nothing.
        if self.replica.lags_log_start:
            return None
        held = min(self.replica.log.held_end_offset, self.named_offset)
        # Only rising values: 0 is what the leader assumes anyway.
        return held if held > max(self.told_held, 0) else None

    @property
    def is_over(self) -> bool:
        """Whether it has nothing to do in a copy lane any more."""
        is_level = self.replica.log.log_end_offset >= self.goal
        return self.replica.follower is self.part and (is_level or self.is_leaving)

    # -- the leader's log start ------------------------------------------------------------

    def begins_to_adopt_start(self) -> bool:
        """Whether the caller has to run `adopt_start`: there is need, and no task does it yet."""
        begins = self.replica.lags_log_start and not self._adopts_start
        self._adopts_start |= begins
        return begins

    async def adopt_start(self) -> bool:
        """Delete what the leader has deleted; True if it has to be tried again after a pause."""
        replica = self.replica
        if replica.follower is self.part and replica.lags_log_start:
            try:
                await replica.follow_log_start()
            # Retried: a disk that is busy or full may let it be done later.
            except RaftmqError as error:
                logger.info("log start stays: log=%s reason=%s", replica.log.name, error)
        self._adopts_start = replica.follower is self.part and replica.lags_log_start
        return self._adopts_start

    def forget_session(self) -> None:
        # An answer may still be on its way; the replica must not take it for the next one.
        if self.token is not None:
            self.replica.on_no_answer(self.token)
            self.token = None
        self.named_offset = self.told_held = NOWHERE

    # -- errors ----------------------------------------------------------------------------

    def on_answer(self) -> None:
        self._problem = ""
        self._backoff.reset()

    def report(self, error: RaftmqError | None, peers: Peers) -> None:
        """Report bytes of the leader that failed their check: it should check its disk. The
        outcome shows in its next answers; each refusal is reported again.
        """
        if isinstance(error, CorruptRecord) and error.offset is not None:
            report = ReportCorruption(*self.key, error.offset, self.part.leader_epoch)
            leader, seconds = self.part.leader, REPORT_SECONDS_MAX
            peers.ask(leader, report, lambda _outcome: None, timeout_seconds=seconds)

    def pause_after(self, error: RaftmqError | None) -> float:
        """Seconds until it should ask again; logs the first failure of each kind."""
        if error is not None and not isinstance(error, PASSING):
            problem = type(error).__name__
            if problem != self._problem:  # the same kind is logged once
                self._problem = problem
                name = self.replica.log.name
                logger.warning("cannot follow: log=%s reason=%s", name, error)
        return self._backoff.next_seconds()
