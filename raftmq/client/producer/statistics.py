"""Counters of a producer, its failures that were not reported yet, and the texts of errors. Pure.

Invariant: a failed record is reported once: by an await, by `on_delivery`, or by `flush` and the
end of the producer's block, which take it from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import DeliveryTimedOut, RaftmqError, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.producer.batch import Outcome


class Statistics:
    """What a producer has done so far. All are counts since it was opened.

    Attributes:
        records: acknowledged records; with acks=0, sent records.
        batches: that these were in.
        skipped_records: that the log has since an earlier run of a named producer; not in
            `records`.
        requests: that were sent.
        failed_records: that were given up.
        unknown_records: of these, which may have been appended.
        repeated_records: acknowledged, but perhaps in the log twice: see
            `BatchMetadata.is_repeated`. 0 with idempotence.
    """

    def __init__(self) -> None:
        self.records = self.batches = self.requests = 0
        self.failed_records = self.unknown_records = self.repeated_records = 0
        self.skipped_records = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={count}" for name, count in vars(self).items())
        return f"Statistics({counts})"

    def on_settled(self, outcome: Outcome, count: int, *, skipped: int = 0) -> None:
        """One batch has an outcome, with `count` records beside those that were skipped."""
        self.skipped_records += skipped
        if not count:  # every record was skipped
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
# Failures that no await or callback has reported: `flush` and the end of the block raise the first,
# as silence would look like success. Pure.


# Bounds memory when every record fails; the first failures are kept, as they name the cause
REMEMBERED_MAX = 1000


class _Failure(NamedTuple):
    error: RaftmqError
    unclaimed: Callable[[], int]  # number of records whose failure the program has not learnt


class Failures:
    """Of one producer, since the last `raise_first`."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def add(self, error: RaftmqError, unclaimed: Callable[[], int]) -> None:
        self._failures.append(_Failure(error, unclaimed))
        # Most are claimed by now: callers that await them do so later. Sort out only now and then.
        if len(self._failures) >= 2 * REMEMBERED_MAX:
            unknown = [failure for failure in self._failures if failure.unclaimed()]
            self._failures = unknown[:REMEMBERED_MAX]

    def count(self) -> int:
        """Number of records."""
        return sum([failure.unclaimed() for failure in self._failures])

    def forget(self) -> None:
        """They are reported elsewhere."""
        self._failures = []

    def raise_first(self) -> None:
        """Forget all; raise the first one that was not reported, if there is one."""
        failures, self._failures = self._failures, []
        found = [(failure.error, failure.unclaimed()) for failure in failures]
        unknown = [(error, count) for error, count in found if count]
        if unknown:
            error = unknown[0][0].copied()
            total = sum([count for _, count in unknown])
            # Not "not delivered": the outcome may be unknown; and a blocking send that timed out
            # has raised something, too.
            records = "record" if total == 1 else "records"
            error.add_note(f"{total} {records} or more ended so, and no other call has reported it")
            raise error


# -- Texts ----------------------------------------------------------------------------------------
# What errors of batches say: where, and why they were given up.


REPLICAS_HINT = (
    ": most likely it waits for replicas, as brokers are down; `raftmq cluster health` names them"
)


def located(error: RaftmqError, topic: str, partition: int | None = None) -> RaftmqError:
    """Add topic and partition, unless it has them: the error that ended a named producer keeps
    those of the partition where it happened.
    """
    return error.at(topic, partition) if error.topic is None else error.copied()


def timed_out(what: str, reason: RaftmqError | None) -> DeliveryTimedOut:
    """`reason`: why it took so long; None: not known."""
    error = DeliveryTimedOut(f"{what}: {reason}" if reason else what)
    error.__cause__ = reason
    return error


def hinted(reason: RaftmqError | None, *, acks: int | str) -> RaftmqError | None:
    """With the likely cause of silence: a leader that lives answers once its replicas have it, and
    clients do not know which of these are in sync.
    """
    if not isinstance(reason, RequestTimedOut) or acks in (0, 1):
        return reason
    return RequestTimedOut(f"{reason}{REPLICAS_HINT}")
