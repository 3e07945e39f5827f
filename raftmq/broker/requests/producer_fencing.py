"""FenceProducer: fences earlier processes of a named producer; returns what each partition holds.

Owns the request from its name to its answer, which comes once every fence is committed: what it
says about a partition is then true for any later leader (decision 0022). (Kafka: InitProducerId of
a transactional producer)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.requests.produce import PendingAcknowledgements
from raftmq.errors import InvalidRequest, RaftmqError
from raftmq.metadata.commands import FeatureLevel
from raftmq.rpc.reply import Reply
from raftmq.wire.batch.header import named_producer_id
from raftmq.wire.bodies import ACKS_ALL, clip_message
from raftmq.wire.messages.producers import FenceProducer, FenceProducerReply, PartitionFenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.partition.replica import Replica
    from raftmq.partition.sequences import ProducerState
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import PendingReply
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.producers import PartitionToFence


class _Fenced(NamedTuple):
    """A fence in the log, possibly not committed yet."""

    wanted: PartitionToFence
    replica: Replica
    leader_epoch: int  # under which it was appended
    producer: ProducerState
    end_offset: int


class ProducerFencing:
    def __init__(self, replicas: Replicas, feature_level: Callable[[], int]) -> None:
        self._replicas, self._feature_level = replicas, feature_level

    def handlers(self) -> Handlers:
        return {FenceProducer: self.fence}

    def fence(
        self, _context: RequestContext, request: FenceProducer, _payload: Buffer
    ) -> PendingReply:
        """Raises InvalidRequest: no name is given."""
        if not request.name:
            raise InvalidRequest("the name of a producer is empty: give it 1 to 255 characters")
        producer_id = named_producer_id(request.name)
        outcomes = [self._append(wanted, producer_id, request) for wanted in request.partitions]
        awaited = [(at, one) for at, one in enumerate(outcomes) if isinstance(one, _Fenced)]
        answer = partial(self._answer, producer_id, outcomes)
        deadline = trio.current_time() + request.timeout_ms / 1000
        # acks=all: a fence that a new leader lacks would fence nothing.
        return PendingAcknowledgements(awaited, answer, acks=ACKS_ALL, deadline=deadline).pending

    def _append(
        self, wanted: PartitionToFence, producer_id: int, request: FenceProducer
    ) -> _Fenced | PartitionFenced:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader_epoch = replica.leading(wanted.leader_epoch).leader_epoch
            fenced = replica.fence(
                producer_id,
                request.generation,
                partition_count=request.partition_count,
                leader_epoch=leader_epoch,
            )
        # One partition's refusal is its own outcome; the others are fenced.
        except RaftmqError as error:
            return self._refused(wanted, error)
        return _Fenced(wanted, replica, leader_epoch, *fenced)

    def _refused(self, wanted: PartitionToFence, error: RaftmqError) -> PartitionFenced:
        """The fence may be in the log all the same; another one may follow in any case."""
        leader, leader_epoch = self._replicas.leader_of(wanted.topic_id, wanted.partition)
        return PartitionFenced(
            wanted.topic_id,
            wanted.partition,
            error=error.code,
            message=clip_message(str(error)),
            leader=leader,
            leader_epoch=leader_epoch,
        )

    def _answer(
        self,
        producer_id: int,
        outcomes: list[_Fenced | PartitionFenced],
        errors: dict[int, RaftmqError],
    ) -> Reply:
        partitions = (self._outcome(one, errors.get(at)) for at, one in enumerate(outcomes))
        return Reply(FenceProducerReply(producer_id, tuple(partitions)))

    def _outcome(
        self, one: _Fenced | PartitionFenced, error: RaftmqError | None
    ) -> PartitionFenced:
        # Refused before it was appended.
        if isinstance(one, PartitionFenced):
            return one
        # Appended, and not acknowledged in time.
        if error is not None:
            return self._refused(one.wanted, error)
        return PartitionFenced(
            one.wanted.topic_id,
            one.wanted.partition,
            producer_epoch=one.producer.epoch,
            next_sequence=one.producer.next_sequence,
            digest=one.producer.digest,
            end_offset=one.end_offset,
            partition_count=one.producer.partition_count,
            takes_head_crc=self._feature_level() >= FeatureLevel.TAGS,
        )
