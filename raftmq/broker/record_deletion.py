"""DeleteRecords: the leader forgets the beginning of a partition; its followers do so after it.

Owns the request. Only what is committed is deleted: an uncommitted record may never have been.
Once answered, the new start is durable on the leader. A deletion that has begun is not given up,
however long the disk takes: nobody could say what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import OffsetNotAvailable, OffsetOutOfRange, RaftmqError, RequestTimedOut
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT, clip_message
from raftmq.wire.messages.topics import DeleteRecordsReply, RecordsDeleted

if TYPE_CHECKING:
    from raftmq.broker.replicas import Replicas
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete


class RecordDeletion:
    def __init__(self, replicas: Replicas, directory: LogDirectory) -> None:
        self._replicas, self._directory = replicas, directory

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DELETE_RECORDS: self.delete}

    async def delete(
        self, _context: RequestContext, request: DeleteRecords, _payload: Buffer
    ) -> Reply:
        """One after the other: each is a few operations on files."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        told = [await self._deleted(wanted, deadline) for wanted in request.partitions]
        return Reply(DeleteRecordsReply(tuple(told)))

    async def _deleted(self, wanted: RecordsToDelete, deadline: float) -> RecordsDeleted:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            start = await self._delete(replica, wanted.before_offset, deadline)
        except RaftmqError as error:
            message = clip_message(str(error))
            return RecordsDeleted(wanted.topic_id, wanted.partition, error.code, message)
        return RecordsDeleted(wanted.topic_id, wanted.partition, log_start_offset=start)

    async def _delete(self, replica: Replica, before_offset: int, deadline: float) -> int:
        offset = _committed_end(replica) if before_offset == ABSENT else before_offset
        _check_committed(replica, offset)
        with trio.move_on_at(deadline):
            return await self._directory.delete_records(replica.log, offset)
        raise RequestTimedOut(f"{replica.log.name}: the disk took too long; ask again")


def _committed_end(replica: Replica) -> int:
    if not replica.leading().is_established:
        raise _not_known(replica)
    return replica.high_watermark


def _check_committed(replica: Replica, offset: int) -> None:
    """Beyond the high watermark, a new leader cannot tell what is committed and what is not."""
    leader = replica.leading()
    if offset <= replica.high_watermark:
        return
    if offset <= replica.log.log_end_offset and not leader.is_established:
        raise _not_known(replica)
    raise OffsetOutOfRange(
        f"{replica.log.name}: records are committed up to {replica.high_watermark},"
        f" not up to {offset}"
    )


def _not_known(replica: Replica) -> OffsetNotAvailable:
    name = replica.log.name
    return OffsetNotAvailable(f"{name}: its leader does not know yet what is committed: ask again")
