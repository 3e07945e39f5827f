"""What has rotted here, put right with what the leader holds.

Owns the way there: batch after batch as any reader gets them, checked, and written in their old
place. Nothing is cut for it: what is whole behind the rot may be all that is left where the leader
has rotted, too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord, ErrorCode, RaftmqError, RequestTimedOut, error_for
from raftmq.partition.storage.mending import plan_mending
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import Fetch, FetchPartition

if TYPE_CHECKING:
    from raftmq.broker.asking import Asking
    from raftmq.partition.leader import Assignment
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import BatchStart
    from raftmq.wire.messages.fetch import PartitionFetched

PIECE_BYTES = 1 << 20
ANSWER_SECONDS_MAX = 10.0

logger = logging.getLogger(__name__)


class RotRepair:
    def __init__(self, peers: Asking, directory: LogDirectory) -> None:
        self._peers, self._directory = peers, directory

    async def put_right(self, replica: Replica, known: Assignment) -> None:
        """As far as it can be: rot that is still there afterwards lies where the leader's log is
        another one, or does not show what it holds, and has to be cut.

        Raises:
            RaftmqError: some of it not now. Nothing must be cut.
        """
        problem: RaftmqError | None = None
        for rot in replica.log.rotten:
            try:
                await self._put_right(replica, rot, known)
            except RaftmqError as error:  # the leader has rotted there, perhaps, and nowhere else
                problem = error
        if problem is not None:
            raise problem

    async def _put_right(self, replica: Replica, rot: Rot, known: Assignment) -> None:
        place: BatchStart | None = rot.begin
        while place is not None and rot in replica.log.rotten:
            told, data = await self._fetch(replica, place.offset, known)
            if told.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._begin_behind(replica, rot, told.log_start_offset)
                return
            if told.error != ErrorCode.NONE:
                raise error_for(told.error, told.message)
            place = await self._write(replica, rot, place, data, known)

    async def _fetch(
        self, replica: Replica, offset: int, known: Assignment
    ) -> tuple[PartitionFetched, bytes | memoryview]:
        wanted = FetchPartition(
            *replica.key,
            fetch_offset=offset,
            leader_epoch=known.leader_epoch,
            bytes_max=PIECE_BYTES,
        )
        request = Fetch(max_wait_ms=0, bytes_min=0, bytes_max=PIECE_BYTES, partitions=(wanted,))
        answer = await self._peers.request(
            known.leader, request, timeout_seconds=ANSWER_SECONDS_MAX
        )
        told = answer.body.partitions
        if len(told) != 1:
            raise RequestTimedOut(f"broker {known.leader} tells nothing of {replica.log.name}")
        return told[0], answer.payload

    async def _write(
        self,
        replica: Replica,
        rot: Rot,
        place: BatchStart,
        data: bytes | memoryview,
        known: Assignment,
    ) -> BatchStart | None:
        """Where the next batch goes; None: there is none, or it does not belong there."""
        log = replica.log
        try:
            mending = plan_mending(log, rot, place, data) if data else None
        except CorruptRecord as error:
            self._report(replica, error.offset, known)
            raise
        if mending is None:
            return None
        await self._directory.mend(log, mending)
        if mending.is_last:
            logger.info(
                "rot is put right: log=%s offset=%d end_offset=%d leader=%d",
                log.name, rot.offset, mending.end.offset, known.leader,
            )  # fmt: skip
        return mending.end

    def _report(self, replica: Replica, offset: int | None, known: Assignment) -> None:
        """The leader should look at its disk; what it finds it shows by what it does."""
        if offset is not None:
            report = ReportCorruption(*replica.key, offset, known.leader_epoch)
            self._peers.ask(
                known.leader, report, lambda _outcome: None, timeout_seconds=ANSWER_SECONDS_MAX
            )

    async def _begin_behind(self, replica: Replica, rot: Rot, leader_start_offset: int) -> None:
        """The leader has deleted it."""
        if leader_start_offset >= rot.end_offset:
            replica.leader_start_offset = leader_start_offset
            await replica.follow_log_start()
