"""Scheduled records of one log against a walk over it: any batches, cuts, trims, restarts.

Settlements may name anything here: what is settled already, what was trimmed, what was never
scheduled. The worlds in tests/simulation/schedule have those that leaders write.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.columns import RowState
from tests.simulation.schedule.log import Batch, Kind
from tests.simulation.schedule.replica import Replica

PRODUCERS = st.sampled_from([NO_PRODUCER_ID, NO_PRODUCER_ID, 1, 2])
DUE = st.integers(0, 9)  # few, so that some are due together
PLACES = st.integers(0, 30)


class ScheduleAgainstWalk(RuleBasedStateMachine):
    """Attributes:
    replica: checks itself, see `Replica.check`.
    """

    @initialize(segment_bytes=st.integers(300, 1_000))
    def begin(self, segment_bytes: int) -> None:
        self.replica = Replica(0, segment_bytes, 0)
        self.replica.lead(0)

    def append(self, kind: Kind, *, count: int = 1, **fields: object) -> None:
        self.replica.append(Batch(kind, 0, 100, record_count=count, **fields))  # type: ignore[arg-type]

    def any_offset(self, place: int) -> int:
        """From a little before the log's beginning on to its end."""
        log = self.replica.log
        return max(0, log.first - 2) + place % (log.end - log.first + 3)

    @rule(count=st.integers(1, 3), due=DUE, producer=PRODUCERS)
    def schedule(self, count: int, due: int, producer: int) -> None:
        self.append(Kind.SCHEDULED, count=count, due_ms=due, producer_id=producer)

    @rule(place=PLACES)
    def deliver(self, place: int) -> None:
        self.append(Kind.DELIVERY, named=(self.any_offset(place),))

    @rule(places=st.lists(PLACES, min_size=1, max_size=4))
    def cancel(self, places: list[int]) -> None:
        self.append(Kind.CANCEL, named=tuple(map(self.any_offset, places)))

    @rule(place=PLACES)
    def carry(self, place: int) -> None:
        """Of one that is pending."""
        entry = self.replica.schedule.pending_at(self.any_offset(place))
        if entry is not None:
            self.append(
                Kind.COPY, count=entry.record_count, due_ms=entry.due_ms,
                named=(entry.base_offset,), first_offset=entry.first_offset,
                left_out=entry.left_out,
            )  # fmt: skip

    @rule(producer=st.integers(1, 2), is_commit=st.booleans())
    def mark(self, producer: int, is_commit: bool) -> None:
        self.append(Kind.COMMIT if is_commit else Kind.ABORT, producer_id=producer)

    @rule(place=PLACES)
    def cut(self, place: int) -> None:
        bases = [*self.replica.log.bases, self.replica.log.end]
        self.replica.cut(bases[max(0, len(bases) - 1 - place)])

    @rule(place=PLACES)
    def trim(self, place: int) -> None:
        self.replica.trim(self.any_offset(place))

    @rule()
    def restart(self) -> None:
        self.replica.restart(self.replica.log.end, 0, None)

    @rule(now=DUE, limit=st.integers(1, 3))
    def take(self, now: int, limit: int) -> None:
        """In order, the first ones of those that wait."""
        schedule = self.replica.schedule
        waiting = sorted(
            (each.due_ms, each.base_offset)
            for each in schedule.entries()
            if each.due_ms <= now and not each.settled_by and each.state is RowState.WAITING
        )
        taken = schedule.take_due(now, limit)
        assert [(each.due_ms, each.base_offset) for each in taken] == waiting[:limit]

    @rule(place=PLACES)
    def give_back(self, place: int) -> None:
        self.replica.schedule.give_back(self.any_offset(place))

    @invariant()
    def knows_what_the_log_says(self) -> None:
        if hasattr(self, "replica"):
            self.replica.check()
            self.replica.check_rebuilt()


TestScheduleAgainstWalk = ScheduleAgainstWalk.TestCase
