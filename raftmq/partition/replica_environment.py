"""What a replica and whoever uses it say to each other.

Owns names only: the key of a partition, a leader's answer, and what a replica needs of its broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.leader import Diverged, ProposeIsr
    from raftmq.wire.batch.header import Buffer


class PartitionKey(NamedTuple):
    topic_id: bytes
    partition: int


class Watcher(Protocol):
    """Whoever wants to know that there may be something new to read."""

    def on_news(self, key: PartitionKey) -> None:
        """The log grew, the high watermark rose, or the part changed. Must not wait."""


class FetchedFromLeader(NamedTuple):
    """A leader's answer about one partition. `diverged` excludes the rest."""

    data: Buffer = b""
    high_watermark: int = 0
    log_start_offset: int = 0
    diverged: Diverged | None = None


class ReplicaEnvironment(NamedTuple):
    """What a replica needs of its broker. All of it is called on the loop and must not wait."""

    broker_id: int
    epoch_of: Callable[[int], int | None]  # of a broker that may be in an ISR
    propose_isr: Callable[[PartitionKey, ProposeIsr], None]
    on_held: Callable[[PartitionKey], None]  # a follower holds more: its leader wants to know
    on_offline: Callable[[PartitionKey], None] = lambda _key: None  # its log has to be opened anew
    on_doubt: Callable[[PartitionKey, int], None] = lambda _key, _offset: (
        None
    )  # look after rot there
