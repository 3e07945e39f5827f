"""Cluster calls of the admin: brokers, health, load, leader elections.

Metadata come from one broker that is not behind any version seen; damage on disk is known only to
the broker that has it, so health asks every active one. Decides nothing: elections are the
controller's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration.offsets import partitions_of
from raftmq.client.administration.questions import ask_any, find_topic_id, know_addresses
from raftmq.client.administration.results import (
    AilingPartition,
    BrokerDetails,
    BrokerLoad,
    ClusterDetails,
    DamagedReplica,
    Election,
    FragileTopic,
    Health,
    HeldPartition,
    PartitionLeader,
    UnsettledTransaction,
    WrongClock,
)
from raftmq.client.administration.topics import all_metadata
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    NotController,
    RaftmqError,
    RequestTimedOut,
    ServerError,
    Unreachable,
    error_for,
)
from raftmq.model import Address
from raftmq.rpc.protocol import shared_hosts
from raftmq.topic_config import replication_warning
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.cluster import DescribeCluster
from raftmq.wire.messages.corruption import DescribeDamage
from raftmq.wire.messages.topics import ElectLeaders, WantedElection
from raftmq.wire.messages.transactions import DescribeOverdue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.administration.results import BrokerState
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.bodies import PartitionOutcome
    from raftmq.wire.messages.cluster import BrokerDescription, DescribeClusterReply
    from raftmq.wire.messages.metadata import MetadataReply, PartitionMetadata, TopicMetadata
    from raftmq.wire.messages.topics import ElectLeadersReply

BROKERS = "brokers"  # the listener between brokers, which no program uses
# For one broker's reports: a slow one must not delay the rest of the health report
DAMAGE_SECONDS_MAX = 2.0


async def cluster_details(cluster: Cluster, *, deadline: float) -> ClusterDetails:
    """From any broker."""

    def read(reply: DescribeClusterReply) -> ClusterDetails:
        return _details(reply, cluster.routes.addresses)

    return await ask_any(
        cluster,
        lambda _timeout_ms: DescribeCluster(),
        read,
        deadline=deadline,
        repeats=RepeatEffect.HARMLESS,
    )


async def find_health(cluster: Cluster, *, deadline: float) -> Health:
    """From a broker whose metadata are not behind any version seen."""
    details = await cluster_details(cluster, deadline=deadline)
    health = _health(details, metadata := await all_metadata(cluster, deadline=deadline))
    topics = {one.topic_id: one.name for one in metadata.topics if one.topic_id is not None}
    damaged: list[DamagedReplica] = []
    untold: list[int] = []
    silent: list[int] = []
    held: list[HeldPartition] = []
    unsettled: list[UnsettledTransaction] = []
    # Others would not answer.
    active = [one.broker_id for one in details.brokers if one.state == "active"]
    limit = min(deadline, anyio.current_time() + DAMAGE_SECONDS_MAX)
    await know_addresses(cluster, active, deadline=limit)
    async with anyio.create_task_group() as tasks:
        for broker_id in active:
            seek = partial(_find_damage, cluster, broker_id, topics, damaged, untold, silent)
            tasks.start_soon(seek, deadline)
            tasks.start_soon(
                partial(_find_overdue, cluster, broker_id, topics, held, unsettled), limit
            )
    told = tuple(sorted(damaged, key=_place))
    return replace(
        health,
        silent=tuple(sorted(silent)),
        damaged=told,
        damaged_count=len(told) + sum(untold),
        held=tuple(sorted(held, key=lambda one: (one.topic, one.partition))),
        unsettled=tuple(sorted(unsettled, key=lambda one: one.transaction_id)),
    )


async def _find_damage(
    cluster: Cluster,
    broker_id: int,
    topics: Mapping[bytes, str],
    damaged: list[DamagedReplica],
    untold: list[int],
    silent: list[int],
    deadline: float,
) -> None:
    """A broker that is too old adds nothing."""
    limit = min(deadline, anyio.current_time() + DAMAGE_SECONDS_MAX)
    try:
        told = (await cluster.ask(broker_id, DescribeDamage(), deadline=limit)).body
    except (Disconnected, RequestTimedOut, Unreachable):
        silent.append(broker_id)
        return
    # An old version: the health report does without.
    except RaftmqError:
        return
    damaged += [
        DamagedReplica(topics[one.topic_id], one.partition, broker_id, one.offset, one.message)
        for one in told.replicas
        if one.topic_id in topics
    ]
    untold.append(max(0, told.count - len(told.replicas)))


async def _find_overdue(
    cluster: Cluster,
    broker_id: int,
    topics: Mapping[bytes, str],
    held: list[HeldPartition],
    unsettled: list[UnsettledTransaction],
    limit: float,
) -> None:
    """A broker that is too old, or silent, adds nothing."""
    try:
        told = (await cluster.ask(broker_id, DescribeOverdue(), deadline=limit)).body
    except RaftmqError:
        return
    held += [
        HeldPartition(
            topics[one.topic_id], one.partition, one.transaction_id or None, one.open_ms / 1000
        )
        for one in told.open
        if one.topic_id in topics
    ]
    unsettled += [
        UnsettledTransaction(one.transaction_id, one.commits, one.oldest_ms / 1000)
        for one in told.unsettled
    ]


def _place(damaged: DamagedReplica) -> tuple[str, int, int]:
    return damaged.topic, damaged.partition, damaged.broker_id


async def broker_loads(cluster: Cluster, *, deadline: float) -> dict[int, BrokerLoad]:
    """Of all brokers that hold a replica."""
    leads, replicas, lacking = Counter[int](), Counter[int](), Counter[int]()
    for topic in (await all_metadata(cluster, deadline=deadline)).topics:
        for one in topic.partitions:
            leads[one.leader] += 1
            replicas.update(one.replicas)
            lacking.update(_missing(one))
    return {
        broker_id: BrokerLoad(leads[broker_id], replicas[broker_id], lacking[broker_id])
        for broker_id in sorted(replicas)
    }


async def partition_leaders(cluster: Cluster, *, deadline: float) -> tuple[PartitionLeader, ...]:
    """Of all partitions, by topic."""
    return tuple(
        PartitionLeader(
            topic.name,
            one.partition,
            None if one.leader == ABSENT else one.leader,
            one.replicas[0],
            one.isr,
        )
        for topic in (await all_metadata(cluster, deadline=deadline)).topics
        for one in topic.partitions
        if one.replicas
    )


async def elect(
    cluster: Cluster,
    topic: str,
    partitions: Sequence[int] | None,
    *,
    is_unclean: bool,
    starts_empty: bool = False,
    deadline: float,
) -> tuple[Election, ...]:
    """Elect leaders. May be sent twice: a replica that was elected by the first one leads
    already.
    """
    numbers = await partitions_of(cluster, topic, partitions, deadline=deadline)
    topic_id = await find_topic_id(cluster, topic, deadline=deadline)
    wanted = tuple(WantedElection(topic_id, number) for number in numbers)

    def read(reply: ElectLeadersReply) -> tuple[Election, ...]:
        told = {(one.topic_id, one.partition): one for one in reply.partitions}
        # a faulty broker: its answer proves nothing
        if set(told) != {(topic_id, number) for number in numbers}:
            raise ServerError("a broker answered ElectLeaders for other partitions")
        elections = tuple(_election(told[topic_id, number]) for number in numbers)
        # The forwarding broker did not reach the controller for any partition: retry the whole
        # request.
        is_futile = not any(one.outcome == "elected" for one in elections)
        for one in elections:
            if is_futile and isinstance(one.error, NotController):
                raise one.error
        return elections

    return await ask_any(
        cluster,
        lambda timeout_ms: ElectLeaders(wanted, is_unclean, timeout_ms, starts_empty),
        read,
        deadline=deadline,
        repeats=RepeatEffect.ACCEPTED,
    )


def _election(told: PartitionOutcome) -> Election:
    if told.error == ErrorCode.NONE:
        return Election(told.partition, "elected")
    if told.error == ErrorCode.ELECTION_NOT_NEEDED:  # the preferred replica leads
        return Election(told.partition, "led already")
    return Election(told.partition, "failed", error_for(told.error, told.message))


# Brokers


def _details(reply: DescribeClusterReply, known: Mapping[int, Address]) -> ClusterDetails:
    listeners = {one.broker_id: _listeners(one) for one in reply.brokers}
    name = _listener_of_clients(listeners, known)
    return ClusterDetails(
        reply.cluster_id,
        None if reply.controller_id == ABSENT else reply.controller_id,
        reply.metadata_version,
        reply.feature_level,
        tuple(
            BrokerDetails(
                one.broker_id,
                known.get(one.broker_id) or listeners[one.broker_id].get(name),
                listeners[one.broker_id],
                one.rack,
                _state(one),
                one.clock_ahead_ms,
                one.software_version or None,
            )
            for one in reply.brokers
        ),
        {one.node_id: Address(one.host, one.port) for one in reply.voters},
    )


def _listeners(broker: BrokerDescription) -> dict[str, Address]:
    return {one.listener: Address(one.host, one.port) for one in broker.listeners}


def _listener_of_clients(
    listeners: Mapping[int, Mapping[str, Address]], known: Mapping[int, Address]
) -> str:
    """The listener through which this client has come: for a broker that is down, only its name
    tells which of the addresses programs use.
    """
    for broker_id, address in known.items():
        for name, other in listeners.get(broker_id, {}).items():
            if other == address:
                return name
    names = {name for of_broker in listeners.values() for name in of_broker}
    return min(names - {BROKERS}, default="")


def _state(broker: BrokerDescription) -> BrokerState:
    if broker.is_fenced:  # its session has expired
        return "down"
    return "stopping" if broker.in_controlled_shutdown else "active"


# Health


def _health(details: ClusterDetails, reply: MetadataReply) -> Health:
    registered = {one.broker_id for one in details.brokers}
    down = {one.broker_id for one in details.brokers if one.state != "active"}
    down |= set(details.voters) - registered
    placed = [(topic.name, one) for topic in reply.topics for one in topic.partitions]
    return Health(
        details.cluster_id,
        details.controller_id,
        broker_count=len(registered | set(details.voters)),
        topic_count=len(reply.topics),
        partition_count=len(placed),
        brokers_down=tuple(sorted(down)),
        leaderless=tuple(_ailing(name, one) for name, one in placed if one.leader == ABSENT),
        under_replicated=tuple(_ailing(name, one) for name, one in placed if _missing(one)),
        fragile=tuple(found for topic in reply.topics if (found := _fragile(topic))),
        wrong_clocks=tuple(
            WrongClock(one.broker_id, one.clock_ahead_ms)
            for one in details.brokers
            if one.clock_ahead_ms is not None
        ),
        addresses={
            one.broker_id: one.address for one in details.brokers if one.address is not None
        },
        voters_together=shared_hosts(details.voters),
    )


def _fragile(topic: TopicMetadata) -> FragileTopic | None:
    """None also where brokers of older versions do not report what is needed."""
    fewest = min((len(one.replicas) for one in topic.partitions), default=0)
    min_isr = topic.min_insync_replicas
    warning = "" if ABSENT in (fewest, min_isr) else replication_warning(fewest, min_isr)
    return FragileTopic(topic.name, fewest, min_isr, warning) if warning else None


def _missing(partition: PartitionMetadata) -> tuple[int, ...]:
    lost = (set(partition.replicas) - set(partition.isr)) | set(partition.offline)
    return tuple(broker_id for broker_id in partition.replicas if broker_id in lost)


def _ailing(topic: str, partition: PartitionMetadata) -> AilingPartition:
    return AilingPartition(topic, partition.partition, _missing(partition))
