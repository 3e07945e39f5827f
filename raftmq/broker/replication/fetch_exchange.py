"""What those who fetch from leaders need of their broker: the way to the leaders, and settings.

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
    """The way to the leaders, see `rpc.peers.Peers`."""

    def send_one_way(self, broker_id: int, body: Request) -> bool: ...


class FetchEnvironment(LeaderPeers, Protocol):
    """The way to the leaders, see `rpc.peers.Peers`."""

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
    max_wait_ms: int = 500
    bytes_max: int = 2 << 20  # appended at once, and others wait meanwhile
    partition_bytes_max: int = 1 << 20
    pauses: Pauses = Pauses(0.05, 1.0)


class FollowerIdentity(NamedTuple):
    """What every fetcher of a broker knows."""

    broker_id: int
    broker_epoch: Callable[[], int]
    peers: FetchEnvironment
    random: Random
    settings: FetchSettings


class FetchExchange:
    """A request, and what came of it."""

    def __init__(self, number: int, request: ReplicaFetch) -> None:
        self.number, self.request = number, request
        self.outcome: Answer | RaftmqError | None = None
