"""Consumers' fetches from a broker that leads a topic with transactions."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.requests.fetch import FetchRequests
from raftmq.broker.requests.fetch_sessions import FetchPurgatory
from raftmq.model import IsolationLevel
from raftmq.tag_filter import tag_filter
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.messages.fetch import WITHOUT_SESSION, Fetch, FetchPartition
from raftmq.wire.tag_clauses import pack_filter
from tests.simulation.deterministic import run_inline
from tests.unit.broker.copying import CLIENT, answered, payload_of, told_of
from tests.unit.broker.hosting import TOPIC_ID
from tests.unit.broker.transacting import leading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from raftmq.disk.thread import RunSync
    from raftmq.partition.replica import Replica
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.reply import Reply
    from raftmq.wire.batch.header import BatchHeader
    from raftmq.wire.messages.fetch import PartitionFetched
    from tests.simulation.quorum_fake import FakeCluster
    from tests.unit.broker.hosting import Node


class Reader:
    """Fetches from a partition of this broker."""

    def __init__(self, node: Node, waiting: FetchPurgatory) -> None:
        self._requests = FetchRequests(node.replicas, node.directory, waiting, Random(1))

    def ask(
        self,
        *offsets: int,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
        wait_ms: int = 0,
        takes_gaps: bool = True,
        session: tuple[int, int] = (0, WITHOUT_SESSION),
        bytes_max: int = 1 << 20,
        tags: str = "*",
        context: RequestContext = CLIENT,
        **wanted: Any,
    ) -> Awaitable[Reply]:
        """`offsets`: of partition 0, 1 ...; `tags`: the filter, an expression."""
        partitions = tuple(
            FetchPartition(TOPIC_ID, number, offset, **wanted)
            for number, offset in enumerate(offsets)
        )
        request = Fetch(
            wait_ms,
            1,
            bytes_max,
            *session,
            partitions=partitions,
            isolation_level=level,
            takes_gaps=takes_gaps,
            tags=pack_filter(tag_filter(tags)),
        )
        return answered(self._requests.fetch(context, request, b""))

    async def told(self, offset: int, **wanted: Any) -> PartitionFetched:
        return told_of(await self.ask(offset, **wanted))[0]


@asynccontextmanager
async def reading(
    *, partitions: int = 1, run_sync: RunSync = run_inline, **around: Any
) -> AsyncIterator[tuple[FakeCluster, Node, Replica, Reader]]:
    async with (
        leading(partitions=partitions, run_sync=run_sync, **around) as (cluster, node),
        trio.open_nursery() as nursery,
    ):
        waiting = FetchPurgatory()
        await nursery.start(waiting.run)
        yield cluster, node, node.replicas.get(TOPIC_ID, 0), Reader(node, waiting)
        nursery.cancel_scope.cancel()


def batches_in(reply: Reply) -> list[BatchHeader]:
    return [header for _, header in iter_batches(payload_of(reply))]


def offsets_in(reply: Reply) -> list[int]:
    """Base offsets of the batches."""
    return [one.base_offset for one in batches_in(reply)]
