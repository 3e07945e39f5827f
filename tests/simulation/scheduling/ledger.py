"""What clients of scheduled records sent, cancelled and were told; and the promises that follow.

Each value is sent once. An acknowledged one is delivered once in the end; one whose cancel was
acknowledged, or whose transaction was aborted, never; any other at most once. Plain records stand
where it was said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from tests.simulation.brokers.ledger import Outcome
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.scheduling.committed_log import CommittedLog


class Cancel(Enum):
    """What is known of the cancel of one record."""

    NONE = auto()
    UNKNOWN = auto()  # it was tried
    DONE = auto()  # acknowledged


class TransactionFate(Enum):
    UNKNOWN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(eq=False)
class Transaction:
    """Attributes:
    sent: what it has, with what became of the sending.
    """

    name: str
    fate: TransactionFate = TransactionFate.UNKNOWN
    sent: list[SentBatch] = field(default_factory=list)


@dataclass(eq=False)
class SentBatch:
    """Attributes:
    due_ms: None: it is not scheduled.
    cancels: of each record.
    """

    spot: Spot
    values: tuple[bytes, ...]
    due_ms: int | None
    transaction: Transaction | None = None
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1
    cancels: list[Cancel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cancels = [Cancel.NONE] * len(self.values)
        if self.transaction is not None:
            self.transaction.sent.append(self)

    def __str__(self) -> str:
        what = "" if self.due_ms is None else f" due {self.due_ms}"
        return f"{self.spot} {self.values[0][:20]!r}{what} {self.outcome.name} {self.base_offset}"


class SchedulingLedger:
    """Attributes:
    sent: all batches, in order.
    answers: to cancels, by the reason of a refusal; how often old readers were told to upgrade.
    """

    def __init__(self) -> None:
        self.sent: list[SentBatch] = []
        self.transactions: list[Transaction] = []
        self.answers: Counter[str] = Counter()
        self.read = 0

    def on_send(self, sent: SentBatch) -> SentBatch:
        self.sent.append(sent)
        return sent

    def count(self, outcome: Outcome, *, is_scheduled: bool) -> int:
        return sum(
            sent.outcome is outcome and (sent.due_ms is not None) is is_scheduled
            for sent in self.sent
        )

    # In the end

    def judge(self, logs: Mapping[Spot, CommittedLog]) -> None:
        """All is well, and everything was due."""
        for spot, log in logs.items():
            left = [seen.base_offset for seen in log.unsettled()]
            demand(not left, f"{spot}: pending still are {left[:5]}")
            twice = {value: at for value, at in log.delivered.items() if len(at) > 1}
            demand(not twice, f"{spot}: delivered twice: {twice}")
        for sent in self.sent:
            log = logs.get(sent.spot)
            for delta, value in enumerate(sent.values):
                if log is not None and sent.due_ms is not None:
                    self._judge_scheduled(sent, delta, value, len(log.delivered.get(value, ())))
                elif log is not None and sent.transaction is None:
                    self._judge_plain(sent, delta, value, log)
        for transaction in self.transactions:
            _judge_whole(transaction, logs)

    @staticmethod
    def _judge_scheduled(sent: SentBatch, delta: int, value: bytes, count: int) -> None:
        cancel, transaction = sent.cancels[delta], sent.transaction
        fate = TransactionFate.COMMITTED if transaction is None else transaction.fate
        told = f"{sent}, cancel {cancel.name}, {fate.name}: {value[:20]!r} was delivered {count}"
        is_never = sent.outcome is Outcome.FAILED or cancel is Cancel.DONE
        is_never |= fate is TransactionFate.ABORTED
        demand(not (is_never and count), f"{told} times")
        is_certain = sent.outcome is Outcome.OK and cancel is Cancel.NONE
        is_certain &= fate is TransactionFate.COMMITTED
        demand(count == 1 or not is_certain, f"{told} times")

    @staticmethod
    def _judge_plain(sent: SentBatch, delta: int, value: bytes, log: CommittedLog) -> None:
        if sent.outcome is Outcome.OK:
            found = log.visible.get(sent.base_offset + delta)
            demand(found is not None and found.value == value, f"{sent}: there is {found}")
        elif sent.outcome is Outcome.FAILED:
            where = [one.offset for one in log.visible.values() if one.value == value]
            demand(not where, f"{sent} has failed: it stands at {where}")


def _judge_whole(transaction: Transaction, logs: Mapping[Spot, CommittedLog]) -> None:
    """All that was acknowledged, or nothing; but for what is cancelled."""
    there = {
        value: bool(logs[sent.spot].delivered.get(value))
        if sent.due_ms is not None
        else any(one.value == value for one in logs[sent.spot].visible.values())
        for sent in transaction.sent
        if sent.outcome is Outcome.OK and sent.spot in logs
        for value, cancel in zip(sent.values, sent.cancels, strict=True)
        if cancel is Cancel.NONE
    }
    told = f"{transaction.name}, {transaction.fate.name}: {there}"
    demand(len(set(there.values())) <= 1, told)
    if transaction.fate is not TransactionFate.UNKNOWN:
        is_committed = transaction.fate is TransactionFate.COMMITTED
        demand(all(is_there == is_committed for is_there in there.values()), told)
