"""Produce: append batches, wait for acks, answer. (Kafka: DelayedProduce)

Owns the request from its bytes to its answer. Batches of one partition are appended in the order of
the requests, because `produce` itself never waits; only the answer does, without a task of its own
(decision 0016).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from raftmq.errors import ErrorCode, InvalidTimestamp, MessageTooLarge, RaftmqError
from raftmq.partition.storage.lookups import append_times_now
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProduceReply, split_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.partition.acknowledgements import Waiter
    from raftmq.partition.replica import Replica
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.produce import ProducePartition


# -- Acknowledging --------------------------------------------------------------------------------
# One request that waits until what it appended is held: the last acknowledgement answers it.
#
# Owns the wait. It needs no task, as thousands of requests may wait.


class PendingAppend(Protocol):
    """In a log, and possibly not held by enough replicas yet."""

    @property
    def replica(self) -> Replica: ...
    @property
    def leader_epoch(self) -> int:
        """Under which it was appended."""

    @property
    def end_offset(self) -> int: ...


class PendingAcknowledgements:
    """`answer` gets the errors by place in the request; an entry without one is held as `acks`
    demands.

    Attributes:
        pending: the reply.
    """

    def __init__(
        self,
        awaited: Iterable[tuple[int, PendingAppend]],
        answer: Callable[[dict[int, RaftmqError]], Reply],
        *,
        acks: int,
        deadline: float,
    ) -> None:
        self.pending = PendingReply(self._abandon)
        self._answer = answer
        self._errors: dict[int, RaftmqError] = {}
        self._waiters: list[Waiter] = []
        self._missing = 1  # this constructor: acks that are there at once must not answer early
        for at, one in awaited:
            self._wait(at, one, acks, deadline)
        self._count_down()

    def _wait(self, at: int, one: PendingAppend, acks: int, deadline: float) -> None:
        self._missing += 1
        waiter = one.replica.on_acks(
            one.end_offset,
            partial(self._on_end, at),
            acks=acks,
            leader_epoch=one.leader_epoch,
            deadline=deadline,
        )
        # None: settled at once, by `_on_end`.
        if waiter is not None:
            self._waiters.append(waiter)

    def _on_end(self, at: int, error: RaftmqError | None) -> None:
        if error is not None:  # timeout, or the end of the leader epoch
            self._errors[at] = error
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        # The last one: acknowledgement, timeout or end of the leader epoch.
        if not self._missing:
            self.pending.settle(self._answer(self._errors))

    def _abandon(self) -> None:
        for waiter in self._waiters:
            waiter.abandon()


# -- Produce --------------------------------------------------------------------------------------


TOLD_LIMITS = (MessageTooLarge, InvalidTimestamp)  # the producer may split, or learns the limit


class _Appended(NamedTuple):
    """In the log, from now or an earlier request, and possibly not held by enough replicas yet."""

    wanted: ProducePartition
    replica: Replica
    leader_epoch: int  # under which it was appended
    base_offset: int
    end_offset: int
    base_offsets: tuple[int, ...]  # of duplicates: where the batches stand in the log
    append_time_ms: int  # of all of them, where the topic has LogAppendTime
    append_times_ms: tuple[int, ...]  # of each batch, if there were duplicates

    def is_held(self, acks: int) -> bool:
        epoch = self.leader_epoch
        return self.replica.has_acks(self.end_offset, acks=acks, leader_epoch=epoch)


class ProduceRequests:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handlers(self) -> Handlers:
        return {Produce: self.produce}

    def produce(
        self, _context: RequestContext, request: Produce, payload: bytes | memoryview
    ) -> Reply | PendingReply | None:
        buffers = split_payload([wanted.length for wanted in request.partitions], payload)
        appended = [
            self._append(wanted, data, request.acks)
            for wanted, data in zip(request.partitions, buffers, strict=True)
        ]
        # The producer wants no answer at all, not even an error.
        if request.acks == 0:
            return None
        awaited = [
            (at, one)
            for at, one in enumerate(appended)
            if isinstance(one, _Appended) and not one.is_held(request.acks)
        ]
        # Nothing to wait for: acks=1, a single replica, or only refusals.
        if not awaited:
            return self._answer(appended, {})
        deadline = trio.current_time() + request.timeout_ms / 1000
        answer = partial(self._answer, appended)
        return PendingAcknowledgements(
            awaited, answer, acks=request.acks, deadline=deadline
        ).pending

    def _append(
        self, wanted: ProducePartition, data: Buffer, acks: int
    ) -> _Appended | PartitionProduced:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            appended = replica.append(data, acks=acks, leader_epoch=wanted.leader_epoch)
        # One partition's refusal is its own outcome; the others are appended.
        except RaftmqError as error:
            return self._refused(wanted, error)
        leader = replica.leader
        assert leader is not None, "appended, and does not lead"
        # A duplicate has the time of its first append, which only the log knows.
        times = (
            append_times_now(replica.log, appended.base_offsets)
            if appended.base_offsets and replica.log.stamps_time
            else ()
        )
        return _Appended(wanted, replica, leader.leader_epoch, *appended, times)

    def _refused(
        self, wanted: ProducePartition, error: RaftmqError, appended: _Appended | None = None
    ) -> PartitionProduced:
        """With a base offset: it was appended, and may be committed or not."""
        leader, leader_epoch = self._replicas.leader_of(wanted.topic_id, wanted.partition)
        return PartitionProduced(
            wanted.topic_id,
            wanted.partition,
            error=error.code,
            message=str(error),
            base_offset=appended.base_offset if appended else ABSENT,
            leader=leader,
            leader_epoch=leader_epoch,
            base_offsets=appended.base_offsets if appended else (),
            allowed=error.allowed if isinstance(error, TOLD_LIMITS) else ABSENT,
        )

    def _answer(
        self, appended: list[_Appended | PartitionProduced], errors: dict[int, RaftmqError]
    ) -> Reply:
        outcomes = [self._outcome(one, errors.get(at)) for at, one in enumerate(appended)]
        return Reply(ProduceReply(tuple(outcomes)))

    def _outcome(
        self, one: _Appended | PartitionProduced, error: RaftmqError | None
    ) -> PartitionProduced:
        # Refused before it was appended.
        if isinstance(one, PartitionProduced):
            return one
        # Appended, and not acknowledged: its outcome is unknown.
        if error is not None:
            return self._refused(one.wanted, error, one)
        return PartitionProduced(
            one.wanted.topic_id,
            one.wanted.partition,
            error=ErrorCode.NONE,
            base_offset=one.base_offset,
            log_start_offset=one.replica.log.log_start_offset,
            base_offsets=one.base_offsets,
            log_append_time_ms=one.append_time_ms,
            log_append_times_ms=one.append_times_ms,
        )
