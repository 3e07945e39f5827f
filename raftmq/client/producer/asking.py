"""One produce request: asked once, and what the answer says of each of its partitions.

Says what is known and no more: a request that may have been carried out fails with an error that
is not definite, for every partition in it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from raftmq.client.routing.attempts import milliseconds_left
from raftmq.client.routing.routes import error_in, leader_told
from raftmq.errors import RaftmqError, ServerError, Unreachable
from raftmq.wire.bodies import ABSENT, ACKS_NONE
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import Produce, ProducePartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.sending import Answered, Part, ProduceRequest
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.produce import PartitionProduced


async def ask(cluster: Cluster, request: ProduceRequest, *, acks: int) -> list[Answered]:
    """Of each part of the request."""
    parts = request.parts
    payload = [data for part in parts for data in part.data]
    timeout_ms = milliseconds_left(request.deadline, now=anyio.current_time())
    body = Produce(acks, timeout_ms, tuple([_wanted(part) for part in parts]))
    try:
        if acks == ACKS_NONE:
            await cluster.wait_allowed(request.leader, deadline=request.deadline)
            cluster.tell_leader(parts[0].place, body, payload)
            return [ABSENT] * len(parts)
        answer = await cluster.ask(request.leader, body, payload, deadline=request.deadline)
        outcomes = _outcomes(cluster, request, answer.body.partitions)
    except RaftmqError as error:
        outcomes = [error] * len(parts)
    for part, outcome in zip(parts, outcomes, strict=True):
        topic, place = part.queue.topic, part.place
        is_known = cluster.routes.find(topic, place.partition) != place  # the answer said who leads
        if isinstance(outcome, RaftmqError) and not is_known and is_stale(cluster, outcome):
            cluster.routes.doubt(topic)
    return outcomes


async def wait_taken(cluster: Cluster, leader: int, options: ProducerOptions) -> None:
    """Until a broker has what it was sent before and does not answer: it answers in order."""
    deadline = anyio.current_time() + options.request_timeout_ms / 1000
    with suppress(RaftmqError):
        await cluster.ask(leader, Metadata(()), deadline=deadline)


def _wanted(part: Part) -> ProducePartition:
    place = part.place
    return ProducePartition(place.topic_id, place.partition, place.leader_epoch, part.length)


def _outcomes(
    cluster: Cluster, request: ProduceRequest, partitions: Sequence[PartitionProduced]
) -> list[Answered]:
    """Raises ServerError, which is indefinite, where something else is answered."""
    asked = [(part.place.topic_id, part.place.partition) for part in request.parts]
    if asked != [(found.topic_id, found.partition) for found in partitions]:
        raise ServerError(f"broker {request.leader} answered for other partitions than asked for")
    for part, found in zip(request.parts, partitions, strict=True):
        if found.base_offsets and len(found.base_offsets) != len(part.batches):
            raise ServerError(
                f"broker {request.leader} answered for {len(found.base_offsets)} batches of "
                f"partition {found.partition}, which got {len(part.batches)}"
            )
        if told := leader_told(found):
            cluster.routes.on_leader(
                found.topic_id, found.partition, leader=told[0], leader_epoch=told[1]
            )
    return [error_in(found) or found.base_offsets or found.base_offset for found in partitions]


def is_stale(cluster: Cluster, error: RaftmqError) -> bool:
    """What was known of the leaders may be due to it."""
    is_gone = isinstance(error, Unreachable) or error.refresh_metadata
    return is_gone or cluster.newest_version > cluster.routes.version
