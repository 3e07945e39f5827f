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
    skipped_records: that stand there since an earlier run of a named producer; beside `records`.
    requests: that were sent.
    failed_records: that were given up.
    unknown_records: of these, for which nobody knows whether they were appended.
    repeated_records: that were acknowledged, and may stand in the log twice: see
        `BatchMetadata.is_repeated`. None with idempotence.
    """

    def __init__(self) -> None:
        self.records = self.batches = self.requests = 0
        self.failed_records = self.unknown_records = self.repeated_records = 0
        self.skipped_records = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={count}" for name, count in vars(self).items())
        return f"Statistics({counts})"

    def on_settled(self, outcome: Outcome, count: int, *, skipped: int = 0) -> None:
        """One batch with so many records, without those that were skipped."""
        self.skipped_records += skipped
        if not count:
            return
        if isinstance(outcome, RaftmqError):
            self.failed_records += count
            self.unknown_records += 0 if outcome.definite else count
            return
        self.records += count
        self.batches += 1
        if outcome.is_repeated:
            self.repeated_records += count
