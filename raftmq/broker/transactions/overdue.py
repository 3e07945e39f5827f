"""What takes longer than it may: `DescribeOverdue`, for people who ask how the cluster is.

A transaction that is open for longer than any timeout, though its leader has it aborted; a commit
that is not settled for a minute, though its coordinator asks. Both have a reason that somebody has
to look at, such as a partition without a leader, and neither is repaired here.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.transactions import transaction_id_of
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ID_MAX
from raftmq.wire.messages.transactions import (
    OVERDUE_MAX,
    DescribeOverdue,
    DescribeOverdueReply,
    OverdueCommits,
    OverduePartition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.broker.transactions.unsettled import Backlog
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer

# Beyond the timeout: an abort is asked at the end of the time, and again after pauses; an election
# of the quorum and of a coordinator fits in between.
GRACE_SECONDS = 10.0
UNSETTLED_SECONDS = 60.0  # brokers that restart settle what waits for them sooner


class OverdueRequests:
    """
    Args:
        unsettled: commits that are not settled for so many seconds, by transaction id.
        timeout_ms_max: the longest timeout of a transaction.
    """

    def __init__(
        self,
        replicas: Replicas,
        unsettled: Callable[[float], Mapping[str, Backlog]],
        *,
        timeout_ms_max: int,
    ) -> None:
        self._replicas, self._unsettled = replicas, unsettled
        self._open_seconds_max = timeout_ms_max / 1000 + GRACE_SECONDS

    def handlers(self) -> Handlers:
        return {DescribeOverdue: self.describe}

    def describe(
        self, _context: RequestContext, _request: DescribeOverdue, _payload: Buffer
    ) -> Reply:
        unsettled = [
            OverdueCommits(name, backlog.commits, _milliseconds(backlog.oldest_seconds))
            for name, backlog in self._unsettled(UNSETTLED_SECONDS).items()
        ]
        return Reply(
            DescribeOverdueReply(
                tuple(nlargest(OVERDUE_MAX, self._open(), key=lambda one: one.open_ms)),
                tuple(nlargest(OVERDUE_MAX, unsettled, key=lambda one: one.oldest_ms)),
            )
        )

    def _open(self) -> Iterator[OverduePartition]:
        now, image = trio.current_time(), self._replicas.image()
        for key in self._replicas.open_transactions.partitions():
            replica = self._replicas.find(key)
            if replica is None or replica.leader is None:  # another broker's by now
                continue
            oldest = min(replica.open_transactions(), key=lambda one: one.since, default=None)
            if oldest is not None and now - oldest.since > self._open_seconds_max:
                name = transaction_id_of(image, oldest.producer_id) or ""
                yield OverduePartition(*key, name, _milliseconds(now - oldest.since))


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000), ID_MAX)
