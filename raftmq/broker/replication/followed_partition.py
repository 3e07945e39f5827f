"""One replica that follows, as the task that fetches for it sees it.

Owns what was asked for it and what its leader was told of it in the present session. Decides
nothing about the log: that is the replica's own business.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    RaftmqError,
    UnknownLeaderEpoch,
)
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import FetchPartition

if TYPE_CHECKING:
    from random import Random

    from raftmq.broker.replication.fetch_exchange import FetchEnvironment
    from raftmq.partition.follower import Follower
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey

NOWHERE = -1  # as an offset: nothing was asked or told in this session
PAUSES = Pauses(0.05, 5.0)
REPORT_SECONDS_MAX = 10.0
# One of both sides has not heard of an election yet.
PASSING = (FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower)

logger = logging.getLogger("raftmq.broker")


class FollowedPartition:
    """In one leader epoch.

    Attributes:
        token: of the fetch whose answer is outstanding.
        asked_in: number of the request that named it last: answers to earlier ones mean another.
        named_offset: the leader has been asked for what comes from there on.
        told_held: the leader has been told that everything before it is held.
    """

    __slots__ = (
        "_adopts_start",
        "_backoff",
        "_fetch_offset",
        "_problem",
        "asked_in",
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
        self._adopts_start = False
        self.asked_in = 0
        self._fetch_offset = self.named_offset = self.told_held = NOWHERE
        self._backoff, self._problem = Backoff(random, PAUSES), ""

    def ask(self, *, number: int, bytes_max: int) -> FetchPartition | None:
        """What to ask in the request with that number; None while there is nothing to ask."""
        fetch = self.replica.next_fetch() if self.replica.follower is self.part else None
        if fetch is None:
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
        """The leader goes on from where it was asked, without being asked again; False if it has
        to be.
        """
        fetch = self.replica.next_fetch() if self.replica.follower is self.part else None
        if fetch is None:
            return False
        self.token = fetch.token
        assert fetch.fetch_offset == self._fetch_offset, "nothing was appended"
        return True

    def on_asked(self) -> None:
        """The request leaves now."""
        self.named_offset = self._fetch_offset

    def held_to_tell(self) -> int | None:
        """How much is held, if the leader does not know it yet.

        It believes nothing beyond what it was asked for; and of a log that may have to be cut, or
        has records that nobody can compare any more, nothing is told.
        """
        if self.replica.follower is not self.part or not self.part.agrees:
            return None
        if self.replica.lags_log_start:
            return None
        held = min(self.replica.log.held_end_offset, self.named_offset)
        return held if held > max(self.told_held, 0) else None

    # -- the leader's log start ------------------------------------------------------------

    def begins_to_adopt_start(self) -> bool:
        """Whether `adopt_start` has to be called, and nobody does yet."""
        begins = self.replica.lags_log_start and not self._adopts_start
        self._adopts_start |= begins
        return begins

    async def adopt_start(self) -> bool:
        """Delete what the leader has deleted; whether there is more to do, after a pause."""
        replica = self.replica
        if replica.follower is self.part and replica.lags_log_start:
            try:
                await replica.follow_log_start()
            except RaftmqError as error:
                logger.info("log start stays: log=%s reason=%s", replica.log.name, error)
        self._adopts_start = replica.follower is self.part and replica.lags_log_start
        return self._adopts_start

    def forget_session(self) -> None:
        if self.token is not None:
            self.replica.on_no_answer(self.token)
            self.token = None
        self.named_offset = self.told_held = NOWHERE

    # -- when it goes wrong ----------------------------------------------------------------

    def on_answer(self) -> None:
        self._problem = ""
        self._backoff.reset()

    def report(self, error: RaftmqError | None, peers: FetchEnvironment) -> None:
        """If it is about bytes of the leader's that were refused: it should look at its disk. What
        it finds it shows by what it does; the next refusal is reported, too.
        """
        if isinstance(error, CorruptRecord) and error.offset is not None:
            report = ReportCorruption(*self.key, error.offset, self.part.leader_epoch)
            leader, seconds = self.part.leader, REPORT_SECONDS_MAX
            peers.ask(leader, report, lambda _outcome: None, timeout_seconds=seconds)

    def pause_after(self, error: RaftmqError | None) -> float:
        """Seconds until it should ask again; says once what is wrong."""
        if error is not None and not isinstance(error, PASSING):
            problem = type(error).__name__
            if problem != self._problem:
                self._problem = problem
                name = self.replica.log.name
                logger.warning("cannot follow: log=%s reason=%s", name, error)
        return self._backoff.next_seconds()
