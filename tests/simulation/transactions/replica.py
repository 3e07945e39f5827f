"""A partition as one leader has it in one epoch: its log, and the real rules of its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import RaftmqError
from raftmq.metadata.image import MEMBERS_MAX
from raftmq.metadata.transactions import MEMBER_EPOCH
from raftmq.partition.admission import Admission, EarlierTransactionDecided
from raftmq.partition.producer_format import pack_snapshot, read_snapshot
from raftmq.partition.producers import Producers
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import CONTROL_BIT, HEADER_SIZE, LENGTH_END, TRANSACTIONAL_BIT
from raftmq.wire.batch.header import BatchHeader as Header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.transactions import OutcomeOf


class Record(NamedTuple):
    """What a client sends: one record of a transaction to one partition."""

    transaction_id: str
    client: int
    producer_id: int
    producer_epoch: int
    partition: int
    sequence: int


class Entry(NamedTuple):
    """A batch of one record, or a marker."""

    header: Header
    record: Record | None = None
    kind: ControlType | None = None


def header_of(entry_offset: int, producer_id: int, epoch: int, sequence: int, bits: int) -> Header:
    length = HEADER_SIZE - LENGTH_END
    attributes = TRANSACTIONAL_BIT | bits
    return Header(
        entry_offset, length, 0, 2, 0, attributes, 0, 0, 0, producer_id, epoch, sequence, 1
    )


def recovered(
    entries: list[Entry], snapshot_at: int, released_below: int, released_by: OutcomeOf | None
) -> Producers:
    """From a snapshot at that offset, as it stands on the disk, and the batches behind it.

    `released_by`: in the snapshot producers were released by these metadata, if their last marker
    was committed below `released_below`.
    """
    before = Producers()
    for entry in entries[:snapshot_at]:
        before.note(entry.header)
    if released_by is not None:
        before.release(min(snapshot_at, released_below), released_by)
    data = pack_snapshot(snapshot_at, *before.picture().saved())
    producers = read_snapshot(data, snapshot_at).restored()
    for entry in entries[snapshot_at:]:
        producers.note(entry.header)
    return producers


class Replica:
    """Attributes:
    entries: the log; offsets are places in it.
    start: where this epoch began.
    can_commit: no later leader has taken its followers away.
    due: producer ids to look at, None: all; empty: none.
    """

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        broker: int,
        entries: list[Entry],
        *,
        high_watermark: int,
        snapshot_at: int = 0,
        released_by: OutcomeOf | None = None,
    ) -> None:
        self.partition, self.leader_epoch, self.broker = partition, leader_epoch, broker
        self.entries, self.high_watermark, self.start = entries, high_watermark, len(entries)
        self.can_commit = True
        self.due: set[int] | None = None  # on taking office
        self.producers = recovered(entries, snapshot_at, high_watermark, released_by)

    @property
    def is_established(self) -> bool:
        return self.high_watermark >= self.start

    @property
    def last_stable_offset(self) -> int:
        return self.producers.transactions.last_stable_offset(self.high_watermark)

    def append(self, record: Record, outcome_of: OutcomeOf) -> int | None:
        """Its offset, also where it stands already; None if it is refused."""
        for _ in range(2):
            header = header_of(
                len(self.entries), record.producer_id, record.producer_epoch, record.sequence, 0
            )
            admission = Admission(self.producers, 0.0, outcome_of=outcome_of)
            try:
                original = admission.original_offset(header)
            except EarlierTransactionDecided as earlier:  # its marker first, in the same turn
                self.resolve([earlier.producer_id], outcome_of)
                continue
            except RaftmqError:
                return None
            if original is None:
                self._add(Entry(header, record))
                return header.base_offset
            return original
        raise AssertionError("a marker was appended, and the earlier transaction is open")

    def resolve(self, producer_ids: Iterable[int] | None, outcome_of: OutcomeOf) -> None:
        for wanted in self.producers.transactions.due(producer_ids, outcome_of):
            epoch = wanted.producer_epoch + 1
            header = header_of(len(self.entries), wanted.producer_id, epoch, -1, CONTROL_BIT)
            self._add(Entry(header, kind=wanted.kind))

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.producers.note(entry.header, 0.0)

    def raise_high_watermark(self, offset: int, outcome_of: OutcomeOf) -> None:
        self.high_watermark = offset
        self.producers.transactions.on_high_watermark(offset)
        self.producers.release(offset, outcome_of)

    def forget_plain(self) -> None:
        """By time and number: what is no transaction's."""
        self.producers.cache_of(0).forget_all()

    def is_settled(self, producer_id: int, epoch: int) -> bool:
        transactions = self.producers.transactions
        is_ended = transactions.is_ended([producer_id], epoch, self.high_watermark)
        return self.is_established and is_ended

    def is_block_settled(self, block: int) -> bool:
        """The same of all members of a block."""
        members = range(block, block + MEMBERS_MAX)
        transactions = self.producers.transactions
        is_ended = transactions.is_ended(members, MEMBER_EPOCH, self.high_watermark)
        return self.is_established and is_ended

    def visible(self, end: int) -> list[Record]:
        """What a read_committed reader gets below `end`, by the log alone."""
        kinds: dict[tuple[int, int], ControlType] = {}
        for entry in reversed(self.entries):
            if entry.kind is not None:
                pid, epoch = entry.header.producer_id, entry.header.producer_epoch - 1
                kinds[pid, epoch] = entry.kind
        found = []
        for entry in self.entries[:end]:
            if entry.record is not None:
                name = (entry.record.producer_id, entry.record.producer_epoch)
                assert name in kinds, f"below the last stable offset without a marker: {entry}"
                if kinds[name] is ControlType.COMMIT:
                    found.append(entry.record)
        return found
