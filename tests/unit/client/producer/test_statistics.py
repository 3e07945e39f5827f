"""What a producer counts."""

from __future__ import annotations

from raftmq.client.producer.batch import BatchMetadata
from raftmq.client.producer.statistics import Statistics
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
