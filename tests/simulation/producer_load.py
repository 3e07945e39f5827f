"""The load of a few idempotent producers on one log: epochs, sequence numbers, drawn by chance.

A producer continues from the log's own state, so the checks must derive it in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from random import Random

    from raftmq.partition.producers import Producers

PRODUCERS = 4
NAMELESS = 0.4
NEW_EPOCH = 0.1


class Number(TypedDict, total=False):
    """What `encode_batch` takes; nothing for a batch without a producer id."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class Numbers:
    """Of the batches of one request."""

    def __init__(self, random: Random, known: Producers) -> None:
        self._random = random
        self._next: dict[int, tuple[int, int]] = {}
        for producer_id in range(PRODUCERS):
            producer = known.get(producer_id)
            self._next[producer_id] = producer[:2] if producer else (0, 0)

    def take(self, record_count: int) -> Number:
        if self._random.random() < NAMELESS:
            return {}
        producer_id = self._random.randrange(PRODUCERS)
        epoch, sequence = self._next[producer_id]
        if self._random.random() < NEW_EPOCH:
            epoch, sequence = epoch + 1, 0
        self._next[producer_id] = epoch, sequence + record_count
        return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
