"""The disk model of replication: the log of each replica, its synced part, the broker's identity.

Owns which records a crash takes. A process that is killed loses nothing that it wrote; a power cut
takes what was not synced, but for a prefix of it, as chance will have it. Only a synced log of a
topic with durability fsync is `held`; with page_cache everything that is written is.

Invariants: synced <= end, flushing <= end, epochs describe exactly the records (and who leads now).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.commands import NO_EPOCH
from raftmq.partition.epochs import LeaderEpochs
from raftmq.partition.producers import Producers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from raftmq.partition.transactions import Transactions
    from raftmq.wire.batch.control import ControlType
    from raftmq.wire.batch.header import BatchHeader


class Record(NamedTuple):
    """`header`: of a batch of a transaction; `kind`: of a marker."""

    leader_epoch: int
    value: int
    header: BatchHeader | None = None
    kind: ControlType | None = None


class ReplicaLog:
    """Attributes:
    start: the offset of the first record; those before are deleted.
    synced, flushing: what is on the disk, and what will be after the flush under way.
    high_watermark, checkpoint: what is known now, and what a restart finds.
    lost_epoch, lost_at: the registered broker epoch when it last lost what it held, and the time.
    """

    def __init__(self, *, is_fsync: bool) -> None:
        self.is_fsync = is_fsync
        self.start = self.synced = self.flushing = self.high_watermark = self.checkpoint = 0
        self.lost_epoch, self.lost_at = NO_EPOCH, -1.0
        self.records: list[Record] = []
        self.epochs = LeaderEpochs()
        self._producers: Producers | None = Producers()  # None: to be read from the records again

    @property
    def producers(self) -> Producers:
        """With a snapshot at the log's start: nothing is open there."""
        if self._producers is None:
            self._producers = Producers()
            self._note(self.records)
        return self._producers

    @property
    def transactions(self) -> Transactions:
        return self.producers.transactions

    def _note(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.header is not None:
                self.producers.note(record.header, 0.0)

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def held(self) -> int:
        """Everything before it is as durable as the topic asks."""
        return self.synced if self.is_fsync else self.end

    def slice(self, start: int, end: int) -> list[Record]:
        return self.records[max(0, start - self.start) : max(0, end - self.start)]

    def append(self, records: Iterable[Record]) -> None:
        records = list(records)
        self._note(records)
        for record in records:
            if record.leader_epoch != self.epochs.latest:
                self.epochs.assign(record.leader_epoch, self.end)
            self.records.append(record)

    def truncate(self, offset: int) -> None:
        assert self.start <= offset, f"{offset} is before the log's start {self.start}"
        del self.records[offset - self.start :]
        self.epochs.truncate(offset)
        self._producers = None
        self.synced, self.flushing = min(self.synced, offset), min(self.flushing, offset)
        self.checkpoint = min(self.checkpoint, offset)

    def start_over(self, offset: int) -> None:
        self.records.clear()
        self._producers = None
        self.epochs = LeaderEpochs()
        self.start = self.synced = self.flushing = offset
        self.checkpoint = min(self.checkpoint, offset)

    def trim(self, start: int) -> None:
        """Delete what is before; never more than there is."""
        start = min(start, self.end)
        if start > self.start:
            del self.records[: start - self.start]
            self.start = start
            self.synced, self.flushing = max(self.synced, start), max(self.flushing, start)
            self.epochs.trim(start)

    def lose_unsynced(self, chance: Random) -> bool:
        """The power is cut: whether that took something that was held."""
        survives = chance.randint(self.synced, self.end)
        has_lost = survives < self.held
        self.truncate(survives)
        self.synced = survives
        return has_lost

    def recover(self) -> None:
        """A new process: what it finds is what there is; epochs stand in the records."""
        self.flushing, self._producers = self.synced, None
        self.high_watermark = max(self.start, min(self.checkpoint, self.end))
        self.epochs, offset = LeaderEpochs(), self.start
        for offset, record in enumerate(self.records, self.start):
            if record.leader_epoch != self.epochs.latest:
                self.epochs.assign(record.leader_epoch, offset)

    def copy(self) -> ReplicaLog:
        other = ReplicaLog(is_fsync=self.is_fsync)
        other.start, other.synced, other.checkpoint = self.start, self.synced, self.checkpoint
        other.records, other._producers = list(self.records), None
        return other


@dataclass
class Directory:
    """A data directory, whole: a copy from the past has all of this from the past."""

    directory_id: bytes
    broker_epoch: int = NO_EPOCH
    clean_epoch: int = NO_EPOCH  # of the process that was shut down cleanly last
    damaged: set[PartitionId] = field(default_factory=set)  # found at the start, not yet reported
    logs: dict[PartitionId, ReplicaLog] = field(default_factory=dict)

    def copy(self) -> Directory:
        logs = {key: log.copy() for key, log in self.logs.items()}
        return Directory(self.directory_id, self.broker_epoch, logs=logs)
