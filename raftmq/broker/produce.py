"""Produce: the whole promise of an acknowledgement on one screen.

Owns the request from its bytes to its answer. Batches of one partition are appended in the order in
which the requests came, because `produce` itself never waits; what waits is only the answer, and no
task of its own does so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.errors import ErrorCode, RaftmqError
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.payloads import split_payload
from raftmq.wire.messages.produce import PartitionProduced, ProduceReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.broker.replicas import Replicas
    from raftmq.partition.replica import Replica
    from raftmq.partition.waiters import Waiter
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.produce import Produce, ProducePartition


class _Appended(NamedTuple):
    """In the log, and perhaps not held by enough replicas yet."""

    wanted: ProducePartition
    replica: Replica
    leader_epoch: int  # in which it was appended
    base_offset: int
    end_offset: int

    def is_held(self, acks: int) -> bool:
        epoch = self.leader_epoch
        return self.replica.has_acks(self.end_offset, acks=acks, leader_epoch=epoch)


class Producing:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(
        self, _context: RequestContext, request: Produce, payload: bytes | memoryview
    ) -> Reply | PendingReply | None:
        buffers = split_payload([wanted.length for wanted in request.partitions], payload)
        appended = [
            self._append(wanted, data, request.acks)
            for wanted, data in zip(request.partitions, buffers, strict=True)
        ]
        if request.acks == 0:
            return None
        if all(_is_over(one, request.acks) for one in appended):
            return _reply([_outcome(one) for one in appended])
        deadline = trio.current_time() + request.timeout_ms / 1000
        return _Acknowledging(self._refused, appended, request.acks, deadline).pending

    def _append(
        self, wanted: ProducePartition, data: Buffer, acks: int
    ) -> _Appended | PartitionProduced:
        try:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            leader_epoch = replica.leading(wanted.leader_epoch).leader_epoch
            appended = replica.append(data, acks=acks, leader_epoch=leader_epoch)
        except RaftmqError as error:
            return self._refused(wanted, error)
        return _Appended(wanted, replica, leader_epoch, appended.base_offset, appended.end_offset)

    def _refused(
        self, wanted: ProducePartition, error: RaftmqError, base_offset: int = ABSENT
    ) -> PartitionProduced:
        """A base offset says that it was appended, and may stay or not."""
        leader, leader_epoch = self._replicas.leader_of(wanted.topic_id, wanted.partition)
        return PartitionProduced(
            wanted.topic_id,
            wanted.partition,
            error=error.code,
            message=str(error),
            base_offset=base_offset,
            leader=leader,
            leader_epoch=leader_epoch,
        )


class _Acknowledging:
    """The acknowledgements that one request waits for; the last one answers it.

    Attributes:
        pending: the answer.
    """

    def __init__(
        self,
        refused: Callable[[ProducePartition, RaftmqError, int], PartitionProduced],
        appended: list[_Appended | PartitionProduced],
        acks: int,
        deadline: float,
    ) -> None:
        self.pending = PendingReply(self._abandon)
        self._refused, self._outcomes = refused, list(appended)
        self._waiters: list[Waiter] = []
        self._missing = 1  # whoever is told at once does not answer before all have been asked
        for at, one in enumerate(appended):
            if isinstance(one, _Appended):
                self._wait(at, one, acks, deadline)
        self._count_down()

    def _wait(self, at: int, one: _Appended, acks: int, deadline: float) -> None:
        self._missing += 1
        waiter = one.replica.on_acks(
            one.end_offset,
            partial(self._on_end, at, one),
            acks=acks,
            leader_epoch=one.leader_epoch,
            deadline=deadline,
        )
        if waiter is not None:
            self._waiters.append(waiter)

    def _on_end(self, at: int, one: _Appended, error: RaftmqError | None) -> None:
        if error is not None:
            self._outcomes[at] = self._refused(one.wanted, error, one.base_offset)
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.pending.settle(_reply([_outcome(one) for one in self._outcomes]))

    def _abandon(self) -> None:
        for waiter in self._waiters:
            waiter.abandon()


def _is_over(one: _Appended | PartitionProduced, acks: int) -> bool:
    return isinstance(one, PartitionProduced) or one.is_held(acks)


def _outcome(one: _Appended | PartitionProduced) -> PartitionProduced:
    if isinstance(one, PartitionProduced):
        return one
    return PartitionProduced(
        one.wanted.topic_id,
        one.wanted.partition,
        error=ErrorCode.NONE,
        base_offset=one.base_offset,
        log_start_offset=one.replica.log.log_start_offset,
    )


def _reply(outcomes: list[PartitionProduced]) -> Reply:
    return Reply(ProduceReply(tuple(outcomes)))
