"""Types between a replica and its broker: partition key, watcher, fetch answer, callbacks.

Owns names only, so that broker and partition import this and not each other. No behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from raftmq.partition.admission import no_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.partition.leader import Diverged, ProposeIsr
    from raftmq.partition.scheduling.schedule import CancelCheck
    from raftmq.partition.transactions import OutcomeOf
    from raftmq.wire.batch.header import Buffer


class PartitionKey(NamedTuple):
    topic_id: bytes
    partition: int


class Watcher(Protocol):
    """Notified when a partition may have new records to read: a long poll, for example. None of
    these may wait."""

    def on_append(self, key: PartitionKey) -> None:
        """The log grew; the high watermark has not risen yet."""

    def on_high_watermark(self, key: PartitionKey) -> None:
        """It rose."""

    def on_news(self, key: PartitionKey) -> None:
        """Anything else: the role, or where the log starts; the replica may have been closed."""


class FetchPosition(Protocol):
    """Where a follower's log ends, as `FetchFromLeader` and the request for it say."""

    @property
    def fetch_offset(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...


class FetchedFromLeader(NamedTuple):
    """A leader's answer about one partition. `diverged` excludes the rest."""

    data: Buffer = b""
    high_watermark: int = 0
    log_start_offset: int = 0
    diverged: Diverged | None = None


class PartitionTransaction(NamedTuple):
    """One that is open in a partition's log, as its leader sees it.

    Attributes:
        since: when this leader saw it first, on trio's clock.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    since: float


class CancelOutcome(NamedTuple):
    """What a leader says to cancels of scheduled records.

    Attributes:
        checks: for each handle, in its order.
        end_offset: nothing of this is certain before everything below it is committed.
    """

    checks: Sequence[CancelCheck]
    end_offset: int


class ReplicaEnvironment(NamedTuple):
    """What a replica needs of its broker. All of it is called on the loop and must not wait."""

    broker_id: int
    epoch_of: Callable[[int], int | None]  # broker epoch, if that broker may be in an ISR
    propose_isr: Callable[[PartitionKey, ProposeIsr], None]
    on_held: Callable[[PartitionKey], None]  # a follower holds more: report it to the leader
    on_offline: Callable[[PartitionKey], None] = lambda _key: None  # its log has to be opened anew
    # Bytes at that offset did not decode: check the disk for rot (decision 0027).
    on_doubt: Callable[[PartitionKey, int], None] = lambda _key, _offset: None
    # What this broker's newest metadata say of a producer id in one of its epochs.
    outcome: OutcomeOf = no_transactions
    # As the leader it has something open of that producer: to be resolved once it is decided.
    on_open: Callable[[PartitionKey, int], None] = lambda _key, _producer_id: None
    # As the leader it has appended the marker of a commit, of that producer id and epoch.
    on_commit: Callable[[PartitionKey, int, int], None] = lambda _key, _producer_id, _epoch: None
    # Raises the error for a scheduled batch of a producer, where none may be taken.
    check_scheduled: Callable[[], None] = lambda: None
    # As the leader it has scheduled records that are pending, the next of them due then.
    on_pending: Callable[[PartitionKey, int], None] = lambda _key, _due_ms: None
