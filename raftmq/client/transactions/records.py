"""What a producer's parts ask of a transaction: whether it takes records, and why not. Pure.

Owns its number, the partitions that its records leave for, its time, and the error with which it
must be aborted. Who begins it, and what ends it, is in the machines that are built on this.

Invariant: once a record was given up, or the time is over, no further one is taken, and the
transaction can only be aborted; the first reason stays.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from raftmq.errors import InvalidTransaction, ProducerFenced, TransactionAborted
from raftmq.model import AbortReason
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.transactions import TRANSACTION_PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError

# A commit is asked so long before the time of the transaction is over: leaders that count it have
# it aborted then, and a commit that arrives with them would be decided by chance.
MARGIN_SECONDS = 1.0
# What `TransactionAborted.reason` says.
FAILED_SEND, GROUP, TIMEOUT = "failed send", "group", "timeout"
REASONS = {
    AbortReason.NONE: "",
    AbortReason.PROGRAM: "program",
    AbortReason.TIMEOUT: TIMEOUT,
    AbortReason.OWNER: "owner",
    AbortReason.OPERATOR: "operator",
}


class TransactionPhase(Enum):
    """What a transactional producer may do."""

    CLOSED = "closed"  # its id is not open, or not any more: it is opened before the next one
    READY = "ready"  # the next transaction may begin
    OPEN = "open"
    MUST_ABORT = "must abort"  # a record was given up, or its time is over
    COMMITTING = "committing"  # asked, and not answered
    ABORTING = "aborting"
    UNKNOWN = "unknown"  # a commit has no answer: it is asked again before anything else
    FENCED = "fenced"  # another producer has the id: nothing more is possible


class TransactionRecords:
    """The records of the present transaction of a producer.

    Attributes:
        on_end: called when it cannot be committed any more.
        error: with which sends fail now, and those that wait; None while nothing is wrong.
        number: producer id and epoch of the present transaction, or the next one.
        latest_at: until when its commit may be asked.
    """

    # Why a broker takes nothing of it any more, beside its time; and what is sent outside of it.
    ENDED_BY = "or an operator or another producer has ended it"
    OUTSIDE = (
        "sent outside of a transaction, and not taken; send within "
        "`async with producer.transaction() as tx:`"
    )

    def __init__(self, transaction_id: str, timeout_ms: int, on_end: Callable[[], None]) -> None:
        self.transaction_id, self._timeout_ms, self.on_end = transaction_id, timeout_ms, on_end
        self.phase = TransactionPhase.CLOSED
        self.error: RaftmqError | None = None
        self.number: tuple[int, int] | None = None
        self.latest_at = math.inf
        self._partitions: dict[TopicPartition, None] = {}

    def __str__(self) -> str:
        return f"transaction {self.transaction_id!r}"

    @property
    def takes_records(self) -> bool:
        return self.phase is TransactionPhase.OPEN

    @property
    def topic_ids(self) -> set[bytes]:
        """Where something has left for."""
        return {place.topic_id for place in self._partitions}

    @property
    def timeout_seconds(self) -> float:
        return self._timeout_ms / 1000

    # -- its time --------------------------------------------------------------------------

    def is_late(self, now: float) -> bool:
        """Whether it is too late to ask for a commit."""
        return now >= self.latest_at

    def on_time(self, now: float) -> float:
        """Where it is too late for a commit, and none was asked, it must be aborted: the program
        learns it with what it sends next, and not only after more work in vain.

        Returns:
            When this is to be called again, at the latest.
        """
        if self.phase is not TransactionPhase.OPEN:
            return math.inf
        if not self.is_late(now):
            return self.latest_at
        self.end_with(self.timed_out())
        return math.inf

    def timed_out(self) -> TransactionAborted:
        return transaction_aborted(
            f"{self}: its time of {self.timeout_seconds:g} s is over before it was committed; "
            "commit more often, or take a longer transaction_timeout_ms",
            TIMEOUT,
        )

    # -- its records -----------------------------------------------------------------------

    def on_leaving(self, topic_id: bytes, partition: int, now: float) -> None:
        """A batch leaves for a partition: the commit has to name that, whatever becomes of it."""
        if not self._partitions:
            # Of a short time a quarter, or nothing would be left to commit in.
            margin = min(MARGIN_SECONDS, self.timeout_seconds / 4)
            self.latest_at = now + self.timeout_seconds - margin
        place = TopicPartition(topic_id, partition)
        if place in self._partitions:  # the usual case
            return
        self._partitions[place] = None
        if len(self._partitions) > TRANSACTION_PARTITIONS_MAX:
            self.end(
                InvalidTransaction(
                    f"{self}: records for more than {TRANSACTION_PARTITIONS_MAX} partitions: "
                    "commit more often, or send to fewer topics"
                )
            )

    def told(self, error: RaftmqError) -> RaftmqError:
        """A broker's error of a batch; it does not know why the transaction was aborted."""
        if not isinstance(error, TransactionAborted):
            return error
        told = transaction_aborted(
            f"{self} was aborted: its time of {self.timeout_seconds:g} s is over, {self.ENDED_BY}",
            "",
        )
        told.__cause__ = error
        return told

    # -- what is wrong ---------------------------------------------------------------------

    def end(self, error: RaftmqError) -> None:
        """A record was given up: nothing of the transaction may count. The first reason stays."""
        if self.phase is TransactionPhase.OPEN:
            self.phase, self.error = TransactionPhase.MUST_ABORT, self.aborted(error)
            self.on_end()

    def end_with(self, aborted: TransactionAborted) -> None:
        """Another reason than a record that was given up."""
        assert self.phase is TransactionPhase.OPEN, "it is not open"
        self.phase, self.error = TransactionPhase.MUST_ABORT, aborted
        self.on_end()

    def aborted(self, error: RaftmqError) -> RaftmqError:
        """The error of a record that was given up: nothing of its transaction counts, so it is
        definite, whatever became of the record.
        """
        if isinstance(error, (TransactionAborted, ProducerFenced)):
            return error
        told = transaction_aborted(
            f"{self} is aborted, as a record was given up: {error}", FAILED_SEND
        )
        told.__cause__ = error
        return told


def transaction_aborted(message: str, reason: str) -> TransactionAborted:
    error = TransactionAborted(message)
    error.reason = reason
    return error
