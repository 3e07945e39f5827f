"""Bugs that scheduled records could have, to be planted into ours one at a time.

Each takes away one rule of `raftmq.partition.scheduling`, or of the leader and the replicas around
it. What a replica knows is not compared with its log there: each breaks a promise. How many worlds
find one says `python -m tests.simulation.schedule --bug NAME --seeds 300`; where a change of the
code has shifted the worlds, it finds another seed.

One is not here: what is taken is handed out again. Whoever appends a delivery asks whether its
original is still pending, so that it only costs reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.columns import ScheduledColumns, Settlement
from raftmq.partition.scheduling.schedule import CancelCheck, CancelRefusal, Schedule
from tests.simulation.planting import demand_called, planted
from tests.simulation.schedule.replica import InHand, Replica
from tests.simulation.schedule.world import World, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.scheduling.columns import ScheduledEntry
    from tests.simulation.planting import Patch


# -- What is pending -------------------------------------------------------------------------------


def pending_from_memory_after_cut(patch: Patch) -> None:
    """What was settled behind a cut stays settled."""
    patch.setattr(Schedule, "_undo_settlements", lambda *_arguments: None)


def decision_from_memory_after_cut(patch: Patch) -> None:
    """A commit marker that was cut still counts."""
    patch.setattr(Schedule, "_undo_decisions", lambda *_arguments: None)


def copy_and_original_both_pending(patch: Patch) -> None:
    """A copy settles nothing."""
    original = Schedule._settle

    def settle(self: Schedule, offset: int, base_offset: int, kind: Settlement) -> None:
        if kind is not Settlement.CARRIED:
            original(self, offset, base_offset, kind)

    patch.setattr(Schedule, "_settle", settle)


def abort_settles_nothing(patch: Patch) -> None:
    """What a transaction has scheduled is pending, however it ends."""
    original = Schedule.on_marker

    def on_marker(self: Schedule, offset: int, producer_id: int, **_outcome: bool) -> None:
        original(self, offset, producer_id, is_commit=True)

    patch.setattr(Schedule, "on_marker", on_marker)


def commit_is_not_waited_for(patch: Patch) -> None:
    """What a transaction schedules is pending at once."""
    original = ScheduledColumns.append

    def append(self: ScheduledColumns, batch: Any, first_offset: int | None = None) -> int:
        return original(self, batch._replace(producer_id=NO_PRODUCER_ID), first_offset)

    patch.setattr(ScheduledColumns, "append", append)


def unread_part_is_nothing(patch: Patch) -> None:
    """What cannot be read has settled nothing."""
    patch.setattr(Schedule, "on_unread", lambda *_arguments: None)


# -- The leader ------------------------------------------------------------------------------------


def delivery_names_first_original(patch: Patch) -> None:
    """And not the copy that it delivers."""
    patch.setattr(Replica, "name_of", lambda _self, entry: entry.first_offset)


def delivers_without_second_look(patch: Patch) -> None:
    """What was pending when its reading began is delivered, or carried forward."""
    original = Replica.read
    seen: dict[tuple[int, int, Any], ScheduledEntry] = {}

    def read(self: Replica, kind: Any, entry: ScheduledEntry) -> None:
        seen[id(self), entry.base_offset, kind] = entry
        original(self, kind, entry)

    def still(self: Replica, hand: InHand) -> ScheduledEntry:
        return seen[id(self), hand.base_offset, hand.kind]

    patch.setattr(Replica, "read", read)
    patch.setattr(Replica, "still_pending", still)


def keeps_what_it_read_as_leader_before(patch: Patch) -> None:
    """Read in one leadership, appended in another: something else may stand at that offset."""
    patch.setattr(Replica, "resign_hands", lambda self: self.schedule.stop_leading())


def clock_is_asked_once(patch: Patch) -> None:
    """When a batch is taken; when its delivery is appended the clock may have gone back."""
    patch.setattr(Replica, "is_due", lambda *_arguments: True)


def tick_early(patch: Patch) -> None:
    """Due within the tick is due."""
    original = Schedule.take_due
    patch.setattr(Schedule, "take_due", lambda self, now, limit: original(self, now + 100, limit))
    patch.setattr(Replica, "is_due", lambda *_arguments: True)


def handle_cancels_its_batch(patch: Patch) -> None:
    """Two records of one batch are cancelled by one handle."""

    def named_by(self: Replica, check: CancelCheck) -> tuple[int, ...]:
        *_, entry = self.schedule.entries(0, check.offset + 1)
        return tuple(range(entry.base_offset, entry.base_offset + entry.record_count))

    patch.setattr(Replica, "named_by", named_by)


def handle_is_not_followed(patch: Patch) -> None:
    """A cancel names the offset at first, though a copy stands in."""
    original = Schedule.check_cancel

    def check(self: Schedule, handle: int) -> CancelCheck:
        found = original(self, handle)
        return found if found.refusal else CancelCheck(handle)

    patch.setattr(Schedule, "check_cancel", check)


def cancels_what_was_delivered(patch: Patch) -> None:
    """Nobody asks whether a cancel comes too late."""
    original = Schedule.check_cancel

    def check(self: Schedule, handle: int) -> CancelCheck:
        found = original(self, handle)
        return CancelCheck(handle) if found.refusal is CancelRefusal.DELIVERED else found

    patch.setattr(Schedule, "check_cancel", check)


# -- Retention -------------------------------------------------------------------------------------


def copy_forgets_cancels(patch: Patch) -> None:
    """A copy has all records of its original, the cancelled ones as well."""
    patch.setattr(Replica, "kept_out", lambda *_arguments: ())


def deletes_before_copy_is_committed(patch: Patch) -> None:
    """Settled in the log is settled."""
    original = Schedule.is_settled_before

    def settled(self: Schedule, end_offset: int, _high_watermark: int) -> bool:
        return original(self, end_offset, 1 << 62)

    patch.setattr(Schedule, "is_settled_before", settled)


def deletes_by_leaders_high_watermark(patch: Patch) -> None:
    """And not by the replica's own: what it has below may be another leader's."""
    made = World.__init__

    def init(self: World, seed: int, **how: bool) -> None:
        made(self, seed, **how)
        for replica in self.replicas:
            replica.world = self  # type: ignore[attr-defined]

    def high_watermark(self: Replica) -> int:
        return int(self.world.leader.high_watermark)  # type: ignore[attr-defined]

    patch.setattr(World, "__init__", init)
    patch.setattr(Replica, "own_high_watermark", high_watermark)


def undecided_counts_as_settled(patch: Patch) -> None:
    """Retention passes over what an open transaction has scheduled."""

    def is_settled(self: ScheduledColumns, rows: range, high_watermark: int) -> bool:
        pending = [row for row in rows if self.is_pending(row)]
        highest = max(self.settled_at[rows.start : rows.stop], default=-1)
        return not pending and highest < high_watermark

    patch.setattr(ScheduledColumns, "is_settled", is_settled)
    patch.setattr(Schedule, "has_undecided", lambda *_arguments: False)


def keeps_tail_below_leaders_start(patch: Patch) -> None:
    """A follower that agrees with its leader nowhere keeps what lies below the leader's log start,
    though it may be of a leader that was deposed."""
    patch.setattr(World, "without_proof", lambda _self, end: end)


class Case(NamedTuple):
    """A bug, and a world that finds it."""

    plant: Callable[[Patch], None]
    seed: int


BUGS: dict[str, Case] = {
    case.plant.__name__: case
    for case in (
        Case(pending_from_memory_after_cut, 12),
        Case(decision_from_memory_after_cut, 64),
        Case(copy_and_original_both_pending, 1),
        Case(abort_settles_nothing, 0),
        Case(commit_is_not_waited_for, 3),
        Case(unread_part_is_nothing, 7),
        Case(delivery_names_first_original, 15),
        Case(delivers_without_second_look, 15),
        Case(keeps_what_it_read_as_leader_before, 0),
        Case(clock_is_asked_once, 5),
        Case(tick_early, 1),
        Case(handle_cancels_its_batch, 0),
        Case(handle_is_not_followed, 15),
        Case(cancels_what_was_delivered, 2),
        Case(copy_forgets_cancels, 23),
        Case(deletes_before_copy_is_committed, 2),
        Case(deletes_by_leaders_high_watermark, 308),
        Case(undecided_counts_as_settled, 3),
        Case(keeps_tail_below_leaders_start, 148),
    )
}


def is_caught(name: str) -> bool:
    case = BUGS[name]
    with planted(case.plant) as calls:
        found = failure(case.seed, compares=False)
    demand_called(name, calls)
    return bool(found)
