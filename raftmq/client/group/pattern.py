"""Topic pattern subscription: lists topics, and reports which names match a regular expression.

Kafka: subscribe(Pattern). Owns the task that lists all topics, once an answer has named newer
metadata, and every 10 s. Topics that begin with two underscores, as those of dead letters, never
match: they are read by their names.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration.topics import list_topics
from raftmq.client.dead_letters.letters import INTERNAL_PREFIX
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.client.routing.cluster import Cluster

LOOK_SECONDS = 0.5  # between two checks for newer metadata
REFRESH_SECONDS = 10.0  # an idle consumer gets no answers that name versions
ANSWER_SECONDS_MAX = 10.0  # for the list of all topics, which may have many pages

logger = logging.getLogger("raftmq.client")


class PatternWatch:
    """One pattern.

    Args:
        on_topics: called with the names that match, whenever they change.
    """

    def __init__(
        self, cluster: Cluster, pattern: str, on_topics: Callable[[Iterable[str]], None]
    ) -> None:
        self._cluster, self._matches = cluster, re.compile(pattern).fullmatch
        self._on_topics = on_topics
        self._topics: list[str] = []
        self._asked_at, self._version = float("-inf"), -1

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            now = anyio.current_time()
            is_newer = self._cluster.newest_version > self._version
            if is_newer or now >= self._asked_at + REFRESH_SECONDS:  # topics may have been created
                self._asked_at = now
                await self._refresh()
            await anyio.sleep(LOOK_SECONDS)

    async def _refresh(self) -> None:
        # Read before the request: a version that appears meanwhile leads to another list.
        version = self._cluster.newest_version
        deadline = anyio.current_time() + ANSWER_SECONDS_MAX
        try:
            found = await list_topics(self._cluster, deadline=deadline)
        except RaftmqError as error:  # the known topics stay; tried again later
            logger.warning("topics cannot be listed: reason=%s", error)
            return
        self._version = version
        names = (one.name for one in found if not one.name.startswith(INTERNAL_PREFIX))
        topics = sorted(filter(self._matches, names))
        if topics != self._topics:  # a changed subscription means a rebalance
            self._topics = topics
            self._on_topics(topics)
