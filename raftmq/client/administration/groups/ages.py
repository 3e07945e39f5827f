"""Lag in seconds: how old the oldest record is that a group has not read.

Reads one batch of each partition that lags, from its leader, many partitions at a time. Keeps no
state and moves no offset: the group does not notice. What cannot be known is left out.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.administration.offsets import ENDS_SECONDS_MAX
from raftmq.client.administration.questions import settle
from raftmq.client.consumer.completed_fetches import PassedOver
from raftmq.client.consumer.fetch_response import Expected, check_answer, end_told
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import RaftmqError
from raftmq.model import IsolationLevel
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.fetch import Fetch, FetchPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.administration.results import TopicPartition
    from raftmq.client.consumer.completed_fetches import Fetched
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace

# Of one answer. Small, as one record is wanted, and the first batch is sent whole in any case; but
# a run of control batches, of about 100 bytes each, should not take a round trip for each of them.
BYTES_MAX = 4096


class Unread(NamedTuple):
    """Offsets that a group has not read in one partition: from `start` to before `end`."""

    start: int
    end: int


async def find_ages(
    cluster: Cluster, unread: Mapping[TopicPartition, Unread], *, deadline: float
) -> dict[TopicPartition, float]:
    """Seconds since the timestamp of the first unread record, by this machine's clock.

    0 where no record is left, and where the timestamp is in the future. Left out where no leader
    answers within a few seconds, where the record has been deleted meanwhile or cannot be decoded,
    and where it has no timestamp.
    """
    soon = min(deadline, anyio.current_time() + ENDS_SECONDS_MAX)
    asks = [partial(_age, cluster, key, each, deadline=soon) for key, each in unread.items()]
    outcomes = zip(unread, await settle(asks), strict=True)
    return {
        key: age for key, age in outcomes if age is not None and not isinstance(age, RaftmqError)
    }


async def _age(
    cluster: Cluster, key: TopicPartition, unread: Unread, *, deadline: float
) -> float | None:
    offset = unread.start
    while offset < unread.end:
        pieces = await _fetch(cluster, key, offset, deadline=deadline)
        if not pieces:  # a new leader that does not know yet that they are committed
            return None
        for piece in pieces:
            if isinstance(piece, PassedOver) or piece.is_passed_over:
                continue
            part = piece.part(offset, records_max=1)
            if part.start < part.stop:
                return _seconds_since(part.batch.timestamps[part.start])
        offset = pieces[-1].end_offset  # all passed over, or in a gap
    return 0.0


def _seconds_since(timestamp: int) -> float | None:
    if timestamp < 0:  # ABSENT: its producer gave it none
        return None
    return max(time.time() - timestamp / 1000, 0.0)


async def _fetch(
    cluster: Cluster, key: TopicPartition, offset: int, *, deadline: float
) -> list[Fetched]:
    """The batches at `offset`, and what is left out there; none if there are none yet.

    Raises:
        RaftmqError: also OffsetOutOfRange, and CorruptRecord for what does not belong there.
    """

    async def attempt(place: LeaderPlace) -> list[Fetched]:
        wanted = FetchPartition(
            place.topic_id, place.partition, offset, place.leader_epoch, bytes_max=BYTES_MAX
        )
        isolation = IsolationLevel.READ_COMMITTED
        body = Fetch(
            0,
            1,
            BYTES_MAX,
            partitions=(wanted,),
            isolation_level=isolation,
            takes_gaps=True,  # what is scheduled is no record yet
        )
        told, data = await cluster.ask_leader(place, body, deadline=deadline)
        where = f"{key[0]}-{key[1]} from offset {offset}"
        end = end_told(told, isolation)
        expected = Expected(
            offset,
            ABSENT,
            place.leader_epoch,
            end,
            where,
            told.aborted,
            left_out=told.left_out,
        )
        pieces, damage = check_answer(data, expected)
        if damage is not None and not pieces:
            raise damage
        return pieces

    return await cluster.at_leader(*key, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)
