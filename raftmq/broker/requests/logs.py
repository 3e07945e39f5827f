"""DescribeLogs: bytes, start and end of the logs on this broker, leaders and followers alike.

Answers from memory and reads no file: a list of topics may be asked for often. A topic that has no
replica here has no row and is no error, as each broker is asked for the same topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.partition.replica_environment import PartitionKey
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.topics import DescribeLogs, DescribeLogsReply, LogCursor, LogRow

if TYPE_CHECKING:
    from raftmq.broker.replication.replicas import Replicas
    from raftmq.partition.replica import Replica
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer


class LogDescriptions:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handlers(self) -> Handlers:
        return {DescribeLogs: self.describe}

    def describe(self, _context: RequestContext, request: DescribeLogs, _payload: Buffer) -> Reply:
        topics = None if request.topics is None else frozenset(request.topics)
        cursor = request.first
        first = None if cursor is None else PartitionKey(cursor.topic_id, cursor.partition)
        found = {
            replica.key: replica
            for replica in self._replicas.all()
            if (topics is None or replica.key.topic_id in topics)
            and (first is None or replica.key >= first)
        }
        keys = sorted(found)
        page, rest = keys[: request.logs_max], keys[request.logs_max :]
        following = LogCursor(*rest[0]) if rest else None
        return Reply(DescribeLogsReply(tuple(_row(found[key]) for key in page), following))


def _row(replica: Replica) -> LogRow:
    log = replica.log
    return LogRow(*replica.key, log.size, log.log_start_offset, log.log_end_offset)
