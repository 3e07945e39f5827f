"""Fetch requests of consumers and ReplicaFetch of followers: what each kind of reader may see.

A consumer sees nothing at or beyond the high watermark, with READ_COMMITTED the last stable offset,
and only from the leader. If it names the epoch of its last record it learns where its past parts
from this log (KIP-320): it has read records that an unclean election took back. A follower sees
everything up to the log end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from raftmq.broker.requests.delayed_fetch import DelayedFetch
from raftmq.broker.requests.fetch_sessions import FetchSessions, PartitionView
from raftmq.broker.requests.record_readers import AllRecords, FilteredRecords, VisibleRecords
from raftmq.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    RaftmqError,
    StaleBrokerEpoch,
    UnsupportedVersion,
    error_for,
    without_frames,
)
from raftmq.model import IsolationLevel, RecordFormat
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.fetch import Fetch
from raftmq.wire.messages.replicate import ReplicaFetch, ReplicaProgress
from raftmq.wire.tag_clauses import read_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.broker.requests.fetch_sessions import (
        FetchPurgatory,
        FetchSession,
        SessionPartition,
    )
    from raftmq.broker.requests.record_readers import RecordReader
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import PendingReply
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.replicate import PartitionProgress


logger = logging.getLogger("raftmq.broker")


class FetchRequests:
    """Attributes:
    sessions: of consumers.
    """

    def __init__(
        self,
        hosting: Replicas,
        directory: LogDirectory,
        waiting: FetchPurgatory,
        random: Random,
    ) -> None:
        self._hosting, self._directory, self._waiting = hosting, directory, waiting
        self.sessions = FetchSessions(random, are_followers=False)

    def handlers(self) -> Handlers:
        return {Fetch: self.fetch}

    def fetch(self, context: RequestContext, request: Fetch, _payload: Buffer) -> PendingReply:
        """Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, InvalidRequest."""
        asked = read_filter(request.tags)
        now, level = trio.current_time(), request.isolation_level
        # A session is of one level and one filter: what is news to one reader is none to another.
        owner = context.principal, level, request.tags
        session = self.sessions.enter(request.session_id, request.session_epoch, owner, now)
        session.forget(request.forgotten)
        for wanted in request.partitions:
            session.check(session.name(wanted))
        # Another replica that has rot: it needs the bytes as they stand in the log (0027).
        is_of_replica = context.is_of_broker and asked is None
        is_committed = level == IsolationLevel.READ_COMMITTED
        reading = ConsumerView(
            is_committed=is_committed,
            is_filtered=asked is not None,
            takes_gaps=request.takes_gaps or is_of_replica,
        )
        reader: RecordReader
        if is_of_replica:
            reader = AllRecords(self._directory)
        elif asked is None:
            reader = VisibleRecords(self._directory)
        else:
            reader = FilteredRecords(self._directory, asked)
        return DelayedFetch(
            session, reading, reader, self._hosting, self._waiting, request, now
        ).start(now)


class ConsumerView:
    """`is_committed`: nothing of a transaction that is open, as READ_COMMITTED demands.
    `is_filtered`: only what a filter of tags lets pass. `takes_gaps`: it knows what to make of
    offsets that are left out."""

    def __init__(
        self, *, is_committed: bool, is_filtered: bool = False, takes_gaps: bool = True
    ) -> None:
        self._is_committed, self._is_filtered = is_committed, is_filtered
        self._takes_gaps = takes_gaps

    def look(self, replica: Replica, partition: SessionPartition) -> PartitionView:
        """Raises RaftmqError: the answer in place of records."""
        wanted, log = partition.wanted, replica.log
        leader = replica.leading(wanted.leader_epoch)
        if self._is_filtered and log.config.record_format is RecordFormat.KAFKA:
            raise InvalidRequest(
                "the topic has record.format=kafka, in which records have no tags: read it without"
                " a filter of tags"
            )
        if not self._takes_gaps and not log.schedule.is_empty:
            raise UnsupportedVersion(
                "the partition has delayed or scheduled records, which this client does not know: "
                "upgrade it"
            )
        end_offset, start_offset = replica.high_watermark, log.log_start_offset
        # Below the log start there is no epoch to compare: out of range says it better.
        if wanted.fetch_offset >= start_offset and wanted.last_fetched_epoch >= 0:
            diverged = replica.divergence(leader, wanted.last_fetched_epoch, wanted.fetch_offset)
            if diverged:  # the consumer has read what this log does not have
                return PartitionView(0, end_offset, start_offset, diverged)
        # The log end itself is fine: the next record will come there.
        if not start_offset <= wanted.fetch_offset <= log.log_end_offset:
            raise OffsetOutOfRange(
                f"{log.name} has offsets from {start_offset} to {end_offset}, "
                f"not {wanted.fetch_offset}"
            )
        if not self._is_committed:
            return PartitionView(end_offset, end_offset, start_offset)
        stable_offset = replica.last_stable_offset
        return PartitionView(
            stable_offset, end_offset, start_offset, last_stable_offset=stable_offset
        )


# -- Replica fetches ------------------------------------------------------------------------------
# ReplicaFetch and ReplicaProgress: the leader's side of replication.
#
# Owns what a follower may see: everything up to the log end, and each new high watermark. What a
# follower says about itself reaches the rules in the order of arrival, before any wait: progress
# counts only after the fetch that precedes it.


class ReplicaFetchRequests:
    """Attributes:
    sessions: of followers, one for each broker that follows a partition here, and another one
        while it copies a replica that is added (decision 0044).
    """

    def __init__(
        self,
        hosting: Replicas,
        directory: LogDirectory,
        waiting: FetchPurgatory,
        random: Random,
        *,
        registered_epoch: Callable[[int], int | None],
    ) -> None:
        """`registered_epoch(broker)`: its broker epoch in the metadata, also if it is fenced."""
        self._hosting, self._waiting = hosting, waiting
        self._reader = AllRecords(directory)
        self._registered_epoch = registered_epoch
        self.sessions = FetchSessions(random, are_followers=True)

    def handlers(self) -> Handlers:
        return {
            ReplicaFetch: self.replica_fetch,
            ReplicaProgress: self.replica_progress,
        }

    # -- fetches ---------------------------------------------------------------------------

    def replica_fetch(
        self, _context: RequestContext, request: ReplicaFetch, _payload: Buffer
    ) -> PendingReply:
        """Raises StaleBrokerEpoch, FetchSessionIdNotFound, InvalidFetchSessionEpoch."""
        now = trio.current_time()
        self._check_epoch(request.broker_id, request.broker_epoch)
        owner = request.broker_id, request.broker_epoch
        session = self.sessions.enter(request.session_id, request.session_epoch, owner, now)
        if request.forgotten:
            session.forget(request.forgotten)
        held = {(said.topic_id, said.partition, said.leader_epoch): said for said in request.held}
        for wanted in request.partitions:
            partition = session.name(wanted)
            said = held.pop((*partition.key, wanted.leader_epoch), None)
            self._take_fetch(request, session, partition, said.held_offset if said else 0, now)
        if held:  # more is held of partitions that this request does not name
            self._take_all(request, held.values(), now)
        return DelayedFetch(
            session, self, self._reader, self._hosting, self._waiting, request, now
        ).start(now)

    def _check_epoch(self, broker_id: int, broker_epoch: int) -> None:
        known = self._registered_epoch(broker_id)
        # A process that was replaced must not count as a replica any more (KIP-903).
        if known != broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {broker_id} says epoch {broker_epoch}, known here is "
                f"{'none' if known is None else known}"
            )

    def _take_fetch(
        self,
        request: ReplicaFetch,
        session: FetchSession,
        partition: SessionPartition,
        held_offset: int,
        now: float,
    ) -> None:
        """Tell the leader's rules of it, and have answered what they say."""
        wanted = partition.wanted
        try:
            # Consumers may leave the epoch out; a follower in the wrong epoch would be counted.
            if wanted.leader_epoch == ABSENT:
                raise InvalidRequest("a follower has to say which leader epoch it means")
            replica = session.replica_of(partition, self._hosting.get)
            partition.diverged = replica.on_replica_fetch(
                request.broker_id,
                request.broker_epoch,
                wanted,
                leader_epoch=wanted.leader_epoch,
                now=now,
                held_offset=held_offset,
            )
        # Kept until the answer, without the frames that hold the batch in memory.
        except RaftmqError as error:
            partition.refusal = without_frames(error)
        else:
            log, leader = replica.log, replica.leader
            partition.keeps_up = leader is not None and request.broker_id in leader.assignment.isr
            if partition.diverged is None and wanted.fetch_offset == log.log_end_offset:
                session.check_level(
                    partition,
                    high_watermark=replica.high_watermark,
                    log_start_offset=log.log_start_offset,
                )
                return
        session.check(partition)

    def look(self, replica: Replica, partition: SessionPartition) -> PartitionView:
        """Raises RaftmqError: the answer in place of records."""
        wanted, refusal, log = partition.wanted, partition.refusal, replica.log
        if refusal is not None:  # the fetch was refused by the leader's rules
            raise error_for(refusal.code, str(refusal))  # a new one: that one is kept
        replica.leading(wanted.leader_epoch)
        # Checked again now: it may have been deleted since the verdict.
        if wanted.fetch_offset < log.log_start_offset:
            raise OffsetOutOfRange(f"{log.name} starts at {log.log_start_offset}")
        return PartitionView(
            log.log_end_offset, replica.high_watermark, log.log_start_offset, partition.diverged
        )

    # -- progress --------------------------------------------------------------------------

    def replica_progress(
        self, _context: RequestContext, request: ReplicaProgress, _payload: Buffer
    ) -> None:
        """One-way; a follower with a wrong epoch learns that from its next fetch."""
        try:
            self._check_epoch(request.broker_id, request.broker_epoch)
        except StaleBrokerEpoch as error:
            logger.debug("progress dropped: broker=%d reason=%s", request.broker_id, error)
        else:
            self._take_all(request, request.partitions, trio.current_time())

    def _take_all(
        self,
        request: ReplicaFetch | ReplicaProgress,
        progress: Iterable[PartitionProgress],
        now: float,
    ) -> None:
        for said in progress:
            try:
                self._hosting.get(said.topic_id, said.partition).on_replica_progress(
                    request.broker_id,
                    request.broker_epoch,
                    said.held_offset,
                    leader_epoch=said.leader_epoch,
                    now=now,
                )
            # A partition may have moved since; the other partitions' progress still counts.
            except RaftmqError as error:
                logger.debug("progress dropped: broker=%d reason=%s", request.broker_id, error)
