"""What a producer has done so far. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable

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


# -- Failures -------------------------------------------------------------------------------------
# Failures about which nobody has been told yet: silence would look like success. Pure.


REMEMBERED_MAX = 1000  # that nobody knows; of more than these the first ones are told


class _Failure(NamedTuple):
    error: RaftmqError
    unclaimed: Callable[[], int]  # records for which nobody has asked, or has been told


class Failures:
    """Of one producer, since somebody has looked last."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def add(self, error: RaftmqError, unclaimed: Callable[[], int]) -> None:
        self._failures.append(_Failure(error, unclaimed))
        if len(self._failures) >= 2 * REMEMBERED_MAX:  # of most of them somebody knows, perhaps
            unknown = [failure for failure in self._failures if failure.unclaimed()]
            self._failures = unknown[:REMEMBERED_MAX]

    def raise_first(self) -> None:
        """Forget all, and raise the first one that is still unknown, if there is one."""
        failures, self._failures = self._failures, []
        found = [(failure.error, failure.unclaimed()) for failure in failures]
        unknown = [(error, count) for error, count in found if count]
        if unknown:
            error = unknown[0][0].copied()
            total = sum([count for _, count in unknown])
            error.add_note(f"{total} records or more were not delivered, and nobody was told")
            raise error
