"""The follower side of replication: one task for each leader that replicas here follow, and another
one for those that are added and copy from it.

Owns which fetcher serves which partition. A task begins with the first replica that follows a
leader and ends with the last one. (Kafka: ReplicaFetcherManager)

Invariant: once a leader was told in some leader epoch what a replica holds, the replica stays in
the usual lane for as long as that epoch lasts, even if its log is repaired or deleted and begun
anew. What was said before arrives before what is fetched after it only on the same connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.replication.fetch_exchange import CopyLane, FetchSettings, FollowerIdentity
from raftmq.broker.replication.leader_fetcher import LeaderFetcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.broker.replication.copy_budget import CopyBudget
    from raftmq.broker.replication.followed_partition import FollowedPartition
    from raftmq.partition.follower import Follower
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.rpc.peers import Peers


class Fetchers:
    """Nothing is fetched before `run`."""

    def __init__(
        self,
        broker_id: int,
        peers: Peers,
        *,
        broker_epoch: Callable[[], int],
        random: Random,
        copy_peers: Peers,
        copy_budget: CopyBudget,
        settings: FetchSettings | None = None,
    ) -> None:
        """
        Args:
            broker_epoch: of this broker's registration; read when a session is opened.
            copy_peers: connections for copying, so that replicas in sync do not wait behind it.
        """
        self._myself = FollowerIdentity(
            broker_id, broker_epoch, peers, random, settings or FetchSettings()
        )
        self._copy_peers = copy_peers
        self._copy_lane = CopyLane(copy_budget, self._on_over)
        self._by_leader: dict[tuple[int, bool], LeaderFetcher] = {}  # the usual, and copy lanes
        self._by_key: dict[PartitionKey, LeaderFetcher] = {}
        # Leader and leader epoch in which each partition was last served by a usual fetcher, until
        # it leaves this broker: it can only come back in a later epoch.
        self._usual_in: dict[PartitionKey, tuple[int, int]] = {}
        self._nursery: trio.Nursery | None = None

    def follow(self, key: PartitionKey, replica: Replica, *, is_added: bool = False) -> None:
        """Fetch for it from its present leader; idempotent. `is_added`: by a reassignment in
        progress, and it is not in sync."""
        part = replica.follower
        assert part is not None, f"{replica.log.name} does not follow"
        copies = is_added and self._usual_in.get(key) != (part.leader, part.leader_epoch)
        before = self._by_key.get(key)
        # No longer added: it goes over with the answer to its request.
        if not copies and before is not None and before.dismiss(key, part):
            return
        self._serve(key, replica, part, copies=copies)

    def _on_over(self, followed: FollowedPartition) -> None:
        self._serve(followed.key, followed.replica, followed.part, copies=False)

    def _serve(self, key: PartitionKey, replica: Replica, part: Follower, *, copies: bool) -> None:
        fetcher = self._by_leader.get((part.leader, copies)) or self._add(part.leader, copies)
        before = self._by_key.get(key)
        # The leader or the lane changed: the old session forgets the partition.
        if before is not None and before is not fetcher:
            before.unfollow(key)
        if not copies:
            self._usual_in[key] = part.leader, part.leader_epoch
        self._by_key[key] = fetcher
        fetcher.follow(key, replica)

    def unfollow(self, key: PartitionKey, *, is_let_go: bool = False) -> None:
        """`is_let_go`: it leaves this broker."""
        if is_let_go:
            self._usual_in.pop(key, None)
        fetcher = self._by_key.pop(key, None)
        if fetcher is not None:
            fetcher.unfollow(key)

    def on_held(self, key: PartitionKey) -> None:
        """It may hold more now (a flush has ended): report that to its leader."""
        fetcher = self._by_key.get(key)
        if fetcher is not None:
            fetcher.on_held(key)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for leader_id, copies in self._by_leader:
                    self._nursery.start_soon(self._fetch_from, leader_id, copies)
                task_status.started()
                # Keeps the nursery open for leaders that are added later.
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _add(self, leader_id: int, copies: bool) -> LeaderFetcher:
        myself, lane = self._myself, None
        if copies:
            myself, lane = myself._replace(peers=self._copy_peers), self._copy_lane
        fetcher = self._by_leader[leader_id, copies] = LeaderFetcher(leader_id, myself, lane)
        if self._nursery is not None:  # before `run`, which starts the task
            self._nursery.start_soon(self._fetch_from, leader_id, copies)
        return fetcher

    async def _fetch_from(self, leader_id: int, copies: bool) -> None:
        fetcher = self._by_leader[leader_id, copies]
        while not fetcher.is_idle:  # a replica may begin to follow while the task ends
            await fetcher.run()
        del self._by_leader[leader_id, copies]
