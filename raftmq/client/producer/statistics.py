"""What a producer has done so far. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from raftmq.client.producer.batch import Outcome


class Statistics:
    """Attributes:
    records: that were acknowledged; with acks=0, that were sent.
    batches: of these.
    requests: that were sent.
    failed_records: that were given up.
    unknown_records: of these, for which nobody knows whether they were appended.
    repeated_records: that were acknowledged, and may stand in the log twice: see
        `BatchMetadata.is_repeated`.
    """

    def __init__(self) -> None:
        self.records = self.batches = self.requests = 0
        self.failed_records = self.unknown_records = self.repeated_records = 0

    def on_settled(self, outcome: Outcome, count: int) -> None:
        """One batch with so many records."""
        if isinstance(outcome, RaftmqError):
            self.failed_records += count
            self.unknown_records += 0 if outcome.definite else count
            return
        self.records += count
        self.batches += 1
        if outcome.is_repeated:
            self.repeated_records += count
