"""What is looked at when no client is left: what holds up readers, and where the group stands.

Owns the requests, and how long a cluster may take to end what clients have left behind.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.generator import BEGINNING, COMMITTED, UNCOMMITTED, Assign
from jepsen_like.workloads.keys import key_of
from jepsen_like.workloads.transaction_bench import GROUP
from jepsen_like.workloads.watcher import new_cluster
from jepsen_like.workloads.worker import new_consumer
from raftmq.client.administration.groups.committed import fetch_offsets
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import RaftmqError
from raftmq.wire.messages.transactions import ListTransactions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jepsen_like.workloads.bench import Bench
    from raftmq.client.client import Client
    from raftmq.client.routing.cluster import Cluster

STABLE_SECONDS_MAX = 60.0  # the timeout of transactions, a second, and settling, many times over
LOOK_SECONDS = 0.5
ANSWER_SECONDS_MAX = 5.0

logger = logging.getLogger(__name__)


async def look_at_the_end(bench: Bench, topics: Mapping[bytes, str]) -> None:
    """Until nothing is open or unsettled, or the time is over; then where the group stands.

    Args:
        topics: names by id.
    """
    deadline = trio.current_time() + STABLE_SECONDS_MAX
    async with (
        bench.new_client("end") as client,
        new_cluster(bench.bootstrap, "end", bench.random) as cluster,
    ):
        await _until(deadline, partial(_is_stable, bench, client, cluster))
        await _until(deadline + ANSWER_SECONDS_MAX, partial(_tell_offsets, bench, topics, cluster))


async def _until(deadline: float, look: Callable[[], Awaitable[bool]]) -> None:
    while not await look() and trio.current_time() < deadline:  # noqa: ASYNC110  # it asks brokers
        await trio.sleep(LOOK_SECONDS)


async def _is_stable(bench: Bench, client: Client, cluster: Cluster) -> bool:
    """Whether nothing is left, and anybody has said so."""
    try:
        # This one first: a last stable offset that was told before may be below it by right.
        high = await _ends(bench, client, UNCOMMITTED)
        stable = await _ends(bench, client, COMMITTED)
        unsettled = await _unsettled(cluster)
    except RaftmqError as error:
        logger.info("end: reason=%s", error)
        return False
    ends = [[key, stable[key], end] for key, end in high.items()]
    bench.recorder.record(WATCH, Type.OK, "stable", {"ends": ends, "unsettled": unsettled})
    return not unsettled and all(stable[key] >= end for key, end in high.items())


async def _ends(bench: Bench, client: Client, level: str) -> dict[str, int]:
    wanted = Assign(tuple(bench.keys.everything), BEGINNING, level)
    async with new_consumer(client, wanted) as consumer:
        return {key_of(*key): end for key, end in (await consumer.end_offsets()).items()}


async def _unsettled(cluster: Cluster) -> list[str]:
    deadline = trio.current_time() + ANSWER_SECONDS_MAX

    async def attempt(broker_id: int) -> list[str]:
        asked = ListTransactions(only_unsettled=True)
        answer = await cluster.ask(broker_id, asked, deadline=deadline)
        return [one.transaction_id for one in answer.body.transactions]

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)


async def _tell_offsets(bench: Bench, topics: Mapping[bytes, str], cluster: Cluster) -> bool:
    deadline = trio.current_time() + ANSWER_SECONDS_MAX
    try:
        found = await fetch_offsets(cluster, GROUP, deadline=deadline)
    except RaftmqError as error:
        logger.info("end: group=%s reason=%s", GROUP, error)
        return False
    offsets = [
        [GROUP, key_of(topics[topic_id], partition), one.offset]
        for (topic_id, partition), one in found.items()
    ]
    bench.recorder.record(WATCH, Type.OK, "group-offsets", {"offsets": offsets})
    return True
