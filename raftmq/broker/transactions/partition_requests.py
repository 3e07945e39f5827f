"""Questions to leaders about transactions: what is open in a partition, and what is settled.

A coordinator asks `TransactionsSettled` before it forgets a commit: only the leader of exactly the
epoch that it names may answer, as a deposed one may lack the records (decision 0038).
`DescribeProducers` is for people who look for what holds up readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.transactions import transaction_id_of
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ID_MAX, clip_message
from raftmq.wire.messages.transactions import (
    OPEN_MAX,
    DescribeProducers,
    DescribeProducersReply,
    OpenInPartition,
    PartitionOpen,
    PartitionSettled,
    TransactionsSettled,
    TransactionsSettledReply,
)

if TYPE_CHECKING:
    from raftmq.broker.replication.replicas import Replicas
    from raftmq.partition.replica_environment import PartitionTransaction
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import TopicPartition
    from raftmq.wire.messages.transactions import PartitionToSettle


class PartitionTransactionRequests:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handlers(self) -> Handlers:
        return {TransactionsSettled: self.settled, DescribeProducers: self.describe}

    def settled(
        self, _context: RequestContext, request: TransactionsSettled, _payload: Buffer
    ) -> Reply:
        return Reply(self.tell_settled(request))

    def tell_settled(self, request: TransactionsSettled) -> TransactionsSettledReply:
        """For the coordinator on this very broker, too."""
        told = tuple([self._settled(wanted) for wanted in request.partitions])
        return TransactionsSettledReply(told)

    def _settled(self, wanted: PartitionToSettle) -> PartitionSettled:
        key = wanted.topic_id, wanted.partition
        try:
            replica = self._replicas.get(*key)
            settled = [
                replica.is_settled(
                    wanted.leader_epoch,
                    range(one.producer_id, one.producer_id + one.producer_ids),
                    one.producer_epoch,
                )
                for one in wanted.transactions
            ]
        except RaftmqError as error:  # each partition has its own error
            return PartitionSettled(*key, error.code)
        return PartitionSettled(*key, settled=tuple(settled))

    def describe(
        self, _context: RequestContext, request: DescribeProducers, _payload: Buffer
    ) -> Reply:
        # All partitions of a reply together, as it has to fit into one header.
        rows_max = OPEN_MAX // max(1, len(request.partitions))
        told = tuple([self._described(wanted, rows_max) for wanted in request.partitions])
        return Reply(DescribeProducersReply(told))

    def _described(self, wanted: TopicPartition, rows_max: int) -> PartitionOpen:
        key = wanted.topic_id, wanted.partition
        try:
            replica = self._replicas.get(*key)
            leader = replica.leading()
        except RaftmqError as error:  # each partition has its own error, and names the leader
            leader_id, leader_epoch = self._replicas.leader_of(*key)
            return PartitionOpen(
                *key,
                error.code,
                clip_message(str(error)),
                leader=leader_id,
                leader_epoch=leader_epoch,
            )
        # The oldest hold up readers.
        found = sorted(replica.open_transactions(), key=lambda one: one.first_offset)
        return PartitionOpen(
            *key,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            transactions=tuple([self._row(one) for one in found[:rows_max]]),
            leader=leader.assignment.leader,
            leader_epoch=leader.leader_epoch,
            open_count=len(found),
        )

    def _row(self, one: PartitionTransaction) -> OpenInPartition:
        return OpenInPartition(
            one.producer_id,
            one.producer_epoch,
            one.first_offset,
            min(int((trio.current_time() - one.since) * 1000), ID_MAX),
            transaction_id_of(self._replicas.image(), one.producer_id) or "",
        )
