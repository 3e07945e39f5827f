"""The leaders of a topic's partitions are told of a producer's name; what each partition says.

Asks once; who asks again, and when, is decided elsewhere. Safe to repeat: the later fence stands
for the earlier one, of the same producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import anyio

from raftmq.client.producer.asking import is_stale
from raftmq.client.producer.named import Fence
from raftmq.client.routing.attempts import milliseconds_left
from raftmq.client.routing.routes import error_in, leader_told
from raftmq.errors import LeaderNotAvailable, RaftmqError, ServerError, UnsupportedVersion
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.producers import FENCES_MAX, FenceProducer, PartitionToFence

if TYPE_CHECKING:
    from raftmq.client.producer.named import Fences
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import Place
    from raftmq.wire.messages.producers import FenceProducerReply, PartitionFenced

    Answers: TypeAlias = dict[int, Fence | RaftmqError]


async def fence(cluster: Cluster, topic: str, fences: Fences, *, deadline: float) -> Answers:
    """Of each partition that is missing, what its leader says, or why nobody does."""
    answers: Answers = {}
    by_leader: dict[int, list[Place]] = {}
    for partition in fences.missing:
        place = cluster.routes.find(topic, partition)
        if place is None or place.leader == ABSENT:
            answers[partition] = LeaderNotAvailable("nobody leads")
            cluster.routes.doubt(topic)
        else:
            by_leader.setdefault(place.leader, []).append(place)

    async def ask(places: list[Place]) -> None:
        found = await _ask(cluster, places, fences, deadline=deadline)
        _doubt_stale(cluster, topic, places, found)
        answers.update(found)

    async with anyio.create_task_group() as tasks:
        for places in by_leader.values():
            for start in range(0, len(places), FENCES_MAX):
                tasks.start_soon(ask, places[start : start + FENCES_MAX])
    return answers


async def _ask(
    cluster: Cluster, places: list[Place], fences: Fences, *, deadline: float
) -> Answers:
    """They have one leader."""
    leader = places[0].leader
    body = FenceProducer(
        fences.named.name,
        fences.named.generation,
        tuple([PartitionToFence(one.topic_id, one.partition, one.leader_epoch) for one in places]),
        milliseconds_left(deadline, now=anyio.current_time()),
        fences.count,
    )
    try:
        answer = await cluster.ask(leader, body, deadline=deadline)
        return _outcomes(cluster, places, answer.body)
    except UnsupportedVersion as error:
        told = UnsupportedVersion(
            f"broker {leader} knows no names of producers: let it run a newer version, or leave "
            "name and generation out"
        )
        told.__cause__ = error
        return dict.fromkeys([place.partition for place in places], told)
    except RaftmqError as error:
        return dict.fromkeys([place.partition for place in places], error)


def _outcomes(cluster: Cluster, places: list[Place], reply: FenceProducerReply) -> Answers:
    """Raises ServerError where something else is answered."""
    asked = [(place.topic_id, place.partition) for place in places]
    if asked != [(found.topic_id, found.partition) for found in reply.partitions]:
        raise ServerError(f"broker {places[0].leader} answered for other partitions than asked for")
    for found in reply.partitions:
        if told := leader_told(found):
            cluster.routes.on_leader(
                found.topic_id, found.partition, leader=told[0], leader_epoch=told[1]
            )
    return {found.partition: _outcome(reply.producer_id, found) for found in reply.partitions}


def _outcome(producer_id: int, found: PartitionFenced) -> Fence | RaftmqError:
    if error := error_in(found):
        return error
    if ABSENT in (producer_id, found.producer_epoch):
        return ServerError("a broker has fenced a producer, and left out its id or epoch")
    return Fence(
        producer_id,
        found.producer_epoch,
        found.next_sequence,
        found.digest,
        found.partition_count,
    )


def _doubt_stale(cluster: Cluster, topic: str, places: list[Place], answers: Answers) -> None:
    """Where the answer did not say who leads instead."""
    for place in places:
        found = answers[place.partition]
        is_known = cluster.routes.find(topic, place.partition) != place
        if isinstance(found, RaftmqError) and not is_known and is_stale(cluster, found):
            cluster.routes.doubt(topic)
