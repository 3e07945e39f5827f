"""What fetching from leaders needs of the broker: connections, settings, and one fetch exchange.

Owns names, and no rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from raftmq.rpc.backoff import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.errors import RaftmqError
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.replicate import ReplicaFetch


class LeaderPeers(Protocol):
    """One-way messages to leaders, see `rpc.peers.Peers`."""

    def send_one_way(self, broker_id: int, body: Request) -> bool: ...


class LeaderRequests(LeaderPeers, Protocol):
    """Requests to leaders, see `rpc.peers.Peers`."""

    def ask(
        self,
        broker_id: int,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool: ...

    async def request(self, broker_id: int, body: Request, *, timeout_seconds: float) -> Answer: ...


class FetchSettings(NamedTuple):
    max_wait_ms: int = 500  # long poll at the leader (Kafka: replica.fetch.wait.max.ms)
    bytes_max: int = 2 << 20  # appended in one step, which holds up other tasks (decision 0016)
    partition_bytes_max: int = 1 << 20  # two partitions at least share an answer
    pauses: Pauses = Pauses(0.05, 1.0)  # after a failed exchange; a restarted leader is found soon


class FollowerIdentity(NamedTuple):
    """What every fetcher of a broker shares."""

    broker_id: int
    broker_epoch: Callable[[], int]
    peers: LeaderRequests
    random: Random
    settings: FetchSettings


class FetchExchange:
    """One fetch request and its outcome; None while it is in flight."""

    def __init__(self, number: int, request: ReplicaFetch) -> None:
        self.number, self.request = number, request
        self.outcome: Answer | RaftmqError | None = None
