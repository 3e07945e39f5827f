"""The task that asks for fresh metadata of the topics that are read.

Owns the pace. What is doubted is asked for at once (`Refreshing` makes that rarer while nothing
new comes); what a broker says is outdated, or is not complete, now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.consumer.partition_state import PartitionState
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.cluster import Cluster

LOOK_SECONDS = 0.5  # without any other reason
OUTDATED_SECONDS_MIN = 0.5  # between two questions only because a newer version is out
REFRESH_SECONDS = 10.0  # without any reason: while nothing is fetched nobody tells of versions
ANSWER_SECONDS_MAX = 5.0


class MetadataWatch:
    """`on_metadata` is called after each answer, with the partitions that have a new error."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        on_metadata: Callable[[list[PartitionState]], None],
    ) -> None:
        self._cluster, self._subscription = cluster, subscription
        self._on_metadata = on_metadata
        self._asked_at = float("-inf")
        self._wanted = anyio.Event()

    def look(self) -> None:
        """Something may be doubted or outdated now."""
        if not self._wanted.is_set() and self._due(anyio.current_time()):
            self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wanted = anyio.Event()
            due = self._due(anyio.current_time())
            if due:
                await self._ask(due)
            self._on_metadata(self._subscription.on_metadata(now=anyio.current_time()))
            with anyio.move_on_after(LOOK_SECONDS):
                await self._wanted.wait()

    def _due(self, now: float) -> list[str]:
        return [topic for topic in self._subscription.topics if self._is_due(topic, now)]

    def _is_due(self, topic: str, now: float) -> bool:
        """1. Unknown or doubted. 2. Outdated. 3. Not complete, or long ago."""
        routes, silence = self._cluster.routes, now - self._asked_at
        if not routes.use(topic):
            return True
        known = routes.topic(topic)
        assert known is not None, "used, and not known"
        if self._cluster.newest_version > known.version:
            return silence >= OUTDATED_SECONDS_MIN
        return silence >= (REFRESH_SECONDS if known.is_led else LOOK_SECONDS)

    async def _ask(self, topics: list[str]) -> None:
        self._asked_at = anyio.current_time()
        problems: list[RaftmqError] = []
        async with anyio.create_task_group() as tasks:
            for topic in topics:
                tasks.start_soon(self._refresh, topic, problems)
        if problems:
            self._subscription.on_unreachable()

    async def _refresh(self, topic: str, problems: list[RaftmqError]) -> None:
        deadline = anyio.current_time() + ANSWER_SECONDS_MAX
        try:
            await self._cluster.refresh(topic, deadline=deadline)
        except RaftmqError as error:
            problems.append(error)
