"""Polls which broker coordinates each group, for the nemesis to choose its targets.

Owns the request and its pace. A group without an answer keeps its last coordinator: it may be old.
"""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.watcher import new_cluster
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import RaftmqError
from raftmq.wire.messages.groups import FindCoordinator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.workloads.bench import Bench, Stop
    from jepsen_like.workloads.view import LiveView
    from raftmq.client.routing.cluster import Cluster

LOOK_SECONDS = 0.5  # between polls: faults come seconds apart
ANSWER_SECONDS_MAX = 1.0  # a broker that is down must not make the others' answers old

logger = logging.getLogger(__name__)


async def watch_coordinators(
    bench: Bench, view: LiveView, groups: Sequence[str], stop: Stop
) -> None:
    """Until told to stop."""
    cluster = new_cluster(bench.bootstrap, "coordinators", Random(bench.random.getrandbits(64)))
    async with cluster:
        while not stop.is_set():
            try:
                view.show_coordinators(await _find(cluster, groups))
            except RaftmqError as error:
                logger.info("coordinators: reason=%s", error)
            await wait_stop(stop, LOOK_SECONDS)


async def _find(cluster: Cluster, groups: Sequence[str]) -> dict[str, int]:
    """Of those that have one."""
    deadline = trio.current_time() + ANSWER_SECONDS_MAX

    async def attempt(broker_id: int) -> dict[str, int]:
        answer = await cluster.ask(broker_id, FindCoordinator(tuple(groups)), deadline=deadline)
        told = answer.body.coordinators
        return {one.group: one.broker_id for one in told if not one.error}

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)
