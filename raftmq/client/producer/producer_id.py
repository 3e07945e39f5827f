"""A producer id, asked of any broker: safe to ask again, as an id that nobody uses is no loss.

Goes on to another broker where one does not answer soon: it may be cut off from the quorum. Where
none has an id for long, that is told while the producer still waits: its errors then say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.client.routing.attempts import Repeats, milliseconds_left
from raftmq.errors import ServerError, UnsupportedVersion, error_for
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.producers import InitProducerId

if TYPE_CHECKING:
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.producers import InitProducerIdReply

ATTEMPT_SECONDS_MAX = 5.0
QUESTION_SECONDS_MAX = 5.0  # then whoever wants an id is told why there is none, and asks again


async def ask_producer_id(cluster: Cluster, *, deadline: float) -> int:
    """
    Raises:
        UnsupportedVersion: brokers that know no such ids.
        RaftmqError: what the last attempt met.
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

    return await cluster.at_any(attempt, deadline=deadline, repeats=Repeats.HARMLESS)


def _id_in(reply: InitProducerIdReply) -> int:
    if reply.error:
        raise error_for(reply.error, reply.message)
    if reply.producer_id == ABSENT:
        raise ServerError("a broker gave a producer id, and left it out")
    return reply.producer_id
