"""Which offset belongs to a time, and where a leader epoch ends: what only the leader can tell.

Owns both requests. Nothing at or beyond the high watermark is given away. While a new leader's
high watermark has not reached its epoch, what is committed ends at an unknown place: then the end
is not told at all (KIP-207), so that it never goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import OffsetNotAvailable, RaftmqError
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.messages.offsets import (
    EARLIEST,
    LATEST,
    FoundEpoch,
    FoundOffset,
    ListOffsetsReply,
    OffsetForLeaderEpochReply,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from raftmq.broker.replicas import Replicas
    from raftmq.model import TimestampOffset
    from raftmq.partition.leader import Leader
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.offsets import (
        ListOffsets,
        OffsetForLeaderEpoch,
        WantedEpoch,
        WantedOffset,
    )


class Offsets:
    def __init__(self, replicas: Replicas, directory: LogDirectory) -> None:
        self._replicas, self._directory = replicas, directory

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.find_epochs,
        }

    def list_offsets(
        self, _context: RequestContext, request: ListOffsets, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """Only a search by time has to wait for the disk."""
        if any(wanted.timestamp >= 0 for wanted in request.partitions):
            return self._search(request)
        found = [self._found_at_end(wanted) for wanted in request.partitions]
        return Reply(ListOffsetsReply(tuple(found)))

    def find_epochs(
        self, _context: RequestContext, request: OffsetForLeaderEpoch, _payload: Buffer
    ) -> Reply:
        found = [self._found_epoch(wanted) for wanted in request.partitions]
        return Reply(OffsetForLeaderEpochReply(tuple(found)))

    async def _search(self, request: ListOffsets) -> Reply:
        found = [
            await self._found_by_time(wanted)
            if wanted.timestamp >= 0
            else self._found_at_end(wanted)
            for wanted in request.partitions
        ]
        return Reply(ListOffsetsReply(tuple(found)))

    def _found_at_end(self, wanted: WantedOffset) -> FoundOffset:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader = replica.leading(wanted.leader_epoch)
            if wanted.timestamp == EARLIEST:
                return _found(wanted, replica, offset=replica.log.log_start_offset)
            assert wanted.timestamp == LATEST, f"{wanted} is to be searched for"
            _check_established(replica, leader)
            return _found(wanted, replica, offset=replica.high_watermark)
        except RaftmqError as error:
            return _not_found(wanted, error)

    async def _found_by_time(self, wanted: WantedOffset) -> FoundOffset:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader = replica.leading(wanted.leader_epoch)
            answer = await self._directory.offset_for_timestamp(replica.log, wanted.timestamp)
            replica.leading(leader.leader_epoch)  # of another epoch the log may be another, too
            return _committed(wanted, replica, leader, answer)
        except RaftmqError as error:
            return _not_found(wanted, error)

    def _found_epoch(self, wanted: WantedEpoch) -> FoundEpoch:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            replica.leading(wanted.current_leader_epoch)
        except RaftmqError as error:
            return FoundEpoch(wanted.topic_id, wanted.partition, error.code)
        log = replica.log
        end = log.epochs.end_of(wanted.leader_epoch, log.log_end_offset)
        if end is None:
            return FoundEpoch(wanted.topic_id, wanted.partition)
        return FoundEpoch(
            wanted.topic_id,
            wanted.partition,
            leader_epoch=end.leader_epoch,
            end_offset=end.end_offset,
        )


def _committed(
    wanted: WantedOffset, replica: Replica, leader: Leader, answer: TimestampOffset | None
) -> FoundOffset:
    """1. A committed record. 2. There may be one, nobody knows yet. 3. There is none."""
    if answer is not None and answer.offset < replica.high_watermark:
        return _found(wanted, replica, offset=answer.offset, timestamp=answer.timestamp)
    _check_established(replica, leader)
    return FoundOffset(wanted.topic_id, wanted.partition)


def _check_established(replica: Replica, leader: Leader) -> None:
    if not leader.is_established:
        raise OffsetNotAvailable(
            f"{replica.log.name}: the leader of epoch {leader.leader_epoch} does not know yet what"
            " is committed: ask again"
        )


def _found(
    wanted: WantedOffset, replica: Replica, *, offset: int, timestamp: int = -1
) -> FoundOffset:
    return FoundOffset(
        wanted.topic_id,
        wanted.partition,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=replica.log.epochs.epoch_at(offset),
    )


def _not_found(wanted: WantedOffset, error: RaftmqError) -> FoundOffset:
    return FoundOffset(wanted.topic_id, wanted.partition, error.code)
