"""What a partition knows of producers, worked out anew from its log each time it is asked.

Owns the rules by which a leader takes a numbered batch, finds that it has it, or refuses it. They
are written down apart from those of brokers, so that one mistake is not made twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducerId,
)
from raftmq.wire.batch.header import is_named, read_header
from raftmq.wire.batch.records import account_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.header import BatchHeader

RUNS_REMEMBERED = 5
WRAP = 1 << 31


class Run(NamedTuple):
    """Batches in a row, in numbers and in offsets."""

    first: int
    count: int
    base_offset: int

    @property
    def next(self) -> int:
        return (self.first + self.count) % WRAP


def place_of(log: Iterable[BatchHeader], new: BatchHeader) -> int | RaftmqError | None:
    """Where `new` stands already; None: nowhere, and it is to be appended; or why not."""
    if new.producer_id < 0:
        return None
    mine = [header for header in log if header.producer_id == new.producer_id]
    if is_named(new.producer_id):
        return _place_of_named(mine, new)
    if not mine:
        return None if not new.base_sequence else UnknownProducerId("never heard of it")
    epoch = mine[-1].producer_epoch
    if new.producer_epoch < epoch:
        return InvalidProducerEpoch(f"epoch {new.producer_epoch}, {epoch} has begun")
    if new.producer_epoch > epoch:
        return None if not new.base_sequence else OutOfOrderSequence("begins with 0")
    runs = _runs([header for header in mine if header.producer_epoch == epoch])
    return _place_among(runs, new, runs[-1].next)


def _place_of_named(mine: list[BatchHeader], new: BatchHeader) -> int | RaftmqError | None:
    """Only what came after the last fence is remembered."""
    if not mine:
        return UnknownProducerId("nobody has fenced it")
    if new.producer_epoch != mine[-1].producer_epoch:
        return ProducerFenced(f"epoch {new.producer_epoch}, {mine[-1].producer_epoch} has begun")
    fence = max(index for index, header in enumerate(mine) if header.is_control)
    runs = _runs(mine[fence + 1 :])
    return _place_among(runs, new, runs[-1].next if runs else mine[fence].base_sequence)


def _place_among(runs: list[Run], new: BatchHeader, expected: int) -> int | RaftmqError | None:
    if new.base_sequence == expected:
        return None
    for number, run in enumerate(reversed(runs)):
        ahead = (new.base_sequence - run.first) % WRAP
        if ahead + new.record_count <= run.count:
            is_old = number >= RUNS_REMEMBERED
            return DuplicateSequence("long ago") if is_old else run.base_offset + ahead
    return OutOfOrderSequence(f"{new.base_sequence}, expected {expected}")


def _runs(headers: list[BatchHeader]) -> list[Run]:
    runs: list[Run] = []
    for header in headers:
        last = runs[-1] if runs else None
        is_next = last is not None and (
            (last.next, last.base_offset + last.count) == (header.base_sequence, header.base_offset)
        )
        if last is not None and is_next:
            runs[-1] = last._replace(count=last.count + header.record_count)
        else:
            runs.append(Run(header.base_sequence, header.record_count, header.base_offset))
    return runs


class NamedState(NamedTuple):
    """What is known of a producer's name."""

    epoch: int
    next_sequence: int
    generation: int
    digest: int
    partition_count: int = 0


def state_of_name(log: Iterable[bytes], producer_id: int) -> NamedState | None:
    """None: nothing stands there of it."""
    state = None
    for data in log:
        header = read_header(data)
        if header.producer_id == producer_id:
            account = account_of(data, 0, header)
            assert account is not None, "a batch of a named producer that says nothing"
            count = 0 if header.is_control else header.record_count
            known = state.partition_count if state and state.generation == account[0] else 0
            partitions = account.partition_count or known
            following = header.base_sequence + count
            state = NamedState(header.producer_epoch, following, *account[:2], partitions)
    return state
