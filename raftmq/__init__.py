"""raftmq: a distributed message queue with Kafka's guarantees and none of its machinery.

Owns the public names of the SDK, imported on first access, so that commands which need none of them
start quickly. Programs begin with `connect`; `raftmq.sync` has the same calls, blocking.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from raftmq.version import __version__

if TYPE_CHECKING:
    from raftmq.client.client import Client, connect
    from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.producer.batch import BatchMetadata, RecordMetadata
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer
    from raftmq.errors import OutcomeUnknown, RaftmqError

_HOMES = {
    "BatchMetadata": "raftmq.client.producer.batch",
    "Client": "raftmq.client.client",
    "ConsumedBatch": "raftmq.client.consumer.batch",
    "Consumer": "raftmq.client.consumer.consumer",
    "ConsumerRecord": "raftmq.client.consumer.batch",
    "Delivery": "raftmq.client.producer.delivery",
    "OutcomeUnknown": "raftmq.errors",
    "Producer": "raftmq.client.producer.producer",
    "RaftmqError": "raftmq.errors",
    "RecordMetadata": "raftmq.client.producer.batch",
    "connect": "raftmq.client.client",
}

__all__ = [
    "BatchMetadata",
    "Client",
    "ConsumedBatch",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "OutcomeUnknown",
    "Producer",
    "RaftmqError",
    "RecordMetadata",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:  # imported now, and not with the package
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raftmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
