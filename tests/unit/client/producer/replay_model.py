"""Runs of one task that sends the same rows, one after the other and at the same time.

Owns the partitions that they share, and what these say of the producer's name. Each run dies at any
moment, or goes on though nobody needs it any more; its requests arrive when it is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.client.producer.batch import BatchMetadata
from raftmq.client.producer.named_producer import Fence
from raftmq.errors import Disconnected, NotEnoughReplicas, RaftmqError
from raftmq.wire.batch.header import Account, named_producer_id, read_header
from raftmq.wire.batch.records import encode_fence
from tests.unit.client.producer.sending_model import Model, Waiter
from tests.unit.client.sequences import NamedState, state_of_name

if TYPE_CHECKING:
    from raftmq.client.producer.batch import Outcome, ProducerBatch
    from raftmq.client.producer.partition_queue import Answered, RequestPart
    from raftmq.client.producer.sender import SenderStep
    from raftmq.wire.batch.header import BatchHeader

NAME, GENERATION = "etl/3", 17
CONTROL = -1  # what stands in a log in place of a record


class Shared:
    """Attributes:
    logs: by partition, the number of the row at each offset.
    """

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[int]] = [[] for _ in range(partitions)]
        self.headers: list[list[BatchHeader]] = [[] for _ in range(partitions)]
        self.data: list[list[bytes]] = [[] for _ in range(partitions)]

    @property
    def rows(self) -> list[list[int]]:
        return [[number for number in log if number != CONTROL] for log in self.logs]

    def fence(self, partition: int) -> Fence:
        producer_id = named_producer_id(NAME)
        known = state_of_name(self.data[partition], producer_id)
        state = NamedState(0, 0, GENERATION, 0, len(self.logs))
        if known is not None:
            state = known._replace(epoch=known.epoch + 1)
        data = encode_fence(
            Account(*state[2:]),
            producer_id=producer_id,
            producer_epoch=state.epoch,
            next_sequence=state.next_sequence,
            timestamp=0,
        )
        self.headers[partition].append(read_header(data).placed(len(self.logs[partition]), 0))
        self.data[partition].append(bytes(data))
        self.logs[partition].append(CONTROL)
        epoch, next_sequence, _, *known = state
        return Fence(producer_id, epoch, next_sequence, *known)


class Run(Model):
    """
    Attributes:
        trouble: how much goes wrong, from 0 to 1.
        is_needed: somebody waits for it; one that is not begins nothing any more.
    """

    def __init__(self, seed: int, shared: Shared, keys: list[int | None], **options: Any) -> None:
        named = {"name": NAME, "generation": GENERATION}
        super().__init__(seed, partitions=len(shared.logs), **named, **options)
        self.logs, self.headers, self._shared = shared.logs, shared.headers, shared
        self._keys = keys
        self.trouble, self.is_needed = 0.0, True
        self.learn()
        self.topic.waiting.append(Waiter(self.now))

    @property
    def is_done(self) -> bool:
        return len(self.outcomes) == len(self._keys)

    def hand_in(self, key: int | None) -> None:
        """The next row, if one is left."""
        if self.count < len(self._keys) and self.is_needed:
            super().hand_in(self._keys[self.count])

    def step(self, *, is_hurried: bool = False) -> SenderStep:
        step = super().step(is_hurried=is_hurried)
        if step.unfenced_topics and self.is_needed:
            assert self.topic.fences is not None
            missing = self.topic.fences.missing
            answers = {partition: self._fence(partition) for partition in missing}
            self.sending.on_fenced(self.topic, answers)
        return step

    def _fence(self, partition: int) -> Fence | RaftmqError:
        drawn = self.random.random()
        if drawn < self.trouble / 2:
            return NotEnoughReplicas("drawn")
        fence = self._shared.fence(partition)
        return fence if drawn >= self.trouble else Disconnected("drawn")

    def append(self, part: RequestPart) -> Answered:
        known = len(self.headers[part.place.partition])
        answer = super().append(part)
        fresh = len(self.headers[part.place.partition]) - known
        if fresh:
            self._shared.data[part.place.partition] += [bytes(one) for one in part.data[-fresh:]]
        return answer

    def _on_settled(self, batch: ProducerBatch, outcome: Outcome) -> None:
        numbers = self.records[id(batch)]
        self.used_bytes -= batch.byte_count
        log = self.logs[batch.partition]
        for index, number in enumerate(numbers):
            assert number not in self.outcomes, "told twice"
            self.outcomes[number] = outcome
            if index < batch.skipped:
                assert number in log, "skipped, and it is not there"
            elif isinstance(outcome, BatchMetadata):
                assert log[outcome.base_offset + index - batch.skipped] == number
        batch.settle(outcome)
