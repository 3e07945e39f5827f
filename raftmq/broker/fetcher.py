"""The followers' side of replication: one task for each leader that replicas here follow.

Owns who fetches for whom. A task begins with the first replica that follows a leader and ends when
the last one has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.asking import FetchSettings, Myself
from raftmq.broker.leader_fetcher import LeaderFetcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.broker.asking import Asking
    from raftmq.partition.around import PartitionKey
    from raftmq.partition.replica import Replica


class Fetchers:
    """Nothing is fetched before `run`."""

    def __init__(
        self,
        broker_id: int,
        peers: Asking,
        *,
        broker_epoch: Callable[[], int],
        random: Random,
        settings: FetchSettings | None = None,
    ) -> None:
        """`broker_epoch()`: under which this broker is registered; asked once a replica follows."""
        self._myself = Myself(broker_id, broker_epoch, peers, random, settings or FetchSettings())
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._by_key: dict[PartitionKey, LeaderFetcher] = {}
        self._nursery: trio.Nursery | None = None

    def follow(self, key: PartitionKey, replica: Replica) -> None:
        """Fetch for it from the leader that it follows now; may be said again and again."""
        part = replica.follower
        assert part is not None, f"{replica.log.name} does not follow"
        fetcher = self._by_leader.get(part.leader) or self._add(part.leader)
        before = self._by_key.get(key)
        if before is not None and before is not fetcher:
            before.unfollow(key)
        self._by_key[key] = fetcher
        fetcher.follow(key, replica)

    def unfollow(self, key: PartitionKey) -> None:
        fetcher = self._by_key.pop(key, None)
        if fetcher is not None:
            fetcher.unfollow(key)

    def on_held(self, key: PartitionKey) -> None:
        """It may hold more now: its leader wants to know."""
        fetcher = self._by_key.get(key)
        if fetcher is not None:
            fetcher.on_held(key)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for leader_id in self._by_leader:
                    self._nursery.start_soon(self._fetch_from, leader_id)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _add(self, leader_id: int) -> LeaderFetcher:
        fetcher = self._by_leader[leader_id] = LeaderFetcher(leader_id, self._myself)
        if self._nursery is not None:
            self._nursery.start_soon(self._fetch_from, leader_id)
        return fetcher

    async def _fetch_from(self, leader_id: int) -> None:
        fetcher = self._by_leader[leader_id]
        while not fetcher.is_idle:  # somebody may come while the task ends
            await fetcher.run()
        del self._by_leader[leader_id]
