"""The load of a few idempotent producers on one log: epochs, sequence numbers, drawn by chance;
and of a few transactional ones, as their leader's bytes reach a follower.

A producer continues from the log's own state, so the checks must derive it in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import encode_batch, encode_control_batch

if TYPE_CHECKING:
    from random import Random

    from raftmq.partition.producers import Producers
    from raftmq.partition.storage.log import PartitionLog

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


# -- transactions --------------------------------------------------------------------------------


TRANSACTIONAL_FIRST = 100  # ids from there on send nothing outside of transactions
TRANSACTIONAL = 3
ENDS = 0.4  # probability of a marker where something is open
ABORTS = 0.7


def transactional_batch(
    random: Random, log: PartitionLog, values: list[bytes], now_ms: int
) -> bytes:
    """The next step of some transaction: a batch, or the marker that ends it."""
    producer_id = TRANSACTIONAL_FIRST + random.randrange(TRANSACTIONAL)
    known_open = log.aborted.open_at
    since = known_open.open.get(producer_id) if known_open else None
    known = log.producers.now.get(producer_id)
    if since is not None and random.random() < ENDS:
        kind = ControlType.ABORT if random.random() < ABORTS else ControlType.COMMIT
        return bytes(
            encode_control_batch(
                kind=kind,
                coordinator_epoch=0,
                producer_id=producer_id,
                producer_epoch=since.producer_epoch + 1,
                timestamp=now_ms,
            )
        )
    if since is not None and known is not None:
        epoch, sequence = known[:2]
    else:  # each transaction has an epoch of its own
        epoch, sequence = (known.epoch + 1 if known else 0), 0
    return bytes(
        encode_batch(
            values=values,
            timestamp=now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )
