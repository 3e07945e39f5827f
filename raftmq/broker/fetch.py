"""Fetch: what consumers read. Nothing at or beyond the high watermark, and only from the leader.

Owns what a consumer may see. A consumer that says what it read last learns where that parts from
this log (KIP-320): it has read records that an unclean election took back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.fetch_sessions import Bounds, FetchSessions
from raftmq.broker.fetch_turn import FetchTurn, Limits, Seen
from raftmq.errors import OffsetOutOfRange
from raftmq.wire.apis import ApiKey

if TYPE_CHECKING:
    from random import Random

    from raftmq.broker.fetch_sessions import SessionPartition
    from raftmq.broker.fetch_turn import Hosting
    from raftmq.broker.waiting_fetches import WaitingFetches
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import PendingReply
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.fetch import Fetch


class Fetching:
    """Attributes:
    sessions: of consumers.
    """

    tells_bounds = False

    def __init__(
        self,
        hosting: Hosting,
        directory: LogDirectory,
        waiting: WaitingFetches,
        random: Random,
    ) -> None:
        self._hosting, self._directory, self._waiting = hosting, directory, waiting
        self.sessions = FetchSessions(random)

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, context: RequestContext, request: Fetch, _payload: Buffer) -> PendingReply:
        """Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch."""
        session = self.sessions.enter(request.session_id, request.session_epoch, context.principal)
        session.forget(request.forgotten)
        for wanted in request.partitions:
            session.name(wanted)
        limits = Limits(request.max_wait_ms, request.bytes_min, request.bytes_max)
        return FetchTurn(
            session, self, self._hosting, self._directory, self._waiting, limits
        ).start()

    def look(self, replica: Replica, partition: SessionPartition) -> Seen:
        """Raises RaftmqError: what to tell in place of records."""
        wanted, log = partition.wanted, replica.log
        leader = replica.leading(wanted.leader_epoch)
        bounds = Bounds(replica.high_watermark, log.log_start_offset)
        if wanted.fetch_offset >= log.log_start_offset and wanted.last_fetched_epoch >= 0:
            diverged = replica.divergence(leader, wanted.last_fetched_epoch, wanted.fetch_offset)
            if diverged:
                return Seen(0, bounds, diverged)
        if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            raise OffsetOutOfRange(
                f"{log.name} has offsets from {log.log_start_offset} to {replica.high_watermark}, "
                f"not {wanted.fetch_offset}"
            )
        return Seen(replica.high_watermark, bounds)
