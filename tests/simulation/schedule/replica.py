"""One replica: its log, what it knows of schedules, and what it does as leader.

The rules are the real ones. Reading a batch takes its time, so that what a leader has read and not
appended yet is in hand, and the log goes on in the meantime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.partition.scheduling.columns import RowState
from tests.simulation.schedule.log import Batch, Kind, Log, expected, note, rebuilt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.scheduling.schedule import CancelCheck, CancelRefusal

CONTROL_BYTES = 80


class InHand(NamedTuple):
    """What was read to be appended: a delivery or a copy of it."""

    kind: Kind
    base_offset: int
    content: Batch


class Replica:
    """Attributes:
    synced: what no crash takes.
    known_epoch: the newest leader epoch that it has heard of.
    matched_epoch: its log has nothing that the leader of that epoch does not have.
    leads: the epoch that it leads, as far as it knows; None: it does not.
    unread: base offset of a batch that it cannot read.
    wanted_start: where the log shall begin, as soon as all before is settled.
    is_changed: since the last check; and what `scheduled_records` said then is `held`.
    """

    def __init__(self, number: int, segment_bytes: int, skew_ms: int) -> None:
        self.number, self.skew_ms = number, skew_ms
        self.log = Log(0, segment_bytes)
        self.schedule = rebuilt(self.log)
        self.high_watermark = self.synced = 0
        self.known_epoch = self.matched_epoch = 0
        self.leads: int | None = None
        self.unread: int | None = None
        self.in_hand: list[InHand] = []
        self.wanted_start = 0
        self.is_changed = False
        self.held: set[int] = set()

    # -- the log ---------------------------------------------------------------------------

    def append(self, batch: Batch) -> Batch:
        """At the log's end."""
        batch = batch._replace(base_offset=self.log.end)
        self.copy(batch)
        return batch

    def copy(self, batch: Batch) -> None:
        is_roll = self.log.append(batch)
        note(self.schedule, batch, self.log.positions[-1], is_roll=is_roll)
        self.is_changed = True

    def cut(self, offset: int) -> None:
        assert offset >= self.high_watermark, "a cut of what is committed"
        self.synced = min(self.synced, offset)
        if offset < self.log.end:
            self.log.cut(offset)
            self.schedule.cut(offset, self.log.segments[-1])
            self.is_changed = True
        if self.unread is not None and self.unread >= offset:
            self.unread = None

    def restart(self, end: int, high_watermark: int, unread: int | None) -> None:
        """After a crash that has left the log up to `end`."""
        self.high_watermark = high_watermark
        self.log.cut(end)
        self.synced = end
        self.unread = unread
        self.resign()
        self.schedule = rebuilt(self.log, unread)
        self.is_changed = True

    def start_over(self, start: int) -> None:
        self.log.reset(start)
        self.schedule = rebuilt(self.log)
        self.high_watermark = self.synced = start
        self.unread = None
        self.is_changed = True

    def repair(self) -> None:
        """Of another replica it has what it could not read."""
        self.unread = None
        self.resign_hands()
        self.schedule = rebuilt(self.log)
        self.is_changed = True

    def trim(self, offset: int) -> None:
        self.log.delete_before(offset)
        self.schedule.trim(self.log.first)
        self.is_changed = True

    # -- leading ---------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        self.leads = self.known_epoch = self.matched_epoch = epoch
        self.wanted_start = self.log.start

    def resign(self) -> None:
        self.leads = None
        self.resign_hands()

    def resign_hands(self) -> None:
        """What was read belongs to the log as it was."""
        self.in_hand.clear()
        self.schedule.stop_leading()

    def clock(self, now: int) -> int:
        return now + self.skew_ms

    def open_transaction(self, producer_id: int) -> int | None:
        for batch in reversed(self.log.batches):
            if batch.producer_id == producer_id:
                return batch.transaction if batch.kind is Kind.SCHEDULED else None
        return None

    def mark(self, producer_id: int, transaction: int, *, is_commit: bool) -> None:
        kind = Kind.COMMIT if is_commit else Kind.ABORT
        self._append_settling(
            Batch(kind, 0, CONTROL_BYTES, producer_id=producer_id, transaction=transaction)
        )

    def _append_settling(self, batch: Batch) -> None:
        assert self.leads is not None
        self.append(batch._replace(epoch=self.leads))

    def take(self, now: int, limit: int) -> None:
        """Read what is due."""
        for entry in self.schedule.take_due(self.clock(now), limit):
            self.read(Kind.DELIVERY, entry)

    def read(self, kind: Kind, entry: ScheduledEntry) -> None:
        content = self.log.read(entry.segment_offset, entry.position)
        self.in_hand.append(InHand(kind, entry.base_offset, content))

    def is_carried(self, entry: ScheduledEntry) -> bool:
        """A copy is in hand already."""
        return any(each[:2] == (Kind.COPY, entry.base_offset) for each in self.in_hand)

    def finish(self, place: int, now: int) -> Kind | None:
        """Append what was read, unless it has been settled in the meantime, or is not due any more
        by a clock that went back."""
        hand = self.in_hand.pop(place)
        entry = self.still_pending(hand)
        if entry is None:
            return None
        if hand.kind is Kind.DELIVERY and not self.is_due(entry, now):
            self.schedule.give_back(entry.base_offset)
            return None
        batch = self._delivery if hand.kind is Kind.DELIVERY else self._copy
        self._append_settling(batch(entry, hand.content, self.clock(now)))
        return hand.kind

    def still_pending(self, hand: InHand) -> ScheduledEntry | None:
        return self.schedule.pending_at(hand.base_offset)

    def is_due(self, entry: ScheduledEntry, now: int) -> bool:
        return entry.due_ms <= self.clock(now)

    def _delivery(self, entry: ScheduledEntry, content: Batch, clock_ms: int) -> Batch:
        ids = [each for place, each in enumerate(content.ids) if place not in entry.left_out]
        return Batch(
            Kind.DELIVERY, 0, content.length,
            record_count=entry.record_count, ids=tuple(ids), named=(self.name_of(entry),),
            clock_ms=clock_ms,
        )  # fmt: skip

    def _copy(self, entry: ScheduledEntry, content: Batch, _clock_ms: int) -> Batch:
        return Batch(
            Kind.COPY, 0, content.length,
            record_count=entry.record_count, due_ms=entry.due_ms, ids=content.ids,
            named=(entry.base_offset,), first_offset=entry.first_offset,
            left_out=self.kept_out(entry),
        )  # fmt: skip

    def name_of(self, entry: ScheduledEntry) -> int:
        """What a delivery of it names."""
        return entry.base_offset

    def kept_out(self, entry: ScheduledEntry) -> tuple[int, ...]:
        """What a copy of it leaves out."""
        return entry.left_out

    def cancel(self, handle: int, record: int) -> CancelRefusal | None:
        check = self.schedule.check_cancel(handle)
        if check.refusal is None:
            named = self.named_by(check)
            self._append_settling(Batch(Kind.CANCEL, 0, CONTROL_BYTES, ids=(record,), named=named))
        return check.refusal

    def named_by(self, check: CancelCheck) -> tuple[int, ...]:
        return (check.offset,)

    # -- retention -------------------------------------------------------------------------

    def may_begin_at(self, offset: int) -> bool:
        return self.schedule.is_settled_before(offset, self.own_high_watermark())

    def own_high_watermark(self) -> int:
        return self.high_watermark

    # -- checks ----------------------------------------------------------------------------

    def scheduled_records(self) -> set[int]:
        """The records of scheduled batches that are there."""
        kinds = (Kind.SCHEDULED, Kind.COPY)
        return {one for each in self.log.batches if each.kind in kinds for one in each.ids}

    def check(self) -> None:
        """What it knows is what its log says."""
        if self.unread is not None:
            return
        entries = expected(self.log)
        known = [*self.schedule.entries()]
        taken = {each.base_offset for each in known if each.state is RowState.TAKEN}
        assert [_untaken(each) for each in known] == entries, "not what the log says"
        pending = [
            each for each in entries if not each.settled_by and each.state is RowState.WAITING
        ]
        assert self.schedule.pending_count == len(pending), "the count is wrong"
        assert self.schedule.pending_bytes == sum(each.length for each in pending), "the bytes"
        assert taken <= {each.base_offset for each in pending}, "taken, and not pending"
        waiting = [each.due_ms for each in pending if each.base_offset not in taken]
        assert self.schedule.next_due() == min(waiting, default=None), "the next due time is wrong"
        offset = self.high_watermark
        for end in self.log.segments[1:]:
            is_settled = all(
                each.settled_by and each.settled_at < offset
                for each in entries
                if each.base_offset < end
            )
            assert self.schedule.is_settled_before(end, offset) == is_settled, "of retention"

    def check_rebuilt(self) -> None:
        """A restart would know the same."""
        again: Iterable[ScheduledEntry] = rebuilt(self.log, self.unread).entries()
        assert [_untaken(each) for each in self.schedule.entries()] == [*again], "a restart differs"


def _untaken(entry: ScheduledEntry) -> ScheduledEntry:
    is_taken = entry.state is RowState.TAKEN
    return entry._replace(state=RowState.WAITING) if is_taken else entry
