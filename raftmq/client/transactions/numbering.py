"""Sequence numbers of one partition in transactions; in place of a producer's `Numbering`. Pure.

A transaction is one epoch of the producer id for all partitions, and begins in each with sequence
0. No epoch is raised here: each decision names the next one.

Invariants: a number that has left belongs to its transaction for ever; nothing new gets a number
while no transaction is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.producer.batch import SEQUENCE_COUNT, Number
from raftmq.client.transactions.records import TransactionPhase
from raftmq.errors import Unreachable

if TYPE_CHECKING:
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.transactions.records import TransactionRecords
    from raftmq.errors import RaftmqError
    from raftmq.model import Compression


class TransactionNumbering:
    """Of one partition, which has at most one request in flight (decision 0017)."""

    def __init__(self, machine: TransactionRecords) -> None:
        self._machine = machine
        self._of: tuple[int, int] | None = None  # whose sequences these are
        self._next_sequence = 0

    @property
    def lacks_id(self) -> bool:
        """Never while records are taken: the id is opened before."""
        return False

    def may_begin(self) -> bool:
        """Whether a new batch may be numbered now."""
        return self._machine.phase is TransactionPhase.OPEN

    def why_not(self) -> RaftmqError:
        """The reason; only where `may_begin` is False."""
        return Unreachable(f"{self._machine} is {self._machine.phase.value}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray:
        """The batch's bytes, under the number that it has, or the next one.

        Raises:
            RaftmqError: it cannot be encoded; nothing of the transaction may be committed then.
        """
        if batch.number is not None:  # sent before, or a piece of a batch that was
            return batch.encode(compression, batch.number, is_transactional=True)
        assert self._machine.number is not None, "a transaction without a number"
        if self._of != self._machine.number:  # the first batch of a transaction
            self._of, self._next_sequence = self._machine.number, 0
        number = Number(*self._of, self._next_sequence)
        data = batch.encode(compression, number, is_transactional=True)
        self._next_sequence = (self._next_sequence + len(batch)) % SEQUENCE_COUNT
        return data

    def end_epoch(self) -> None:
        """Does nothing: the batch that was given up has ended the transaction."""
