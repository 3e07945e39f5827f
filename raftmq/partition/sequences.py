"""The numbers of one producer in one partition: what comes next, what stands there already. Pure.

Owns the rules of sequences. A producer numbers its records in each partition, without holes, from
0 in each of its epochs; after 2^31-1 comes 0. A name's epochs are begun by fences, and its sequence
may go on across them (`fences.py`); otherwise these rules hold for both.

Invariant: a batch that comes next is fresh, whatever else is remembered: what is told to be a
duplicate stands in the log (docs/decisions/0020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    UnknownProducerId,
)

if TYPE_CHECKING:
    from raftmq.wire.header import BatchHeader
    from raftmq.wire.named import Account

SEQUENCES = 1 << 31  # so many numbers there are, from 0 on
RUNS_MAX = 5
RUN_RECORDS_MAX = 1 << 30  # of one run are remembered; more could not be told apart
NO_GENERATION, NO_DIGEST, NO_COUNT = -1, 0, 0


class Run(NamedTuple):
    """Records of one producer whose sequences and offsets both follow each other."""

    first_sequence: int
    base_offset: int
    record_count: int

    def offset_of(self, sequence: int, count: int) -> int | None:
        """Where `count` records from `sequence` on stand; None if not all of them are here."""
        distance = (sequence - self.first_sequence) % SEQUENCES
        return self.base_offset + distance if distance + count <= self.record_count else None

    def grown(self, count: int) -> Run:
        total = self.record_count + count
        excess = max(0, total - RUN_RECORDS_MAX)
        first = (self.first_sequence + excess) % SEQUENCES
        return Run(first, self.base_offset + excess, total - excess)


class Producer(NamedTuple):
    """One producer in one partition.

    Attributes:
        runs: the newest comes last; there may be none.
        generation: of a name: the one that it was fenced for last.
        digest: of a name: what it said of its records of this generation.
        partition_count: of a name: how many the topic had when this generation began; 0: not known.
    """

    epoch: int
    next_sequence: int
    runs: tuple[Run, ...] = ()
    generation: int = NO_GENERATION
    digest: int = NO_DIGEST
    partition_count: int = NO_COUNT

    def offset_of(self, sequence: int, count: int) -> int | None:
        for run in reversed(self.runs):
            offset = run.offset_of(sequence, count)
            if offset is not None:
                return offset
        return None


def is_numbered(header: BatchHeader) -> bool:
    """Whether its records have numbers of a producer. Those of control batches have none."""
    return (
        header.producer_id >= 0
        and header.producer_epoch >= 0
        and header.base_sequence >= 0
        and not header.is_control
    )


def check_numbers(header: BatchHeader) -> None:
    if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        raise InvalidRecord(
            f"producer id {header.producer_id}, epoch {header.producer_epoch}, base sequence "
            f"{header.base_sequence}: all of them are 0 or more, or the id is -1"
        )


def noted(known: Producer | None, header: BatchHeader, account: Account | None) -> Producer | None:
    """What is known of the batch's producer once it stands in the log; None: it says nothing of
    one. `account`: what it says if it is a name's. A fence says everything.
    """
    if is_numbered(header):
        return after(known, header, account)
    if account is None:
        return None
    return Producer(header.producer_epoch, header.base_sequence, (), *account)


def after(known: Producer | None, header: BatchHeader, account: Account | None = None) -> Producer:
    """What is known once records of the producer stand in the log.

    Where they do not go on with what was known, they are all that is known: numbers of before would
    be taken for those that come.
    """
    following = (header.base_sequence + header.record_count) % SEQUENCES
    runs = _runs_after(known, header)
    if account is None:
        return Producer(header.producer_epoch, following, runs)
    generation, digest, _ = account
    is_same = known is not None and known.generation == generation
    partition_count = known.partition_count if known is not None and is_same else NO_COUNT
    return Producer(header.producer_epoch, following, runs, generation, digest, partition_count)


def _runs_after(known: Producer | None, header: BatchHeader) -> tuple[Run, ...]:
    epoch, first, count = header.producer_epoch, header.base_sequence, header.record_count
    if known is None or (known.epoch, known.next_sequence) != (epoch, first):
        return (Run(first, header.base_offset, count),)
    runs = known.runs
    if runs and runs[-1].base_offset + runs[-1].record_count == header.base_offset:
        return (*runs[:-1], runs[-1].grown(count))
    return (*runs[1 - RUNS_MAX :], Run(first, header.base_offset, count))


def stands_at(known: Producer | None, header: BatchHeader) -> int | None:
    """The offset at which the batch stands already; None if it is the one that comes next.

    1. Of a producer or an epoch that begins: its sequence must begin, too.
    2. Of an epoch that is over.
    3. The one that comes next.
    4. All of it stands in the log, and where is remembered.
    5. All of it stands in the log.
    6. Something else is missing before it, or a part of it stands in the log.
    """
    first, count = header.base_sequence, header.record_count
    if known is None or header.producer_epoch > known.epoch:
        _check_beginning(known, header)
        return None
    if header.producer_epoch < known.epoch:
        raise InvalidProducerEpoch(
            f"{name_of(header)}: the producer is in epoch {known.epoch}, earlier ones are over"
        )
    if first == known.next_sequence:
        return None
    original = known.offset_of(first, count)
    if original is not None:
        return original
    raise _misfit(known, header)


def _check_beginning(known: Producer | None, header: BatchHeader) -> None:
    if header.base_sequence == 0:
        return
    if known is None:
        raise UnknownProducerId(
            f"{name_of(header)}: nothing is known of the producer here (any more); begin a new "
            "epoch, with sequence 0"
        )
    raise OutOfOrderSequence(f"{name_of(header)}: a new epoch begins with sequence 0")


def _misfit(known: Producer, header: BatchHeader) -> DuplicateSequence | OutOfOrderSequence:
    behind = (known.next_sequence - header.base_sequence) % SEQUENCES
    if header.record_count <= behind <= SEQUENCES // 2:
        return DuplicateSequence(
            f"{name_of(header)}: it stands in the log already, at an offset that is not remembered"
        )
    return OutOfOrderSequence(f"{name_of(header)}: {known.next_sequence} comes next")


def name_of(header: BatchHeader) -> str:
    """For messages."""
    return (
        f"{header.record_count} records of producer {header.producer_id}, epoch "
        f"{header.producer_epoch}, from sequence {header.base_sequence} on"
    )
