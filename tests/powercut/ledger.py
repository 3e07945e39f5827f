"""What each log must hold, going by what its writers told: the judge of every recovery. Pure.

Owns the expectation per partition and the comparison. Feed it every event in order (`record`),
and after a recovery what was read back (`compare`); it answers with findings, one line each.

Three kinds of records: promised ones must be there; written ones may be there, and only at their
offset; those behind the last one that was told of must at least be content that somebody wrote,
newer than all that was told.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tests.powercut.events import (
    Acknowledged,
    Appended,
    Deleted,
    Deleting,
    NotDeleted,
    Opened,
    Truncated,
    Truncating,
    WentOffline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.powercut.events import AnyEvent


class Keeps(Enum):
    """What a disaster must leave."""

    ACKNOWLEDGED = "acknowledged"  # power cut: the page cache is gone
    WRITTEN = "written"  # kill -9: whatever an append returned for


class Found(NamedTuple):
    """One record read back; `sequence` is None if nobody wrote such a record."""

    offset: int
    sequence: int | None
    leader_epoch: int


class Told(NamedTuple):
    sequence: int
    leader_epoch: int


class PartitionLedger:
    """Of one partition.

    Attributes:
        lost: acknowledged records that were not found.
        vanished: records that were written, but never acknowledged, and are gone: as they may.
        acknowledged: acknowledged records, over all lives.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.findings: list[str] = []
        self.lost = self.vanished = self.acknowledged = 0
        self._told: dict[int, Told] = {}
        self._end = self._acknowledged_end = 0
        self._start, self._start_max = 0, 0
        self._last_sequence = -1
        # Appended, but killed before it was told of: offset -> sequences told of before.
        self._newer_than: dict[int, int] = {}
        self._truncating_to: int | None = None
        self._is_offline = False

    def record(self, event: AnyEvent) -> None:
        match event:
            case Appended():
                self._on_appended(event)
            case Acknowledged(end_offset=end):
                self._on_acknowledged(end)
            case Truncating(offset=offset):
                self._truncating_to = offset
                self._acknowledged_end = min(self._acknowledged_end, offset)
            case Truncated(log_end_offset=end):
                self._on_truncated(end)
            case Deleting(before_offset=before):
                self._start_max = max(self._start_max, before)
            case Deleted(log_start_offset=start):
                self._on_deleted(start)
            case NotDeleted():
                self._start_max = self._start
            case WentOffline(reason=reason):
                self._on_offline(reason)

    def _on_appended(self, event: Appended) -> None:
        if self._is_offline:
            self.find("took an append while it was offline")
        if event.base_offset != self._end:
            self.find(f"appended at {event.base_offset}, the log ended at {self._end}")
        for index, offset in enumerate(range(event.base_offset, event.end_offset)):
            self._told[offset] = Told(event.first_sequence + index, event.leader_epoch)
            self._last_sequence = event.first_sequence + index
        self._end = event.end_offset

    def _on_acknowledged(self, end: int) -> None:
        if self._is_offline:
            self.find(f"acknowledged {end} while it was offline")
        if end > self._end:
            self.find(f"acknowledged {end}, the log ended at {self._end}")
        if self._truncating_to is not None:
            end = min(end, self._truncating_to)
        self.acknowledged += max(0, end - self._acknowledged_end)
        self._acknowledged_end = max(self._acknowledged_end, end)

    def _on_truncated(self, end: int) -> None:
        if end > (self._end if self._truncating_to is None else self._truncating_to):
            self.find(f"truncated to {self._truncating_to}, but ends at {end}")
        self._settle_end(end)

    def _settle_end(self, end: int) -> None:
        self._told = {offset: told for offset, told in self._told.items() if offset < end}
        self._end, self._truncating_to = end, None
        self._acknowledged_end = min(self._acknowledged_end, end)

    def _on_deleted(self, start: int) -> None:
        if start < self._start_max:
            self.find(f"deleted up to {self._start_max}, but starts at {start}")
        self._settle_start(start)

    def _settle_start(self, start: int) -> None:
        self._told = {offset: told for offset, told in self._told.items() if offset >= start}
        self._start = self._start_max = start

    def _on_offline(self, reason: str) -> None:
        if not reason:
            self.find("an operation failed, but the log did not go offline")
        self._is_offline = True

    # -- judging ---------------------------------------------------------------------------

    def on_opened(self, event: Opened, keeps: Keeps) -> None:
        """A recovery: what it found is durable from now on."""
        if event.damage:
            self.find(event.damage)
        self._judge_start(event.log_start_offset)
        self._judge_end(event.log_end_offset, self._must_reach(keeps))
        written_end = self._must_reach(Keeps.WRITTEN)
        self.vanished += max(0, written_end - max(event.log_end_offset, self._acknowledged_end))
        for offset in range(self._end, event.log_end_offset):
            self._newer_than[offset] = self._last_sequence
        self._settle_end(event.log_end_offset)
        self._settle_start(event.log_start_offset)
        self._acknowledged_end = event.log_end_offset
        self._is_offline = False

    def _must_reach(self, keeps: Keeps) -> int:
        if keeps is Keeps.ACKNOWLEDGED:
            return self._acknowledged_end
        return self._end if self._truncating_to is None else min(self._end, self._truncating_to)

    def _judge_start(self, start: int) -> None:
        if not self._start <= start <= self._start_max:
            self.lost += max(0, min(start, self._acknowledged_end) - self._start_max)
            self.find(f"starts at {start}, expected {self._start} to {self._start_max}")

    def _judge_end(self, end: int, must_reach: int) -> None:
        if end < must_reach:
            self.lost += max(0, self._acknowledged_end - end)
            self.find(f"ends at {end}, must reach {must_reach}")

    def compare(self, found: Sequence[Found]) -> None:
        """Everything that the log holds, after `on_opened`."""
        expected = self._start
        newest = -1
        for record in found:
            if record.offset != expected:
                self.find(f"offset {record.offset} follows {expected - 1}")
            self._compare_one(record, newest)
            newest = newest if record.sequence is None else record.sequence
            expected = record.offset + 1
        if expected < self._end:
            self.lost += self._end - expected
            self.find(f"can be read up to {expected}, claims to end at {self._end}")
        self._last_sequence = max(self._last_sequence, newest)

    def _compare_one(self, record: Found, newest: int) -> None:
        told = self._told.get(record.offset)
        if told is not None and (record.sequence, record.leader_epoch) != told:
            self.lost += 1
            self.find(f"{told} became {record}")
        elif record.sequence is None:
            self.find(f"nobody wrote {record}")
        elif record.sequence <= max(newest, self._newer_than.pop(record.offset, -1)):
            self.find(f"{record} has come back from before a truncation")
        else:
            self._told[record.offset] = Told(record.sequence, record.leader_epoch)

    def find(self, what: str) -> None:
        """Something is wrong with this log."""
        self.findings.append(f"partition {self.partition}: {what}")


class Ledger:
    """Of all partitions of one directory."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [PartitionLedger(number) for number in range(partitions)]
        self.cut_bytes = self.damaged_logs = 0

    def record(self, event: AnyEvent, keeps: Keeps) -> None:
        if isinstance(event, Opened):
            self.cut_bytes += event.cut_bytes
            self.damaged_logs += bool(event.damage)
            self.partitions[event.partition].on_opened(event, keeps)
        elif hasattr(event, "partition"):
            self.partitions[event.partition].record(event)

    @property
    def findings(self) -> list[str]:
        return [finding for each in self.partitions for finding in each.findings]

    @property
    def acknowledged(self) -> int:
        return sum(each.acknowledged for each in self.partitions)

    @property
    def vanished(self) -> int:
        return sum(each.vanished for each in self.partitions)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.partitions)
