"""What is committed, and whether it keeps the promises of scheduled records.

Each record of a committed scheduled batch is delivered once, not before its due time by the clock
of the leader that delivers it; or it was cancelled, and never is; or its transaction was aborted,
and it never is. Before the commit marker of its transaction is committed, nothing of it is.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.schedule import CancelRefusal
from tests.simulation.schedule.log import Batch, Kind


class Fate(Enum):
    UNDECIDED = auto()
    PENDING = auto()
    DELIVERED = auto()
    CANCELLED = auto()
    ABORTED = auto()


OPEN = (Fate.UNDECIDED, Fate.PENDING)
REFUSED = {
    CancelRefusal.DELIVERED: (Fate.DELIVERED,),
    CancelRefusal.CANCELLED: (Fate.CANCELLED,),
    CancelRefusal.ABORTED: (Fate.ABORTED,),
    CancelRefusal.UNKNOWN: (Fate.DELIVERED, Fate.CANCELLED, Fate.ABORTED),
}


class Known(NamedTuple):
    """A record: its offset at first, its due time, its transaction."""

    handle: int
    due_ms: int
    producer_id: int
    transaction: int


class Judge:
    """Attributes:
    committed: every batch that was ever below the high watermark.
    fates: by record.
    unsettled: the records that no committed batch has settled.
    deliveries: those that are committed.
    """

    def __init__(self) -> None:
        self.committed: list[Batch] = []
        self.end = 0
        self.known: dict[int, Known] = {}
        self.fates: dict[int, Fate] = {}
        self.unsettled: set[int] = set()
        self.deliveries: list[Batch] = []

    def on_commit(self, batch: Batch) -> None:
        assert batch.base_offset == self.end, "the world commits with a gap"
        self.committed.append(batch)
        self.end = batch.end_offset
        if batch.kind is Kind.SCHEDULED:
            self._schedule(batch)
        elif batch.kind is Kind.DELIVERY:
            self._deliver(batch)
        elif batch.kind is Kind.CANCEL:
            for each in batch.ids:
                fate = self.fates[each]
                assert fate in OPEN, f"cancelled, and {fate}: {each}"
                self._settle(each, Fate.CANCELLED)
        elif batch.kind is Kind.COPY:
            assert all(self.known[each].due_ms == batch.due_ms for each in batch.ids), "of a copy"
        elif batch.kind in (Kind.COMMIT, Kind.ABORT):
            self._decide(batch)

    def _schedule(self, batch: Batch) -> None:
        is_open = batch.producer_id != NO_PRODUCER_ID
        for place, each in enumerate(batch.ids):
            handle = batch.base_offset + place
            self.known[each] = Known(handle, batch.due_ms, batch.producer_id, batch.transaction)
            self.fates[each] = Fate.UNDECIDED if is_open else Fate.PENDING
            self.unsettled.add(each)

    def _deliver(self, batch: Batch) -> None:
        self.deliveries.append(batch)
        for each in batch.ids:
            assert each in self.known, f"delivered, and its original is not committed: {each}"
            fate, due_ms = self.fates[each], self.known[each].due_ms
            assert fate is Fate.PENDING, f"delivered, and {fate}: {each}"
            assert batch.clock_ms >= due_ms, f"early by {due_ms - batch.clock_ms} ms: {each}"
            self._settle(each, Fate.DELIVERED)

    def _settle(self, record: int, fate: Fate) -> None:
        self.fates[record] = fate
        self.unsettled.discard(record)

    def _decide(self, marker: Batch) -> None:
        for each, known in self.known.items():
            is_of = known[2:] == (marker.producer_id, marker.transaction)
            if is_of and self.fates[each] is Fate.UNDECIDED:
                if marker.kind is Kind.ABORT:
                    self._settle(each, Fate.ABORTED)
                else:
                    self.fates[each] = Fate.PENDING

    def check_refusal(self, record: int, refusal: CancelRefusal) -> None:
        """A leader whose whole log is committed has said so."""
        fate = self.fates[record]
        assert fate in REFUSED[refusal], f"no cancel, as {refusal.name}; but {fate}: {record}"

    def check_end(self) -> None:
        """Nothing is left."""
        left = {each: self.fates[each] for each in sorted(self.unsettled)}
        assert not left, f"never settled: {left}"
