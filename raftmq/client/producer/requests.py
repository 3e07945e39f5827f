"""One produce, fence or producer id request: sent once, and what each partition's answer means.

Reports what is known and no more: a request that may have been carried out fails with an indefinite
error for every partition in it. Repeats nothing: `sender.py` decides that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import anyio

from raftmq.client.producer.named_producer import Fence
from raftmq.client.producer.partition_queue import Stamped
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.client.routing.routes import error_in, leader_told
from raftmq.errors import (
    ConcurrentTransactions,
    LeaderNotAvailable,
    RaftmqError,
    ServerError,
    Unreachable,
    UnsupportedVersion,
    error_for,
)
from raftmq.wire.bodies import ABSENT, ACKS_NONE
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.produce import Produce, ProducePartition
from raftmq.wire.messages.producers import (
    FENCES_MAX,
    FenceProducer,
    InitProducerId,
    PartitionToFence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.producer.named_producer import TopicFences
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import (
        Answered,
        Offsets,
        ProduceRequest,
        RequestPart,
    )
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.produce import PartitionProduced
    from raftmq.wire.messages.producers import (
        FenceProducerReply,
        InitProducerIdReply,
        PartitionFenced,
    )

    Answers: TypeAlias = dict[int, Fence | RaftmqError]


def ask_now(
    cluster: Cluster,
    request: ProduceRequest,
    on_outcome: Callable[[Answer | RaftmqError], None],
    *,
    acks: int,
    now: float,
) -> Callable[[], None] | None:
    """Send a produce request in this step, see `Cluster.ask_now`; `answers_in` tells what the
    outcome means. Not with acks=0, which has no answer.
    """
    body, payload = _body(request, acks=acks, now=now), _payload(request)
    return cluster.ask_now(
        request.leader, body, payload, on_outcome, deadline=request.deadline, now=now
    )


async def ask(cluster: Cluster, request: ProduceRequest, *, acks: int) -> list[Answered]:
    """Send a produce request, once it may be sent; the outcome of each of its parts."""
    body = _body(request, acks=acks, now=cluster.clock())
    outcome: Answer | RaftmqError
    try:
        # The broker does not answer: success means that the request was handed to the connection.
        if acks == ACKS_NONE:
            # Waits while the broker's quota delays this client.
            await cluster.wait_allowed(request.leader, deadline=request.deadline)
            cluster.tell_leader(request.parts[0].place, body, _payload(request))
            return [ABSENT] * len(request.parts)
        outcome = await cluster.ask(
            request.leader, body, _payload(request), deadline=request.deadline
        )
    except RaftmqError as error:
        outcome = error
    return answers_in(cluster, request, outcome)


async def wait_taken(cluster: Cluster, leader: int, options: ProducerOptions) -> None:
    """Wait until a broker has read earlier requests with acks=0: it answers requests of a
    connection in order, so any answer proves it. A broker that does not answer is given up
    silently, as acks=0 promises nothing.
    """
    deadline = anyio.current_time() + options.request_timeout_ms / 1000
    with suppress(RaftmqError):
        await cluster.ask(leader, Metadata(()), deadline=deadline)


def _body(request: ProduceRequest, *, acks: int, now: float) -> Produce:
    timeout_ms = milliseconds_left(request.deadline, now=now)
    return Produce(acks, timeout_ms, tuple([_wanted(part) for part in request.parts]))


def _wanted(part: RequestPart) -> ProducePartition:
    place = part.place
    return ProducePartition(place.topic_id, place.partition, place.leader_epoch, part.length)


def _payload(request: ProduceRequest) -> list[bytearray]:
    return [data for part in request.parts for data in part.data]


def answers_in(
    cluster: Cluster, request: ProduceRequest, outcome: Answer | RaftmqError
) -> list[Answered]:
    """What the outcome of a request means for each of its parts; notes who leads, or a doubt."""
    answers: list[Answered]
    try:
        if isinstance(outcome, RaftmqError):
            raise outcome
        answers = _outcomes(cluster, request, outcome.body.partitions)
    except RaftmqError as error:
        answers = [error] * len(request.parts)
    for part, answer in zip(request.parts, answers, strict=True):
        if isinstance(answer, RaftmqError):
            _maybe_doubt(cluster, part.queue.topic, part.place, answer)
    return answers


def _maybe_doubt(cluster: Cluster, topic: str, place: LeaderPlace, error: RaftmqError) -> None:
    """Mark the topic's metadata as outdated, unless the answer named the new leader: it is fresher
    than what a metadata request would find.
    """
    is_known = cluster.routes.find(topic, place.partition) != place
    if not is_known and is_stale(cluster, error):
        cluster.routes.doubt(topic)


def _outcomes(
    cluster: Cluster, request: ProduceRequest, partitions: Sequence[PartitionProduced]
) -> list[Answered]:
    """Raises ServerError, which is indefinite, where the answer does not fit the request."""
    asked = [(part.place.topic_id, part.place.partition) for part in request.parts]
    if asked != [(found.topic_id, found.partition) for found in partitions]:
        raise ServerError(f"broker {request.leader} answered for other partitions than asked for")
    for part, found in zip(request.parts, partitions, strict=True):
        # Both are set only with duplicates.
        for told in (found.base_offsets, found.log_append_times_ms):
            if told and len(told) != len(part.batches):
                raise ServerError(
                    f"broker {request.leader} answered for {len(told)} batches of "
                    f"partition {found.partition}, which got {len(part.batches)}"
                )
        if leader := leader_told(found):
            cluster.routes.on_leader(
                found.topic_id, found.partition, leader=leader[0], leader_epoch=leader[1]
            )
    return [error_in(found) or _appended(found) for found in partitions]


def _appended(found: PartitionProduced) -> Offsets | Stamped:
    offsets = found.base_offsets or found.base_offset
    if found.log_append_times_ms:
        return Stamped(offsets, found.log_append_times_ms)
    if found.log_append_time_ms != ABSENT:
        return Stamped(offsets, found.log_append_time_ms)
    return offsets


def is_stale(cluster: Cluster, error: RaftmqError) -> bool:
    """The error may be due to outdated metadata."""
    # Only a leader says so. Each end of a transaction makes newer metadata, so that without this
    # topics would be asked for again with each transaction that has to wait for the one before.
    if isinstance(error, ConcurrentTransactions):
        return False
    is_gone = isinstance(error, Unreachable) or error.refresh_metadata
    return is_gone or cluster.newest_version > cluster.routes.version


# -- Fencing --------------------------------------------------------------------------------------
# Fences each partition of a topic for the producer's name (decision 0022), at its leader.
#
# Sends each request once; `sender.py` and `dispatcher.py` decide when to repeat. Safe to repeat:
# the later fence of the same producer replaces the earlier one.


async def fence(cluster: Cluster, topic: str, fences: TopicFences, *, deadline: float) -> Answers:
    """Of each partition that is not fenced yet: its fence, or the error of its leader."""
    answers: Answers = {}
    by_leader: dict[int, list[LeaderPlace]] = {}
    for partition in fences.missing:
        place = cluster.routes.find(topic, partition)
        if place is None or place.leader == ABSENT:  # during an election, for example
            answers[partition] = LeaderNotAvailable("no leader")
            cluster.routes.doubt(topic)
        else:
            by_leader.setdefault(place.leader, []).append(place)

    async def ask(places: list[LeaderPlace]) -> None:
        found = await _ask(cluster, places, fences, deadline=deadline)
        for place in places:
            answer = found[place.partition]
            if isinstance(answer, RaftmqError):
                _maybe_doubt(cluster, topic, place, answer)
        answers.update(found)

    async with anyio.create_task_group() as tasks:
        for places in by_leader.values():
            # A broker appends the fences of a request in one go, which bounds their number.
            for start in range(0, len(places), FENCES_MAX):
                tasks.start_soon(ask, places[start : start + FENCES_MAX])
    return answers


async def _ask(
    cluster: Cluster, places: list[LeaderPlace], fences: TopicFences, *, deadline: float
) -> Answers:
    """One request to the leader of all these partitions."""
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
        return _fence_outcomes(cluster, places, answer.body)
    # The broker is older than named producers: no repetition will help.
    except UnsupportedVersion as error:
        told = UnsupportedVersion(
            f"broker {leader} knows no names of producers: let it run a newer version, or leave "
            "name and generation out"
        )
        told.__cause__ = error
        return dict.fromkeys([place.partition for place in places], told)
    except RaftmqError as error:
        return dict.fromkeys([place.partition for place in places], error)


def _fence_outcomes(
    cluster: Cluster, places: list[LeaderPlace], reply: FenceProducerReply
) -> Answers:
    """Raises ServerError where the answer does not fit the request."""
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
    if ABSENT in (producer_id, found.producer_epoch):  # optional fields, which a success must have
        return ServerError("a broker has fenced a producer, and left out its id or epoch")
    return Fence(
        producer_id,
        found.producer_epoch,
        found.next_sequence,
        found.digest,
        found.partition_count,
        found.takes_head_crc,
    )


# -- Producer id ----------------------------------------------------------------------------------
# A producer id, from any broker: safe to repeat, as an id that no producer uses costs nothing.
#
# Goes on to another broker where one does not answer within 5 s: it may be cut off from the quorum.
# If no broker has an id, the producer learns the reason while its batches still wait, so that their
# errors can name it.


# For one broker, which may be cut off from the quorum: then the next one is asked.
ATTEMPT_SECONDS_MAX = 5.0
QUESTION_SECONDS_MAX = 5.0  # then the dispatcher records why there is no id yet, and asks again


async def ask_producer_id(cluster: Cluster, *, deadline: float) -> int:
    """Request a producer id.

    Raises:
        UnsupportedVersion: the brokers are older than producer ids.
        RaftmqError: of the last attempt.
    """

    deadline = min(deadline, anyio.current_time() + QUESTION_SECONDS_MAX)

    async def attempt(broker_id: int) -> int:
        now = anyio.current_time()
        latest = min(deadline, now + ATTEMPT_SECONDS_MAX)
        body = InitProducerId(milliseconds_left(latest, now=now))
        try:
            answer = await cluster.ask(broker_id, body, deadline=latest)
        except UnsupportedVersion as error:
            raise UnsupportedVersion(
                f"broker {broker_id} gives out no producer ids: let it run a newer version, "
                "or give the producer idempotence=False"
            ) from error
        return _id_in(answer.body)

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)


def _id_in(reply: InitProducerIdReply) -> int:
    if reply.error:
        raise error_for(reply.error, reply.message)
    if reply.producer_id == ABSENT:  # an optional field, which a success must have
        raise ServerError("a broker gave a producer id, and left it out")
    return reply.producer_id
