"""A transactional client and its cluster, with a network between them that does what it likes.

Every request and answer may be lost, doubled, late, or overtake others. The client is the machine
of a producer, driven as its session drives it; records are numbers, sent to two partitions. Checks
that each transaction is told as it was decided, and that what is committed is whole.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.transactions.machine import TransactionMachine
from raftmq.client.transactions.records import TransactionPhase
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    TransactionAborted,
)
from raftmq.model import AbortReason
from raftmq.wire.messages.transactions import EndTxn, EndTxnReply
from tests.unit.client.transactions.coordinator import Coordinator

if TYPE_CHECKING:
    from raftmq.wire.messages.producers import InitProducerId

PARTITIONS = 2
TOPIC = b"t" * 16
ID = "billing-1"


class Record(NamedTuple):
    """As it travels: its transaction, its sequence there and in its partition, and what it is."""

    number: tuple[int, int]
    partition: int
    sequence: int
    value: int


class Partition:
    """A leader that believes the coordinator's decisions, and hears of them at once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.log: list[Record] = []
        self._coordinator = coordinator

    def append(self, record: Record) -> RaftmqError | None:
        expected = sum(one.number == record.number for one in self.log)
        if record.sequence < expected:  # it stands there
            return None
        if record.number in self._coordinator.decided or record.sequence > expected:
            return TransactionAborted("over")
        self.log.append(record)
        return None


class Walk:
    """
    Args:
        commits_despite_failed_send, end_overtakes_sends: bugs that are planted.

    Attributes:
        told: of each transaction: its records, and what the program was told.
    """

    def __init__(
        self,
        seed: int,
        *,
        commits_despite_failed_send: bool = False,
        end_overtakes_sends: bool = False,
    ) -> None:
        self._random, self._now = Random(seed), 1000.0
        self.coordinator = Coordinator()
        self.partitions = [Partition(self.coordinator) for _ in range(PARTITIONS)]
        self._despite, self._overtakes = commits_despite_failed_send, end_overtakes_sends
        self._late: list[Record | EndTxn | InitProducerId] = []
        self._owner = 0
        self._new_producer()
        self._value = 0
        self.told: list[tuple[list[int], bool | None]] = []

    def _new_producer(self) -> None:
        self._owner += 1
        self._machine = TransactionMachine(
            ID, self._owner.to_bytes(16, "big"), timeout_ms=10_000, on_end=lambda: None
        )

    # The network

    def _arrive(self, request: Record | EndTxn | InitProducerId) -> object:
        if isinstance(request, Record):
            return self.partitions[request.partition].append(request)
        if isinstance(request, EndTxn):
            return self.coordinator.end(request)
        return self.coordinator.open(request)

    def _ask(self, request: Record | EndTxn | InitProducerId) -> object:
        """The answer; Disconnected, where it or the request is lost. A copy may arrive later."""
        self._now += self._random.choice((0.0, 0.01, 1.0, 3.0))
        for late in list(self._late):
            if self._random.random() < 0.3:
                self._late.remove(late)
                self._arrive(late)
        if self._random.random() < 0.25:
            self._late.append(request)
        if self._random.random() < 0.2:
            return Disconnected("the request is lost, or late")
        answer = self._arrive(request)
        if isinstance(request, EndTxn) and self._random.random() < 0.1:
            return EndTxnReply(ErrorCode.REQUEST_TIMED_OUT, "the quorum has not answered in time")
        return Disconnected("the answer is lost") if self._random.random() < 0.2 else answer

    # The program

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            if self._random.random() < 0.1:  # another process of the same program
                self._new_producer()
            try:
                self._transact()
            except ProducerFenced:
                self._new_producer()
        for late in self._late:
            self._arrive(late)
        self.check()

    def _transact(self) -> None:
        self._settle()
        machine, values = self._machine, list[int]()
        if machine.phase is TransactionPhase.CLOSED:
            machine.begin_opening()
            for _ in range(50):
                answer = self._ask(machine.open_request(1000))
                if not isinstance(answer, RaftmqError):
                    machine.on_opened(answer)  # type: ignore[arg-type]
                    break
        if machine.phase is not TransactionPhase.READY:
            return
        machine.begin()
        sequences = [0] * PARTITIONS
        for _ in range(self._random.randrange(5)):
            self._send(values, sequences)
            if self._random.random() < 0.05:  # time, or an operator
                self.coordinator.abort(
                    ID, self._random.choice((AbortReason.TIMEOUT, AbortReason.OPERATOR))
                )
        self.told.append((values, self._end()))

    def _send(self, values: list[int], sequences: list[int]) -> None:
        machine, partition = self._machine, self._random.randrange(PARTITIONS)
        if machine.phase is not TransactionPhase.OPEN or machine.number is None:
            return
        self._value += 1
        values.append(self._value)
        record = Record(machine.number, partition, sequences[partition], self._value)
        sequences[partition] += 1
        machine.on_leaving(TOPIC, partition, self._now)
        if self._overtakes and self._random.random() < 0.5:  # nobody waits for its answer
            self._late.append(record)
            return
        for _ in range(4):
            answer = self._ask(record)
            if answer is None:
                return
            if not isinstance(answer, Disconnected):
                break
        sequences[partition] = 1 << 30  # nothing follows what was given up
        if not self._despite:
            machine.end(MessageTooLarge("given up"))

    def _end(self) -> bool | None:
        """What the program is told: committed, aborted, or nothing."""
        machine = self._machine
        if machine.phase is TransactionPhase.OPEN and machine.is_late(self._now):
            machine.end(MessageTooLarge("its time is over"))
        is_commit = machine.phase is TransactionPhase.OPEN and self._random.random() < 0.8
        if machine.is_empty:
            if machine.phase in (TransactionPhase.OPEN, TransactionPhase.MUST_ABORT):
                machine.finish_empty()
            return is_commit
        if is_commit:
            machine.ask_commit((), wait_settled=False, now=self._now)
        else:
            machine.ask_abort()
        return self._ask_end(is_commit=is_commit)

    def _ask_end(self, *, is_commit: bool) -> bool | None:
        machine = self._machine
        error: RaftmqError = Disconnected("no time")
        for _ in range(self._random.randrange(1, 5)):
            answer = self._ask(machine.end_request(1000, self._now))
            if isinstance(answer, RaftmqError):
                machine.on_no_answer(answer)
                error = answer
                continue
            try:
                machine.on_ended(answer)  # type: ignore[arg-type]
            except (TransactionAborted, ProducerFenced):
                return False
            except OutcomeUnknown:
                return None
            except RaftmqError as again:
                error = again
                continue
            return bool(machine.is_committed) if is_commit else False
        if self._random.random() < 0.3:
            machine.interrupt()
            return None
        try:
            machine.give_up(error)
        except TransactionAborted:
            return False
        except RaftmqError:
            return None if is_commit else False

    def _settle(self) -> None:
        """As the session does before the next transaction; what is found out is told, too."""
        machine = self._machine
        for _ in range(20):
            if machine.phase is TransactionPhase.FENCED:
                raise ProducerFenced("another one has it")
            if machine.phase is TransactionPhase.MUST_ABORT:
                machine.ask_abort()
            if not machine.is_asked:
                return
            found = self._ask_end(is_commit=True)
            if found is not None and self.told[-1][1] is None:
                self.told[-1] = self.told[-1][0], found
        self._new_producer()

    # What counts

    def check(self) -> None:
        decided = self.coordinator.decided
        counted = {
            record.value
            for partition in self.partitions
            for record in partition.log
            if decided.get(record.number)
        }
        for values, is_committed in self.told:
            there = counted & {*values}
            assert there in (set(), {*values}), "torn"
            if is_committed is not None:
                assert (there == {*values}) == is_committed or not values, "told otherwise"
        for partition in self.partitions:
            values = [record.value for record in partition.log]
            assert len(values) == len({*values}), "twice"
