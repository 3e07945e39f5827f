"""What leaders have committed of one partition, and what its scheduled records are by definition.

Owns the promises that a log can break by itself: whatever settles a scheduled batch names one that
is pending then; a delivery or a copy has the records of its original, but for what is cancelled; a
batch of a transaction is pending from the commit marker on. Knows no clients.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.wire.batch.header import Buffer
    from tests.simulation.brokers.ledger import Spot


class Visible(NamedTuple):
    """A record that readers get.

    Attributes:
        due_ms: it was delivered; None: it was not scheduled.
    """

    offset: int
    value: bytes
    timestamp: int
    due_ms: int | None = None


class ScheduledSeen:
    """A scheduled batch, an original or a copy.

    Attributes:
        values: by delta, of all records that stand there.
        first_offset: base offset of the first original.
        left_out: deltas of the records that are cancelled.
        settled_by: what has settled it: "delivered", "cancelled", "carried", "aborted"; or nothing.
        settled_at: offset of the batch that has.
    """

    def __init__(self, batch: RecordBatch, first_offset: int, *, is_undecided: bool) -> None:
        assert batch.mark is not None, "it is scheduled"
        header = batch.header
        self.base_offset, self.end_offset = header.base_offset, header.end_offset
        self.due_ms, self.first_offset = batch.mark.due_ms, first_offset
        self.values = _values(batch)
        self.left_out = set(batch.mark.left_out)
        self.is_undecided, self.settled_by, self.settled_at = is_undecided, "", -1

    def settle(self, how: str, offset: int) -> None:
        self.settled_by, self.settled_at = how, offset

    @property
    def is_pending(self) -> bool:
        return not (self.settled_by or self.is_undecided)

    @property
    def kept(self) -> dict[int, bytes]:
        """What a delivery has, by delta."""
        return {at: value for at, value in self.values.items() if at not in self.left_out}


class CommittedLog:
    """Attributes:
    end_offset: everything before it was seen.
    visible: by offset.
    delivered: where each value of a scheduled record was delivered.
    copies: how many were carried forward.
    """

    def __init__(self, spot: Spot) -> None:
        self.spot, self.end_offset, self.copies = spot, 0, 0
        self.visible: dict[int, Visible] = {}
        self.delivered: dict[bytes, list[int]] = {}
        self._offsets: list[int] = []  # of what is visible, rising
        self._scheduled: dict[int, ScheduledSeen] = {}  # by base offset
        self._bases: list[int] = []
        self._open: dict[int, list[RecordBatch | ScheduledSeen]] = {}  # by producer id

    def take(self, data: Buffer) -> None:
        """Whole batches; those that are known already may stand in front."""
        for position, header in iter_batches(data):
            if header.end_offset <= self.end_offset:
                continue
            self._demand(header.base_offset == self.end_offset, header.base_offset, "a gap before")
            self._take(RecordBatch.decode(data, position))
            self.end_offset = header.end_offset

    def _take(self, batch: RecordBatch) -> None:
        header, mark = batch.header, batch.mark
        is_open = header.is_transactional and not header.is_control
        if header.is_control:
            self._take_control(batch)
        elif mark is None:
            if is_open:
                self._open.setdefault(header.producer_id, []).append(batch)
            else:
                self._show(batch)
        elif mark.delivers is not None:
            self._deliver(batch, mark.delivers)
        elif mark.replaces is not None:
            self._carry(batch, mark.replaces, mark.first)
        else:
            seen = self._schedule(batch, header.base_offset, is_undecided=is_open)
            if is_open:
                self._open.setdefault(header.producer_id, []).append(seen)

    # -- scheduled batches -----------------------------------------------------------------

    def _schedule(
        self, batch: RecordBatch, first_offset: int, *, is_undecided: bool = False
    ) -> ScheduledSeen:
        seen = ScheduledSeen(batch, first_offset, is_undecided=is_undecided)
        self._scheduled[seen.base_offset] = seen
        self._bases.append(seen.base_offset)
        return seen

    def _pending(self, base_offset: int, offset: int, what: str) -> ScheduledSeen:
        seen = self._scheduled.get(base_offset)
        self._demand(seen is not None, offset, f"{what} of {base_offset}, nothing scheduled:")
        assert seen is not None
        is_pending = seen.is_pending
        why = f"{what} of {base_offset} ({seen.settled_by or 'undecided'}), which is not pending:"
        self._demand(is_pending, offset, why)
        return seen

    def _deliver(self, batch: RecordBatch, base_offset: int) -> None:
        offset = batch.header.base_offset
        seen = self._pending(base_offset, offset, "a delivery")
        assert batch.mark is not None
        self._demand(_values(batch) == seen.kept, offset, f"{seen.kept}, not in its delivery")
        self._demand(batch.mark.due_ms == seen.due_ms, offset, "another due time in the delivery")
        early = seen.due_ms - batch.header.max_timestamp
        self._demand(early <= 0, offset, f"{early} ms early: the delivery of {base_offset}")
        seen.settle("delivered", offset)
        self._show(batch)
        for found, value in zip(batch.offsets, batch.values, strict=True):
            self.delivered.setdefault(bytes(value or b""), []).append(found)

    def _carry(self, batch: RecordBatch, base_offset: int, first_offset: int | None) -> None:
        offset = batch.header.base_offset
        seen = self._pending(base_offset, offset, "a copy")
        self._demand(first_offset == seen.first_offset, offset, "another first original in")
        copy = self._schedule(batch, seen.first_offset)
        is_same = copy.values == seen.kept and copy.left_out == seen.left_out
        self._demand(is_same and copy.due_ms == seen.due_ms, offset, f"not as {base_offset}:")
        seen.settle("carried", offset)
        copy.values = seen.values  # deltas stay what they were
        self.copies += 1

    # -- control batches -------------------------------------------------------------------

    def _take_control(self, batch: RecordBatch) -> None:
        control, header = batch.control, batch.header
        if control.type == ControlType.CANCEL:
            for record in control.cancelled:
                self._cancel(record, header.base_offset)
        elif control.type in (ControlType.COMMIT, ControlType.ABORT):
            is_commit = control.type == ControlType.COMMIT
            for one in self._open.pop(header.producer_id, ()):
                self._decide(one, header.base_offset, is_commit=is_commit)

    def _cancel(self, record: int, offset: int) -> None:
        seen = self._batch_of(record)
        self._demand(seen is not None, offset, f"a cancel of {record}, nothing scheduled:")
        assert seen is not None
        self._demand(not seen.settled_by, offset, f"a cancel of {record}, {seen.settled_by}:")
        delta = record - seen.base_offset
        self._demand(delta not in seen.left_out, offset, f"a second cancel of {record}:")
        seen.left_out.add(delta)
        if not seen.kept:
            seen.settle("cancelled", offset)

    def _decide(self, one: RecordBatch | ScheduledSeen, offset: int, *, is_commit: bool) -> None:
        if isinstance(one, ScheduledSeen):
            one.is_undecided = False
            if not (is_commit or one.settled_by):
                one.settle("aborted", offset)
        elif is_commit:
            self._show(one)

    # -- what there is ---------------------------------------------------------------------

    def _show(self, batch: RecordBatch) -> None:
        due_ms = None if batch.mark is None else batch.mark.due_ms
        columns = zip(batch.offsets, batch.values, batch.timestamps, strict=True)
        for offset, value, timestamp in columns:
            self.visible[offset] = Visible(offset, bytes(value or b""), timestamp, due_ms)
            insort(self._offsets, offset)

    def visible_in(self, begin: int, end: int) -> Iterator[Visible]:
        first, last = bisect_left(self._offsets, begin), bisect_left(self._offsets, end)
        return (self.visible[offset] for offset in self._offsets[first:last])

    def _batch_of(self, record: int) -> ScheduledSeen | None:
        place = bisect_left(self._bases, record + 1) - 1
        seen = self._scheduled[self._bases[place]] if place >= 0 else None
        return seen if seen is not None and record < seen.end_offset else None

    def scheduled_in(self, begin: int, end: int) -> list[ScheduledSeen]:
        """Batches that end in [begin, end)."""
        return [seen for seen in self._scheduled.values() if begin <= seen.end_offset - 1 < end]

    def judge_schedule(self, entries: Iterable[ScheduledEntry], who: str) -> None:
        """What a replica knows of its batches is what the log says."""
        for entry in entries:
            seen = self._scheduled.get(entry.base_offset)
            known = None if seen is None else (seen.settled_at, sorted(seen.left_out))
            where = f"{who}: {self.spot} {entry}, by the log it is {known}"
            demand(known == (entry.settled_at, list(entry.left_out)), where)

    def unsettled(self) -> list[ScheduledSeen]:
        return [seen for seen in self._scheduled.values() if not seen.settled_by]

    def fate_of(self, handle: int) -> str:
        """What has become of the record that had this offset at first: what settled its batch,
        "cancelled" if it was left out, "pending", or "unknown"."""
        seen = self._batch_of(handle)
        while seen is not None and seen.settled_by == "carried":
            delta = handle - seen.first_offset
            if delta in seen.left_out:
                return "cancelled"
            seen = self._last_copy(seen)
        if seen is None:
            return "unknown"
        if handle - seen.first_offset in seen.left_out:
            return "cancelled"
        return seen.settled_by or "pending"

    def _last_copy(self, seen: ScheduledSeen) -> ScheduledSeen:
        return next(
            self._scheduled[base]
            for base in reversed(self._bases)
            if self._scheduled[base].first_offset == seen.first_offset
        )

    def _demand(self, condition: object, offset: int, why: str) -> None:
        demand(condition, f"{self.spot}: {why} at {offset}")


def _values(batch: RecordBatch) -> dict[int, bytes]:
    base = batch.header.base_offset
    pairs = zip(batch.offsets, batch.values, strict=True)
    return {offset - base: bytes(value or b"") for offset, value in pairs}
