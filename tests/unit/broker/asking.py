"""A client's side of the handlers: a cluster of registered brokers, and questions in one line."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.metadata_changes import MetadataChanges
from raftmq.errors import ErrorCode, NotController
from raftmq.metadata.commands import (
    BrokerRegistered,
    CreateTopic,
    Done,
    Endpoint,
    FeatureLevel,
    FenceBroker,
    FinishReview,
    RegisterBroker,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
)
from raftmq.rpc.context import Listener, RequestContext
from tests.bodies import decode_body, encode_body
from tests.simulation.quorum_fake import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.rpc.reply import Reply
    from raftmq.rpc.server import Handler
    from raftmq.wire.bodies import Request

CONTEXT = RequestContext("anonymous", Listener("clients"), "test", 1, "peer")
NODE = 2  # whose handlers are asked; another one leads
ORDERS, USERS, UNKNOWN = b"o" * 16, b"u" * 16, b"?" * 16


class Link:
    """The way to the leader. Attributes: `sent`, the commands that took it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.sent: list[AnyCommand] = []

    async def propose(self, command: AnyCommand, *, timeout: float) -> AnyResult:  # noqa: ASYNC109  # as in the protocol
        self.sent.append(command)
        return await self._cluster.leader.propose(command, timeout=timeout)

    async def read_barrier(self, *, timeout: float) -> int:  # noqa: ASYNC109  # as in the protocol
        node = self._cluster.nodes[NODE]
        with trio.move_on_after(timeout):
            while node.leadership.leader_id is None:
                await node.wait_leadership_changed(node.leadership)
            return (await self._cluster.leader.read_barrier()).version
        raise NotController("nobody leads")


async def cluster_of(*racks: str | None, level: int = FeatureLevel.FIRST) -> FakeCluster:
    """With one active broker for each rack, from broker 1 on; `level`: what all of them know."""
    cluster = FakeCluster()
    for broker_id, rack in enumerate(racks, 1):
        endpoints = (
            Endpoint("brokers", f"inner{broker_id}", 9000),
            Endpoint("clients", f"host{broker_id}", 9092),
        )
        registered = await cluster.leader.propose(
            RegisterBroker(
                broker_id,
                bytes([broker_id]) * 16,
                bytes([broker_id]) * 16,
                endpoints,
                rack,
                feature_level_max=level,
            )
        )
        assert isinstance(registered, BrokerRegistered)
        await said(cluster, UnfenceBroker(broker_id, registered.broker_epoch))
    if level != FeatureLevel.FIRST:
        await said(cluster, SetFeatureLevel(FeatureLevel.FIRST, level))
    cluster.settle()  # whatever lag a test sets is for what comes then
    return cluster


async def said(cluster: FakeCluster, *commands: AnyCommand) -> None:
    for command in commands:
        result = await cluster.leader.propose(command)
        assert result == Done(), f"{command}: {result}"


async def make(
    cluster: FakeCluster,
    *replicas: tuple[int, ...],
    topic_id: bytes = ORDERS,
    name: str = "orders",
    **configs: str,
) -> None:
    """`configs`: underscores stand for dots."""
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    await said(cluster, CreateTopic(topic_id, name, replicas, dotted))


async def fence(cluster: FakeCluster, broker_id: int) -> None:
    """With all that follows from it."""
    epoch = cluster.leader.image.brokers[broker_id].broker_epoch
    await said(cluster, FenceBroker(broker_id, epoch))
    image = cluster.leader.image
    hosted = tuple(sorted(image.hosted_by(broker_id)))
    await said(
        cluster,
        ReviewPartitions(broker_id, epoch, hosted),
        FinishReview(broker_id, epoch, image.brokers[broker_id].pending_since),
    )


def changes(cluster: FakeCluster, link: Link | None = None) -> MetadataChanges:
    return MetadataChanges(cluster.nodes[NODE], link or Link(cluster))


async def ask(handler: Handler, request: Request, context: RequestContext = CONTEXT) -> Any:
    """The body of the answer, as it arrives: within all limits."""
    reply: Reply | Awaitable[Reply | None] | None = handler(context, request, b"")
    if isinstance(reply, Awaitable):
        reply = await reply
    assert reply is not None, f"{request} was not answered"
    assert reply.error == ErrorCode.NONE, reply.message
    assert reply.body is not None, f"{reply}"
    return decode_body(request.reply, encode_body(reply.body))


def codes(outcomes: Sequence[Any]) -> list[int]:
    return [outcome.error for outcome in outcomes]
