"""Planted bugs of scheduled records: what is settled, due and cancelled.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.replication import scheduled_delivery
from raftmq.partition.scheduling.leading import deliver
from raftmq.partition.scheduling.schedule import CancelCheck, CancelRefusal, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jepsen_like.planted.patch import Patch
    from raftmq.partition.replica import Replica
    from raftmq.partition.scheduling.leading import LedLog, ReadOriginal


def followers_settle_nothing(patch: Patch) -> None:
    """Only who has delivered a record knows that it is delivered, and only while it leads."""
    on_delivery = Schedule.on_delivery

    def on_own_delivery(self: Schedule, offset: int, original: int) -> None:
        if self._heads is not None:
            on_delivery(self, offset, original)

    patch.setattr(Schedule, "on_delivery", on_own_delivery)


def due_within_the_second(patch: Patch) -> None:
    """Whoever delivers anything takes along what is due before the second is over."""
    take_due = Schedule.take_due

    def second_of(now_ms: int) -> int:
        return now_ms // 1000 * 1000 + 999

    def deliver_early(
        replica: Replica, led: LedLog, originals: Iterable[ReadOriginal], *, now_ms: int
    ) -> int:
        return deliver(replica, led, originals, now_ms=second_of(now_ms))

    patch.setattr(
        Schedule, "take_due", lambda self, now_ms, limit: take_due(self, second_of(now_ms), limit)
    )
    patch.setattr(scheduled_delivery, "deliver", deliver_early)


def cancels_what_was_delivered(patch: Patch) -> None:
    """Nobody asks whether a cancel comes too late."""
    check_cancel = Schedule.check_cancel

    def check(self: Schedule, handle: int) -> CancelCheck:
        found = check_cancel(self, handle)
        return CancelCheck(handle) if found.refusal is CancelRefusal.DELIVERED else found

    patch.setattr(Schedule, "check_cancel", check)


def handle_cancels_its_batch(patch: Patch) -> None:
    """All records of one batch are cancelled by the handle of one."""
    check_cancels = Schedule.check_cancels

    def check(self: Schedule, handles: Sequence[int]) -> tuple[list[CancelCheck], list[int]]:
        checks, records = check_cancels(self, handles)
        named = set(records)
        for record in records:
            *_, entry = self.entries(0, record + 1)
            named.update(range(entry.base_offset, entry.base_offset + entry.record_count))
        return checks, sorted(named)

    patch.setattr(Schedule, "check_cancels", check)
