"""Planted bugs of scheduled records in whole brokers, each with the faults that expose it.

The seeds of worlds that find them are in `planted_seeds.json`. To count the worlds that find one:

    python -m tests.simulation.scheduling.planted_bugs --seeds 20 --bug NAME

`--reseed` searches for other seeds, where a change of the code has shifted the worlds. Bugs of the
rules alone are planted in `tests/simulation/schedule`, whose worlds are a thousand times as fast.

Two are not here. A leader that does not give back what it has taken when it stops leading
(`Schedule.stop_leading`) breaks no promise: whoever delivers gives back all that was not settled,
however it ends. And for what was read in a leadership that is over to be appended in a later one,
one read has to last longer than a cut by the same disk; the worlds of `schedule` find it.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from raftmq.broker.replication import scheduled_delivery
from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.replica import Replica
from raftmq.partition.scheduling import leading
from raftmq.partition.scheduling.columns import ScheduledColumns, entry_of
from raftmq.partition.scheduling.lists import LIST_SUFFIX, KnownSchedule
from raftmq.partition.scheduling.schedule import CancelCheck, CancelRefusal, Schedule
from raftmq.partition.storage.work import Truncation
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.batch.scheduling import copy_of, delivery_of
from tests.simulation import planting
from tests.simulation.disk import SimulatedFiles
from tests.simulation.planting import Case, PlantedBugs
from tests.simulation.scheduling.world import SchedulingWorld

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.scheduling.columns import ScheduledEntry
    from raftmq.partition.scheduling.leading import LedLog, ReadOriginal
    from tests.simulation.planting import Patch

SECONDS = 6.0  # of virtual time for each world
SEEDS_FILE = FilePath(__file__).with_name("planted_seeds.json")


# -- Cuts ------------------------------------------------------------------------------------------


def the_schedule_is_not_cut(patch: Patch) -> None:
    """A truncation leaves it as it was."""
    patch.setattr(KnownSchedule, "cut", lambda *_: None)


def settlements_outlive_a_cut(patch: Patch) -> None:
    """What was settled behind a cut stays settled."""
    patch.setattr(Schedule, "_undo_settlements", lambda *_: None)


def lists_outlive_a_cut(patch: Patch) -> None:
    """The list of the segment that was cut is believed once the log has grown over it again."""
    perform, remove = Truncation.perform, SimulatedFiles.remove

    def remove_others(self: SimulatedFiles, path: Path) -> None:
        if path.suffix != LIST_SUFFIX:
            remove(self, path)

    def perform_without_list(self: Truncation, files: Files) -> None:
        with patch.context() as inner:
            inner.setattr(SimulatedFiles, "remove", remove_others)
            perform(self, files)

    patch.setattr(Truncation, "perform", perform_without_list)


# -- Leading ---------------------------------------------------------------------------------------


def nobody_looks_twice(patch: Patch) -> None:
    """What was pending when its reading began is delivered, or carried forward."""

    def pending_at(self: Schedule, base_offset: int) -> ScheduledEntry | None:
        place = self._place_of(base_offset)
        return None if place is None else entry_of(place)

    patch.setattr(Schedule, "pending_at", pending_at)


def the_clock_is_asked_once(patch: Patch) -> None:
    """When a batch is taken; when its delivery is appended the clock may have gone back."""

    def deliver(
        replica: Replica, led: LedLog, originals: Iterable[ReadOriginal], *, now_ms: int
    ) -> int:
        def delivery(entry: ScheduledEntry, data: bytes) -> bytearray:
            offset, left_out = entry.base_offset, entry.left_out
            return delivery_of(data, original_offset=offset, now_ms=now_ms, left_out=left_out)

        return leading._append(replica, led, originals, delivery)

    patch.setattr(scheduled_delivery, "deliver", deliver)


def a_tick_early(patch: Patch) -> None:
    """What is due within the tick is due."""
    the_clock_is_asked_once(patch)
    original = Schedule.take_due
    patch.setattr(Schedule, "take_due", lambda self, now, limit: original(self, now + 100, limit))


def a_delivery_names_the_first_original(patch: Patch) -> None:
    """And not the copy that it delivers."""

    def first_of(data: bytes, *, original_offset: int, **how: Any) -> bytearray:
        mark = RecordBatch.decode(data).mark
        assert mark is not None
        first = original_offset if mark.first is None else mark.first
        return delivery_of(data, original_offset=first, **how)

    patch.setattr(leading, "delivery_of", first_of)


# -- Cancels and transactions ----------------------------------------------------------------------


def a_cancel_may_come_too_late(patch: Patch) -> None:
    """Nobody asks whether the record was delivered."""
    original = Schedule.check_cancel

    def check(self: Schedule, handle: int) -> CancelCheck:
        found = original(self, handle)
        return CancelCheck(handle) if found.refusal is CancelRefusal.DELIVERED else found

    patch.setattr(Schedule, "check_cancel", check)


def a_copy_forgets_cancels(patch: Patch) -> None:
    """A copy has all records of its original, the cancelled ones as well."""

    def whole(data: bytes, *, replaces: int, first: int, left_out: Any) -> bytearray:
        return copy_of(data, replaces=replaces, first=first)

    patch.setattr(leading, "copy_of", whole)


def a_transaction_is_not_waited_for(patch: Patch) -> None:
    """What a transaction schedules is pending at once."""
    original = ScheduledColumns.append

    def append(self: ScheduledColumns, batch: Any, first_offset: int | None = None) -> int:
        return original(self, batch._replace(producer_id=NO_PRODUCER_ID), first_offset)

    patch.setattr(ScheduledColumns, "append", append)


def an_abort_settles_nothing(patch: Patch) -> None:
    """What a transaction has scheduled is pending, however it ends."""
    original = Schedule.on_marker

    def on_marker(self: Schedule, offset: int, producer_id: int, **_outcome: bool) -> None:
        original(self, offset, producer_id, is_commit=True)

    patch.setattr(Schedule, "on_marker", on_marker)


# -- Retention and readers -------------------------------------------------------------------------


def retention_deletes_what_is_pending(patch: Patch) -> None:
    """It asks what is committed, and whose transaction is over."""
    patch.setattr(
        Replica,
        "_retirable_end",
        lambda self: self.deletable_end if self.leader else self.log.log_start_offset,
    )


def a_follower_deletes_by_its_leader(patch: Patch) -> None:
    """And not by what it knows to be settled itself."""

    async def follow(self: Replica) -> None:
        start = min(self.leader_start_offset, self.high_watermark)
        await self._directory.delete_records(self.log, start)

    patch.setattr(Replica, "follow_log_start", follow)


def copies_need_not_be_committed(patch: Patch) -> None:
    """Settled in the log is settled."""
    original = Schedule.is_settled_before

    def settled(self: Schedule, end_offset: int, _high_watermark: int) -> bool:
        return original(self, end_offset, 1 << 62)

    async def at_once(*_: object) -> None:
        """Nobody waits for the followers."""

    patch.setattr(Schedule, "is_settled_before", settled)
    patch.setattr(scheduled_delivery.ScheduledDelivery, "_committed", at_once)


def what_is_scheduled_is_shown(patch: Patch) -> None:
    """Readers get it like any batch."""
    patch.setattr(Schedule, "hidden_runs", lambda _self, _offset, end, **_: ([], end))


def _by(*kinds: str) -> Case:
    return Case((), kinds, SECONDS)


_CASES = {
    the_schedule_is_not_cut: _by("depose_due"),
    settlements_outlive_a_cut: _by("depose_due", "wrong_clock"),
    lists_outlive_a_cut: _by("depose_due", "kill_due"),
    nobody_looks_twice: _by("cold_disk"),
    the_clock_is_asked_once: _by("clock_back"),
    a_tick_early: _by("cold_disk"),
    a_delivery_names_the_first_original: _by("restart"),
    a_cancel_may_come_too_late: _by("kill_due"),
    a_copy_forgets_cancels: _by("restart"),
    a_transaction_is_not_waited_for: _by("kill_due"),
    an_abort_settles_nothing: _by("kill_due"),
    retention_deletes_what_is_pending: _by("restart"),
    a_follower_deletes_by_its_leader: _by("leader_off_follower", "restart"),
    copies_need_not_be_committed: _by("delete_records", "trimmed"),
    what_is_scheduled_is_shown: _by("kill_due"),
}
BUGS = PlantedBugs(SchedulingWorld, _CASES, seeds_file=SEEDS_FILE)

if __name__ == "__main__":
    planting.main(BUGS, __doc__.splitlines()[0])
