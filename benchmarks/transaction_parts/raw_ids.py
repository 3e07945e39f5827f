"""Transaction ids without the SDK's producers: their requests, as cheap as a client can make them.

Owns the numbers of one id: its producer id and epoch, which each answer names anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.transactions import EndTxn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import TopicPartition
    from raftmq.wire.messages.producers import InitProducerIdReply
    from raftmq.wire.messages.transactions import EndTxnReply

TIMEOUT_SECONDS = 60.0
TIMEOUT_MS = round(TIMEOUT_SECONDS * 1000)
AT_ONCE = 64


class RawId:
    """Attributes:
    is_free: held by the one that ends its transaction.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name, self.is_free = name, trio.Lock()
        self.coordinator = CoordinatorLookup(cluster, name)
        self._owner, self.producer_id, self.producer_epoch = os.urandom(16), -1, -1

    async def open(self) -> None:
        body = InitProducerId(
            timeout_ms=TIMEOUT_MS,
            transaction_id=self.name,
            owner=self._owner,
        )
        reply: InitProducerIdReply = await self.coordinator.ask(
            lambda: body,
            checked,
            deadline=trio.current_time() + TIMEOUT_SECONDS,
            repeats=RepeatEffect.HARMLESS,
        )
        self.producer_id, self.producer_epoch = reply.producer_id, reply.producer_epoch

    async def commit(self, partitions: tuple[TopicPartition, ...] = ()) -> Answer:
        """Once: an error ends the benchmark."""
        body = EndTxn(
            self.name,
            self.producer_id,
            self.producer_epoch,
            is_commit=True,
            owner=self._owner,
            partitions=partitions,
            timeout_ms=TIMEOUT_MS,
        )
        deadline = trio.current_time() + TIMEOUT_SECONDS
        answer = await self.coordinator.ask_once(body, deadline=deadline)
        reply: EndTxnReply = checked(answer.body)
        assert reply.is_committed, f"{self.name}: {reply}"
        self.producer_id, self.producer_epoch = reply.producer_id, reply.producer_epoch
        return answer


async def for_all(ids: Iterable[RawId], act: Callable[[RawId], Awaitable[object]]) -> None:
    """With 64 of them under way."""
    waiting = iter(ids)

    async def work() -> None:
        for one in waiting:
            await act(one)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(work)
