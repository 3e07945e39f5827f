"""Producers with names: what a fence does, and what must be true of their batches. Pure.

Whoever begins to write under a name fences it first, in each partition, for a generation. Owns the
rules of that; the sequences behind a fence are everybody's (`sequences.py`, docs/decisions/0022).

Invariants:
1. Only one epoch of a name is ever written in; each fence begins another one.
2. Within a generation the sequence goes on across fences: it counts the records of the generation
   that stand in the partition. A higher generation begins at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import InvalidRecord, ProducerFenced, UnknownProducerId
from raftmq.partition.sequences import NO_COUNT, SEQUENCES, Producer, name_of
from raftmq.wire.messages.producers import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.wire.header import BatchHeader
    from raftmq.wire.named import Account

# The next sequence has to fit into the header of a fence, whose numbers end at 2^31-1.
GENERATION_RECORDS_MAX = SEQUENCES - 1


def fenced(known: Producer | None, generation: int, *, partition_count: int = NO_COUNT) -> Producer:
    """What is known once the name is fenced for `generation`.

    1. Nothing was known: everything begins.
    2. A lower generation than the one known: refused.
    3. The same: the sequence goes on, in another epoch.
    4. A higher one: the sequence begins, in another epoch.

    Args:
        partition_count: of the topic, as whoever fences knows it. A generation keeps the one with
            which it began: where there are others now, its records belong elsewhere.

    Raises:
        ProducerFenced: a higher generation has begun.
    """
    if known is None:
        return Producer(0, 0, (), generation, partition_count=partition_count)
    if generation < known.generation:
        raise ProducerFenced(
            f"generation {generation} of this producer name is over, {known.generation} has begun: "
            "leave it to whoever writes that one, or take a generation above "
            f"{known.generation}, under which all records are new"
        )
    # Of the 2^15 epochs before nobody writes any more.
    epoch = (known.epoch + 1) % (PRODUCER_EPOCH_MAX + 1)
    if generation == known.generation:
        count = known.partition_count or partition_count
        return known._replace(epoch=epoch, runs=(), partition_count=count)
    return Producer(epoch, 0, (), generation, partition_count=partition_count)


def check_named(known: Producer | None, header: BatchHeader, account: Account | None) -> None:
    """Whether a batch is its producer's, and says what a named one must say.

    Raises:
        UnknownProducerId: nobody has fenced the name, or that was forgotten.
        ProducerFenced: somebody has fenced it since.
        InvalidRecord: it says nothing of its generation, or of another one; or there are too many.
    """
    if known is None:
        raise UnknownProducerId(
            f"{name_of(header)}: nothing is known of this producer name here (any more), so "
            "whatever is sent again would be taken for new: look what stands here, and send the "
            "rest under a higher generation"
        )
    if header.producer_epoch != known.epoch:
        raise ProducerFenced(
            "another process has begun to write under this producer name, for generation "
            f"{known.generation}: leave the rest to it; or stop it, open the producer again, and "
            "send all of it again: what has arrived is skipped"
        )
    if account is None:
        raise InvalidRecord(
            f"{name_of(header)}: batches of named producers say generation and digest, in their "
            "first two keys; they need record.format=columns"
        )
    if account.generation != known.generation:
        raise InvalidRecord(
            f"{name_of(header)}: it says generation {account.generation}, the epoch is one of "
            f"generation {known.generation}"
        )
    if header.base_sequence + header.record_count > GENERATION_RECORDS_MAX:
        raise InvalidRecord(
            f"{name_of(header)}: a generation has at most {GENERATION_RECORDS_MAX} records in a "
            "partition; begin a higher one"
        )
