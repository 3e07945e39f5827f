"""The peers, raftmq first. Importing their modules needs none of their packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.rabbitmq import RabbitMq
from benchmarks.peers.raftmq import Raftmq
from benchmarks.peers.redis import Redis

if TYPE_CHECKING:
    from benchmarks.peers.peer import Peer

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Raftmq, Nats, Redis, RabbitMq, Kafka)}
