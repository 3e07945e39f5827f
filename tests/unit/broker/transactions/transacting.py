"""One broker that coordinates transaction ids, on a fake quorum, with leaders that answer as told.

Broker 2 is the coordinator and broker 1 leads the quorum, as with the groups. The network stands
between the coordinator and leaders, so that its end is the border: `Leaders` answers questions.
Time is virtual: tests take `autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.broker import table_of
from raftmq.broker.groups.group_requests import GroupRequests, MemberRequests
from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.broker.transactions.coordinator import TransactionCoordinator
from raftmq.errors import ErrorCode, Unreachable
from raftmq.metadata.commands import SUPPORTED_LEVEL
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.producers import InitProducerId, InitProducerIdReply
from raftmq.wire.messages.transactions import (
    EndTxn,
    EndTxnReply,
    PartitionSettled,
    TransactionsSettled,
    TransactionsSettledReply,
)
from tests.unit.broker.asking import ORDERS, cluster_of, make
from tests.unit.broker.groups.coordinating import HERE, QUICK, Coordinating, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.metadata.image import TransactionState
    from tests.simulation.quorum_fake import FakeCluster

ID, OTHER_ID = "billing-1", "shipping-1"
OWNER, OTHER_OWNER = b"w" * 16, b"x" * 16
TIMEOUT_MS_MAX = 900_000


class Leaders:
    """Attributes:
    asked: questions so far, with the broker and the time of each.
    unsettled: partitions whose leaders say no.
    silent: brokers that do not answer.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, TransactionsSettled]] = []
        self.unsettled: set[tuple[bytes, int]] = set()
        self.silent: set[int] = set()

    async def ask(self, broker_id: int, request: TransactionsSettled) -> TransactionsSettledReply:
        self.asked.append((trio.current_time(), broker_id, request))
        if broker_id in self.silent:
            await trio.sleep(5.0)
            raise Unreachable(f"broker {broker_id} is silent")
        await trio.sleep(0.001)
        told = []
        for one in request.partitions:
            is_settled = (one.topic_id, one.partition) not in self.unsettled
            settled = (is_settled,) * len(one.transactions)
            told.append(PartitionSettled(one.topic_id, one.partition, settled=settled))
        return TransactionsSettledReply(tuple(told))


class Transacting(Coordinating):
    """Attributes:
    leaders: of all partitions.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, QUICK)
        self.leaders = Leaders()
        self.transactions = TransactionCoordinator(
            self.coordinator,
            self.quorum,
            ask_settled=self.leaders.ask,
            without_id=lambda _request: Reply(InitProducerIdReply(producer_id=77)),
            timeout_ms_max=TIMEOUT_MS_MAX,
            voters=(1, 2, 3),
            confirmed_ms=lambda: self.now_ms if self.is_clock_confirmed else None,
        )
        self.handlers = table_of(
            [
                MemberRequests(self.coordinator, Random(1), voters=()),
                OffsetRequests(self.coordinator),
                GroupRequests(self.coordinator),
                self.transactions,
            ]
        )

    def row(self, name: str = ID) -> TransactionState | None:
        return self.cluster.leader.image.transactions.get(name)

    async def open(self, name: str = ID, **more: Any) -> InitProducerIdReply:
        reply: InitProducerIdReply = await self.ask(open_of(name, **more))
        return reply

    async def opened(self, name: str = ID, **more: Any) -> InitProducerIdReply:
        reply = await self.open(name, **more)
        assert reply.error == ErrorCode.NONE, reply.message
        return reply

    async def end(self, opened: Any, **more: Any) -> EndTxnReply:
        reply: EndTxnReply = await self.ask(end_of(opened, **more))
        return reply


def open_of(name: str = ID, *, owner: bytes = OWNER, opening: int = 1, **more: Any) -> Any:
    return InitProducerId(transaction_id=name, owner=owner, opening=opening, **more)


def end_of(opened: Any, *, name: str = ID, owner: bytes = OWNER, **more: Any) -> EndTxn:
    """Of the transaction that `opened`, or the reply to an end before, names."""
    more = {"is_commit": True, **more}
    partitions = tuple(TopicPartition(ORDERS, each) for each in more.pop("partitions", ()))
    return EndTxn(
        name, opened.producer_id, opened.producer_epoch, owner=owner, partitions=partitions, **more
    )


@asynccontextmanager
async def transacting(
    *names: str, level: int = SUPPORTED_LEVEL, partition_count: int = 3
) -> AsyncIterator[Transacting]:
    """The slots of these ids, or of ID, are this broker's; partition 0 is led by broker 1, and so
    on."""
    cluster = await cluster_of(None, None, None, level=level)
    await make(cluster, *(((each % 3) + 1,) for each in range(partition_count)))
    here = Transacting(cluster)
    slots = {slot_of(name): name for name in names or (ID,)}
    await here.give(HERE, *slots.values())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.coordinator.run)
        nursery.start_soon(here.transactions.settling.run)
        await settle()
        yield here
        nursery.cancel_scope.cancel()
