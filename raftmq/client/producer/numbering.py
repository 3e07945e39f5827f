"""Sequence numbers of a producer's batches, by which brokers find duplicates. Pure.

Owns which number a batch gets in its partition: a producer id, a producer epoch, and the sequence
of its first record (decision 0020; Kafka: the sequence part of TransactionManager). Sequences count
records. An epoch goes on until a batch that was sent under it is given up; the next one begins with
sequence 0, so that brokers refuse late requests of the old one.

Invariants: a number that was sent belongs to one batch for ever; within an epoch numbers are sent
without gaps; a batch that may have been appended is never sent under another number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.producer.batch import SEQUENCE_COUNT, Number
from raftmq.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    RaftmqError,
    UnknownProducerId,
    Unreachable,
)
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.model import Compression


# Answers that say "not appended, and not under this number": the broker's state of this producer is
# older (acknowledged records were lost, it was idle for a day) or of another epoch.
NUMBER_REFUSALS = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)


class ProducerIdentity:
    """The producer id of one producer, for all partitions.

    Attributes:
        is_wanted: a new id must be requested.
        newest: the last one that a broker has assigned; None before.
        problem: why the last request brought none; None after a success and before the first.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.problem: RaftmqError | None = None
        self.newest: int | None = None

    def want_first(self) -> None:
        """Request the first id early: a batch will need it soon."""
        if self.newest is None:
            self.is_wanted = True

    def other_than(self, used: int | None) -> int | None:
        """An id other than one whose epochs a partition has used up; None until there is one."""
        # None yet, or this partition has used up all epochs of it (another one may not have).
        if self.newest is None or self.newest == used:
            self.is_wanted = True
            return None
        return self.newest

    def on_id(self, producer_id: int) -> None:
        """A broker has assigned an id."""
        self.newest = producer_id
        self.is_wanted, self.problem = False, None

    def on_no_id(self, problem: RaftmqError) -> None:
        """No broker gave one."""
        self.is_wanted, self.problem = False, problem


class Numbering:
    """Sequence numbers of one partition, which has at most one request in flight (decision
    0017).
    """

    def __init__(self, ids: ProducerIdentity) -> None:
        self._ids = ids
        self._producer_id: int | None = None
        self._epoch = self._next_sequence = 0
        # The epoch ends: only batches that may have been appended are still sent in it
        self._is_over = False

    @property
    def lacks_id(self) -> bool:
        """No new batch can be numbered without a (new) producer id."""
        is_used_up = self._is_over and self._epoch == PRODUCER_EPOCH_MAX
        return self._producer_id is None or is_used_up

    def may_begin(self) -> bool:
        """Whether a new batch may be numbered now; begins the next epoch, if this one has ended.

        Only while nothing is in flight, and no batch waits that may have been appended.
        """
        # The first id, or the next one: all epochs of the last id are used up.
        if self.lacks_id:
            producer_id = self._ids.other_than(self._producer_id)
            if producer_id is None:  # requested now; ask again when it has come
                return False
            self._producer_id, self._epoch = producer_id, 0
        # The client raises the epoch by itself; no broker is asked (decision 0020).
        elif self._is_over:
            self._epoch += 1
        else:
            return True
        self._next_sequence, self._is_over = 0, False
        return True

    def why_not(self) -> RaftmqError:
        """The reason; only where `may_begin` is False."""
        problem = self._ids.problem
        reason = f": {problem}" if problem is not None else ""
        return Unreachable(f"no broker has given a producer id{reason}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray:
        """The batch's bytes, under the number that it has, or a new one if that is of another
        epoch.

        Raises:
            RaftmqError: it cannot be encoded; the number goes to the next batch.
        """
        # Sent before: the same number, so that the broker finds the duplicate.
        if batch.number is not None and self._is_of_epoch(batch.number):
            return batch.encode(compression, batch.number)
        assert self._producer_id is not None, "there is no id yet"
        assert not self._is_over, "something new under numbers that are over"
        number = Number(self._producer_id, self._epoch, self._next_sequence)
        data = batch.encode(compression, number)
        self._next_sequence = (self._next_sequence + len(batch)) % SEQUENCE_COUNT
        return data

    def end_epoch(self) -> None:
        """A batch that was sent is given up, or its number was refused: no new batch follows it in
        this epoch, as the broker would see a gap.
        """
        self._is_over = True

    def _is_of_epoch(self, number: Number) -> bool:
        return (number.producer_id, number.producer_epoch) == (self._producer_id, self._epoch)
