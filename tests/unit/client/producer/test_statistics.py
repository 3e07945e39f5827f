"""What a producer counts, and what its errors say."""

from __future__ import annotations

from raftmq.client.producer.batch import BatchMetadata
from raftmq.client.producer.statistics import Statistics, timed_out
from raftmq.errors import DeliveryTimedOut, OutcomeUnknown


def test_what_became_of_records() -> None:
    """Acknowledged, perhaps twice; given up, and of some of these nobody knows."""
    statistics = Statistics()
    statistics.on_settled(BatchMetadata("t", 0, 0, 2), 2)
    statistics.on_settled(BatchMetadata("t", 0, 2, 3, is_repeated=True), 3)
    statistics.on_settled(DeliveryTimedOut("never sent"), 5)
    statistics.on_settled(OutcomeUnknown("no answer"), 7)
    assert (statistics.records, statistics.batches, statistics.repeated_records) == (5, 2, 3)
    assert (statistics.failed_records, statistics.unknown_records) == (12, 7)


def test_what_was_skipped() -> None:
    """Counted for itself, whatever became of the rest of a batch; none of it was sent."""
    statistics = Statistics()
    statistics.on_settled(BatchMetadata("t", 0, -1, 4, is_skipped=True), 0, skipped=4)
    assert (statistics.records, statistics.batches, statistics.skipped_records) == (0, 0, 4)
    statistics.on_settled(BatchMetadata("t", 0, 7, 2), 2, skipped=1)
    statistics.on_settled(DeliveryTimedOut("never sent"), 3, skipped=5)
    assert (statistics.records, statistics.batches, statistics.skipped_records) == (2, 1, 10)
    assert (statistics.failed_records, statistics.unknown_records) == (3, 0)


def test_what_a_shell_shows() -> None:
    """Every count by its name."""
    statistics = Statistics()
    statistics.on_settled(BatchMetadata("t", 0, 0, 2), 2)
    assert repr(statistics).startswith("Statistics(records=2, batches=1, requests=0, ")
    assert all(f"{name}=" in repr(statistics) for name in vars(statistics))


def test_why_something_was_late() -> None:
    """The reason is told, and is the cause; one that is not known is not told as "None"."""
    reason = OutcomeUnknown("no answer")
    assert str(timed_out("late", reason)) == "late: no answer"
    assert timed_out("late", reason).__cause__ is reason
    assert str(timed_out("late", None)) == "late"
