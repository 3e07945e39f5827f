"""`produce`: appends encoded batches to one partition through its leader, without a producer.

For tests and benchmarks that have batches as bytes. Never sends again what may have been appended,
unless the caller has accepted duplicates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import InvalidRecord
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.bodies import ABSENT, ACKS_ALL, ACKS_NONE
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProducePartition

if TYPE_CHECKING:
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.wire.batch.header import Buffer

TIMEOUT_SECONDS = 30.0  # as long as one request of a producer (request_timeout_ms)


async def produce(
    cluster: Cluster,
    topic: str,
    partition: int,
    data: Buffer,
    *,
    acks: int = ACKS_ALL,
    timeout_seconds: float = TIMEOUT_SECONDS,
    retries_unknown: bool = False,
) -> int:
    """Append `data`, one or more batches, to a partition.

    Args:
        data: must not change before this returns.
        acks: how many replicas must hold it; -1: all in sync. 0: do not wait for an answer.
        timeout_seconds: for all attempts together.
        retries_unknown: also repeat an attempt that may have been carried out, so that the log may
            have the batches twice; otherwise such an attempt is the last one.

    Returns:
        The offset of the first record; -1 with acks=0, when no broker answers.

    Raises:
        OutcomeUnknown: it may have been appended, or may be yet. Indefinite.
        CorruptRecord, InvalidRecord: `data` is no batches; nothing was sent. Definite.
        RaftmqError: nothing was appended. Definite.
    """
    _check(data, where=f"batches for {topic}-{partition}")
    deadline = anyio.current_time() + timeout_seconds

    async def attempt(place: LeaderPlace) -> int:
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        body = _question(place, len(data), acks=acks, timeout_ms=timeout_ms)
        if acks == ACKS_NONE:
            # Without an answer nothing below waits, and a cancellation would never show.
            await anyio.lowlevel.checkpoint()
            # Waits while the broker's quota delays this client.
            await cluster.wait_allowed(place.leader, deadline=deadline)
            cluster.tell_leader(place, body, (data,))
            return ABSENT
        produced: PartitionProduced
        produced, _ = await cluster.ask_leader(place, body, (data,), deadline=deadline)
        return produced.base_offset

    repeats = RepeatEffect.ACCEPTED if retries_unknown else RepeatEffect.FORBIDDEN
    return await cluster.at_leader(topic, partition, attempt, deadline=deadline, repeats=repeats)


def _question(place: LeaderPlace, length: int, *, acks: int, timeout_ms: int) -> Produce:
    wanted = ProducePartition(place.topic_id, place.partition, place.leader_epoch, length)
    return Produce(acks, timeout_ms, (wanted,))


def _check(data: Buffer, *, where: str) -> None:
    """Refuse damaged batches here: a broker would refuse them at each attempt."""
    if not len(data):  # an empty produce request means nothing
        raise InvalidRecord(f"{where}: there are none")
    for _ in iter_batches(data, where=where):
        pass
