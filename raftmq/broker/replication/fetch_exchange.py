"""What fetching from leaders needs of the broker: connections, settings, lanes, and one exchange.

Owns names, and no rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.rpc.backoff import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.broker.replication.copy_budget import CopyBudget
    from raftmq.broker.replication.followed_partition import FollowedPartition
    from raftmq.errors import RaftmqError
    from raftmq.rpc.peers import Peers
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.replicate import ReplicaFetch


class FetchSettings(NamedTuple):
    max_wait_ms: int = 500  # long poll at the leader (Kafka: replica.fetch.wait.max.ms)
    bytes_max: int = 2 << 20  # appended in one step, which holds up other tasks (decision 0016)
    partition_bytes_max: int = 1 << 20  # two partitions at least share an answer
    pauses: Pauses = Pauses(0.05, 1.0)  # after a failed exchange; a restarted leader is found soon


class FollowerIdentity(NamedTuple):
    """What every fetcher of a broker shares."""

    broker_id: int
    broker_epoch: Callable[[], int]
    peers: Peers
    random: Random
    settings: FetchSettings


class CopyLane(NamedTuple):
    """What a copy lane has beyond a usual fetcher (decision 0044).

    Attributes:
        on_over: called with each partition that goes on in the usual lane.
    """

    budget: CopyBudget
    on_over: Callable[[FollowedPartition], None]


class FetchExchange:
    """One fetch request and its outcome; None while it is in flight."""

    def __init__(self, number: int, request: ReplicaFetch) -> None:
        self.number, self.request = number, request
        self.outcome: Answer | RaftmqError | None = None
