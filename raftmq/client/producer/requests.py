"""One produce request: batches of several partitions for one leader, and their answers. Pure."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import RaftmqError
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.partition_queue import PartitionQueue
    from raftmq.client.routing.routes import Place

# Of one partition: the offset of its first batch, after which the others follow, or that of each
# batch, where some stood in the log already; or why there is none. -1 with acks=0.
Answered: TypeAlias = int | tuple[int, ...] | RaftmqError


class Part(NamedTuple):
    """What goes to one partition with one request."""

    place: Place
    queue: PartitionQueue
    batches: list[ProducerBatch]
    data: list[bytearray]

    @property
    def length(self) -> int:
        return sum([len(each) for each in self.data])


class ProduceRequest(NamedTuple):
    """For one leader. `deadline`: nobody waits for an answer any longer."""

    leader: int
    deadline: float
    parts: list[Part]


def portions(parts: list[Part], bytes_max: int) -> Iterator[list[Part]]:
    """As many as go into one request."""
    together: list[Part] = []
    size = 0
    for part in parts:
        if together and (size + part.length > bytes_max or len(together) == PARTITIONS_MAX):
            yield together
            together, size = [], 0
        together.append(part)
        size += part.length
    if together:
        yield together


def offsets_of(batches: Sequence[ProducerBatch], answer: int | tuple[int, ...]) -> Sequence[int]:
    """Of the first record of each batch."""
    if isinstance(answer, tuple):
        return answer
    if answer == ABSENT:
        return [ABSENT] * len(batches)
    counts = [batch.unskipped_count for batch in batches]
    *starts, _end = accumulate(counts, initial=answer)
    return starts
