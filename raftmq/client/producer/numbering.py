"""The numbers of what a producer sends: by them brokers know what they have already. Pure.

Owns which number a batch gets in its partition: a producer id, an epoch of it, and the sequence of
the first record. Sequences count records. An epoch goes on until something that has left under it
is given up; the next one begins at 0, so that brokers refuse what is still under way of the old.

Invariants: a number that has left belongs to one batch for ever; in an epoch they leave without
holes; what may have been appended never leaves under another number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    UnknownProducerId,
    Unreachable,
)
from raftmq.wire.messages.producers import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.errors import RaftmqError
    from raftmq.model import Compression

SEQUENCE_COUNT = 1 << 31  # after the highest comes 0
# The broker knows less than this side, as acknowledged records were lost or time has passed, or
# it knows another one. Nothing was appended.
NUMBER_REFUSALS = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)


class Number(NamedTuple):
    """As it stands in the header of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class ProducerIds:
    """What one producer is called, in all partitions.

    Attributes:
        is_wanted: somebody has to ask for an id.
        problem: why the last question brought none; None where there was no question.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.problem: RaftmqError | None = None
        self._newest: int | None = None

    def want_first(self) -> None:
        """One will be needed soon."""
        if self._newest is None:
            self.is_wanted = True

    def other_than(self, used: int | None) -> int | None:
        """One that a partition has not used up; None as long as there is none."""
        if self._newest is None or self._newest == used:
            self.is_wanted = True
            return None
        return self._newest

    def on_id(self, producer_id: int) -> None:
        """A broker has given one."""
        self._newest = producer_id
        self.is_wanted, self.problem = False, None


class Numbering:
    """Of one partition, with one request of it on its way at most."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids
        self._producer_id: int | None = None
        self._epoch = self._next_sequence = 0
        self._is_over = False  # this epoch; what may have been appended in it is sent to the end

    @property
    def lacks_id(self) -> bool:
        """Nothing new leaves before there is one."""
        is_used_up = self._is_over and self._epoch == PRODUCER_EPOCH_MAX
        return self._producer_id is None or is_used_up

    def may_begin(self) -> bool:
        """Whether something new may leave now; in the next epoch, if this one is over.

        Only while nothing is on its way, and nothing waits that may have been appended.
        """
        if self.lacks_id:
            producer_id = self._ids.other_than(self._producer_id)
            if producer_id is None:
                return False
            self._producer_id, self._epoch = producer_id, 0
        elif self._is_over:
            self._epoch += 1
        else:
            return True
        self._next_sequence, self._is_over = 0, False
        return True

    def why_not(self) -> RaftmqError:
        """Only where nothing may begin."""
        problem = self._ids.problem
        reason = f": {problem}" if problem is not None else ""
        return Unreachable(f"no broker has given a producer id{reason}")

    def encode(self, batch: ProducerBatch, compression: Compression) -> bytearray:
        """Its bytes, under the number that it has, or the next if that is of another epoch.

        Raises:
            RaftmqError: it cannot be encoded; the number goes to another one.
        """
        if batch.number is not None and self._is_of_epoch(batch.number):
            return batch.encode(compression, batch.number)
        assert self._producer_id is not None, "there is no id yet"
        assert not self._is_over, "something new under numbers that are over"
        number = Number(self._producer_id, self._epoch, self._next_sequence)
        data = batch.encode(compression, number)
        self._next_sequence = (self._next_sequence + len(batch)) % SEQUENCE_COUNT
        return data

    def end_epoch(self) -> None:
        """Something that has left is given up, or its number was refused: nothing new follows it
        in this epoch.
        """
        self._is_over = True

    def _is_of_epoch(self, number: Number) -> bool:
        return (number.producer_id, number.producer_epoch) == (self._producer_id, self._epoch)
