"""A cluster that knows numbers, at its worst: copies arrive late, leaders lose what they had.

Checks whatever leaves: a number belongs to one batch for ever, numbers leave without holes, and
what may have been appended keeps its own. What the logs hold in the end, tests look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.client.producer.batch import SEQUENCE_COUNT, BatchMetadata
from raftmq.errors import (
    Disconnected,
    InvalidTimestamp,
    MessageTooLarge,
    NotEnoughReplicas,
    RaftmqError,
)
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from tests.unit.client.producer.sending_model import Model

if TYPE_CHECKING:
    from raftmq.client.producer.batch import Outcome, ProducerBatch
    from raftmq.client.producer.partition_queue import Answered, ProduceRequest, RequestPart
    from raftmq.client.producer.sender import SenderStep


class Sent(NamedTuple):
    """A batch as it left."""

    epoch: tuple[int, int]  # producer id, epoch of it
    sequence: int
    records: tuple[int, ...]


class Numbered(Model):
    """
    Attributes:
        lost: acknowledged with acks=1, and gone with a leader.
    """

    def __init__(self, seed: int, partitions: int = 3, **options: Any) -> None:
        super().__init__(seed, partitions, **options)
        self.lost: set[int] = set()
        self._left: dict[tuple[int, tuple[int, int], int], tuple[int, ...]] = {}
        self._next: dict[int, tuple[tuple[int, int], int]] = {}
        self._over: set[tuple[int, tuple[int, int]]] = set()
        self._in_doubt: dict[int, tuple[tuple[int, int], int]] = {}
        self._late: list[RequestPart] = []
        self._safe = [0] * len(self.logs)  # offsets below which nothing is ever lost

    def give_id(self) -> None:
        """Or there is none just now."""
        if self.random.random() < 0.3:
            self.sending.on_no_id(NotEnoughReplicas("the quorum is busy"))
        else:
            super().give_id()

    # What leaves

    def step(self, *, is_hurried: bool = False) -> SenderStep:
        step = super().step(is_hurried=is_hurried)
        for request in step.requests:
            for part in request.parts:
                for sent in _sent(part):
                    self._check(part.place.partition, sent)
        return step

    def _check(self, partition: int, sent: Sent) -> None:
        name = (sent.epoch, sent.sequence)
        for record in sent.records:
            assert self._in_doubt.get(record, name) == name, "another number, and it may be there"
        known = self._left.setdefault((partition, *name), sent.records)
        assert known == sent.records, "two batches under one number"
        assert (partition, sent.epoch) not in self._over, "an epoch that was over"
        epoch, expected = self._next.get(partition, (sent.epoch, 0))
        if epoch != sent.epoch:
            self._over.add((partition, epoch))
            epoch, expected = sent.epoch, 0
        assert sent.sequence <= expected, "a hole"
        if sent.sequence == expected:
            expected = (expected + len(sent.records)) % SEQUENCE_COUNT
        self._next[partition] = (epoch, expected)

    # What arrives

    def answer(self, request: ProduceRequest, *answers: Answered) -> None:
        for part, found in zip(request.parts, answers, strict=True):
            if isinstance(found, RaftmqError) and not found.definite:
                for sent in _sent(part):
                    self._in_doubt |= dict.fromkeys(sent.records, (sent.epoch, sent.sequence))
                if isinstance(found, Disconnected) and self.random.random() < 0.5:
                    self._late.append(part)
            elif isinstance(found, (MessageTooLarge, InvalidTimestamp)):
                for sent in _sent(part):  # refused for certain: it may leave in pieces
                    self._left.pop((part.place.partition, sent.epoch, sent.sequence))
        super().answer(request, *answers)

    def _on_settled(self, batch: ProducerBatch, outcome: Outcome) -> None:
        super()._on_settled(batch, outcome)
        if self.options.acks == "all" and isinstance(outcome, BatchMetadata):
            safe = self._safe[batch.partition]
            self._safe[batch.partition] = max(safe, outcome.end_offset)

    def tick(self, trouble: float, *, handing_in: bool = True) -> None:
        for part in list(self._late):
            if self.random.random() < 0.2:
                self._late.remove(part)
                self.append(part)
        if self.random.random() < trouble / 8:
            self._fail_over(self.random.randrange(len(self.logs)))
        super().tick(trouble, handing_in=handing_in)

    def _fail_over(self, partition: int) -> None:
        """To somebody who has not all of it."""
        log, headers = self.logs[partition], self.headers[partition]
        ends = [0, *[header.end_offset for header in headers]]
        end = self.random.choice([end for end in ends if end >= self._safe[partition]])
        told = {
            number for number in log[end:] if isinstance(self.outcomes.get(number), BatchMetadata)
        }
        self.lost |= told
        del log[end:]
        headers[:] = [header for header in headers if header.end_offset <= end]
        self.leaders[partition] = 1 + self.leaders[partition] % 3


def _sent(part: RequestPart) -> list[Sent]:
    found = []
    for data in part.data:
        header = read_header(data)
        epoch = (header.producer_id, header.producer_epoch)
        numbers = tuple(int(value) for value in RecordBatch.decode(data).values)  # type: ignore[arg-type]
        found.append(Sent(epoch, header.base_sequence, numbers))
    return found
