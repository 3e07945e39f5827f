"""Sequences and fences: what one producer's state is after a batch, duplicates, gaps. Pure.

Owns `ProducerState` and the rules that lead from one to the next (Kafka: ProducerStateEntry,
ProducerAppendInfo). `noted` follows the log without judging it; `stands_at`, `check_named` and
`fenced` judge what a producer asks for (docs/decisions/0020, 0022, 0038).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducerId,
)
from raftmq.wire.batch.header import TRANSACTIONAL_BIT
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from raftmq.wire.batch.header import Account, BatchHeader


# -- Sequences ------------------------------------------------------------------------------------
# Sequence numbers of one producer in one partition: new batch, duplicate or gap. Pure.
#
# Owns the rules of sequences. A producer numbers its records in each partition, without holes, from
# 0 in each of its epochs; after 2^31-1 comes 0. The epochs of a named producer are begun by fences,
# and its sequence may go on across them (see below); otherwise the same rules hold for it.
#
# Invariant: a batch with the next sequence is always new, and a batch that is answered as a
# duplicate stands in the log (docs/decisions/0020).


SEQUENCES = 1 << 31  # sequences are 0 to 2^31-1: the i32 of the batch header without its sign
# Runs of a producer that are remembered, as many as Kafka remembers batches. One run covers a
# request of hundreds of batches (decision 0020); more would only cost memory.
RUNS_MAX = 5
# Records of one run. Not more than half of the sequences: a number and the same number one round
# later could not be told apart.
RUN_RECORDS_MAX = 1 << 30
# Not a named producer: real generations start at 0; a digest or count of 0 means "unknown".
NO_GENERATION, NO_DIGEST, NO_COUNT = -1, 0, 0
NO_OFFSET = -1


class SequenceRun(NamedTuple):
    """Records of one producer whose sequences and offsets both follow each other."""

    first_sequence: int
    base_offset: int
    record_count: int

    def offset_of(self, sequence: int, count: int) -> int | None:
        """The offset of `count` records from `sequence` on; None if not all are in this run."""
        distance = (sequence - self.first_sequence) % SEQUENCES
        return self.base_offset + distance if distance + count <= self.record_count else None

    def grown(self, count: int) -> SequenceRun:
        """With `count` more records at its end; loses as many at its start beyond the limit."""
        total = self.record_count + count
        excess = max(0, total - RUN_RECORDS_MAX)
        first = (self.first_sequence + excess) % SEQUENCES
        return SequenceRun(first, self.base_offset + excess, total - excess)


class ProducerState(NamedTuple):
    """One producer in one partition.

    Attributes:
        runs: the newest comes last; empty after a fence.

    Of a named producer only:
        generation: the one of its last fence.
        digest: of its records of this generation, by its last batch.
        partition_count: of the topic when this generation began; 0: not known.

    Of a producer of transactions only:
        open_offset: the first offset of its open transaction; -1: nothing is open.
        marker_offset: of the marker that ended the one before; -1: none is remembered.
    """

    epoch: int
    next_sequence: int
    runs: tuple[SequenceRun, ...] = ()
    generation: int = NO_GENERATION
    digest: int = NO_DIGEST
    partition_count: int = NO_COUNT
    open_offset: int = NO_OFFSET
    marker_offset: int = NO_OFFSET

    @property
    def is_transactional(self) -> bool:
        """Whether it has a transaction that is open, or has ended and is not released."""
        return self.open_offset >= 0 or self.marker_offset >= 0

    def offset_of(self, sequence: int, count: int) -> int | None:
        for run in reversed(self.runs):
            offset = run.offset_of(sequence, count)
            if offset is not None:  # newest first: a repeat is mostly of the last request
                return offset
        return None


def is_numbered(header: BatchHeader) -> bool:
    """Whether its records have sequences. Those of control batches (fences) have none."""
    return (
        header.producer_id >= 0
        and header.producer_epoch >= 0
        and header.base_sequence >= 0
        and not header.is_control
    )


def check_numbers(header: BatchHeader) -> None:
    # Half-numbered batches could not be checked for duplicates, nor taken for unnumbered ones.
    if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        raise InvalidRecord(
            f"producer id {header.producer_id}, epoch {header.producer_epoch}, base sequence "
            f"{header.base_sequence}: all of them are 0 or more, or the id is -1"
        )


def noted(
    known: ProducerState | None, header: BatchHeader, account: Account | None
) -> ProducerState | None:
    """The state of the batch's producer once the batch stands in the log; None: it has none.

    `account`: generation and digest in the batch, if it is of a named producer.
    """
    if is_numbered(header):
        return after(known, header, account)
    if header.is_marker:
        # The next transaction has the marker's epoch, and begins with sequence 0: what is late of
        # the one before is refused by its epoch (decision 0038).
        return ProducerState(header.producer_epoch, 0, marker_offset=header.base_offset)
    if account is None:  # a batch without producer id, or a control batch that is no fence
        return None
    # A fence: it carries the whole state, and nothing before it matters (decision 0022).
    return ProducerState(header.producer_epoch, header.base_sequence, (), *account)


def after(
    known: ProducerState | None, header: BatchHeader, account: Account | None = None
) -> ProducerState:
    """The state once records of the producer stand in the log."""
    following = (header.base_sequence + header.record_count) % SEQUENCES
    runs = _runs_after(known, header)
    if account is None:  # not a named producer
        # Without calls, as it is asked twice for each batch, most of which have no transaction.
        is_known_plain = known is None or (known.open_offset < 0 and known.marker_offset < 0)
        if is_known_plain and not header.attributes & TRANSACTIONAL_BIT:
            return ProducerState(header.producer_epoch, following, runs)
        open_offset, marker_offset = _transaction_after(known, header)
        return ProducerState(
            header.producer_epoch,
            following,
            runs,
            open_offset=open_offset,
            marker_offset=marker_offset,
        )
    generation, digest, _ = account
    is_same = known is not None and known.generation == generation
    # Only fences carry the count; one of another generation says nothing about this one.
    partition_count = known.partition_count if known is not None and is_same else NO_COUNT
    return ProducerState(
        header.producer_epoch, following, runs, generation, digest, partition_count
    )


def _transaction_after(known: ProducerState | None, header: BatchHeader) -> tuple[int, int]:
    """What is open after the batch, and the marker before it: their offsets."""
    before, marker_offset = (
        (NO_OFFSET, NO_OFFSET) if known is None else (known.open_offset, known.marker_offset)
    )
    # A later epoch while one is open: the marker between them could not be read.
    is_same = known is not None and known.epoch == header.producer_epoch and before >= 0
    begins = header.is_transactional and not is_same
    return header.base_offset if begins else before, marker_offset


def _runs_after(known: ProducerState | None, header: BatchHeader) -> tuple[SequenceRun, ...]:
    epoch, first, count = header.producer_epoch, header.base_sequence, header.record_count
    if known is None or (known.epoch, known.next_sequence) != (epoch, first):
        # It does not continue what is known (an earlier leader let it in): older runs go, as their
        # sequences would make later batches look like duplicates.
        return (SequenceRun(first, header.base_offset, count),)
    runs = known.runs
    if runs and runs[-1].base_offset + runs[-1].record_count == header.base_offset:
        return (*runs[:-1], runs[-1].grown(count))  # no other producer wrote in between
    return (*runs[1 - RUNS_MAX :], SequenceRun(first, header.base_offset, count))


def stands_at(known: ProducerState | None, header: BatchHeader) -> int | None:
    """The offset at which the batch stands already (a duplicate); None if it is the next one.

    1. A new producer or a new epoch: its sequence must begin at 0.
    2. An epoch that is over: a late request, refused.
    3. The next sequence: append it.
    4. A duplicate whose offset is remembered.
    5. A duplicate whose offset is not remembered any more.
    6. A gap before it, or only some of its records stand in the log.
    """
    first, count = header.base_sequence, header.record_count
    if known is None or header.producer_epoch > known.epoch:  # case 1
        _check_beginning(known, header)
        return None
    if header.producer_epoch < known.epoch:  # case 2
        raise InvalidProducerEpoch(
            f"{name_of(header)}: the producer is in epoch {known.epoch}, earlier ones are over"
        )
    if first == known.next_sequence:  # case 3, before any look at the runs (decision 0020)
        return None
    original = known.offset_of(first, count)
    if original is not None:  # case 4
        return original
    raise _misfit(known, header)


def _check_beginning(known: ProducerState | None, header: BatchHeader) -> None:
    if header.base_sequence == 0:
        return
    if known is None:  # forgotten or never seen: a free start could let a duplicate in (0020)
        raise UnknownProducerId(
            f"{name_of(header)}: nothing is known of the producer here (any more); begin a new "
            "epoch, with sequence 0"
        )
    raise OutOfOrderSequence(f"{name_of(header)}: a new epoch begins with sequence 0")


def _misfit(known: ProducerState, header: BatchHeader) -> DuplicateSequence | OutOfOrderSequence:
    # Sequences wrap: up to half of them back it is the past, otherwise the future.
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


# -- Fences ---------------------------------------------------------------------------------------
# Named producers: what a fence does, and what must be true of their batches. Pure.
#
# A process that begins to write under a producer name first fences it, in each partition, for a
# generation (Kafka: InitProducerId of a transactional id). Owns the rules of that; behind a fence
# the rules of sequences above hold (docs/decisions/0022).
#
# Invariants:
# 1. Only one epoch of a name is open for writing; each fence begins another one.
# 2. Within a generation the sequence goes on across fences: it counts the records of the generation
#    that stand in the partition. A higher generation begins at 0.


# Records. The next sequence has to fit into the i32 of a fence's header, which ends at 2^31-1, and
# must not wrap: within a generation it counts all records.
GENERATION_RECORDS_MAX = SEQUENCES - 1


def fenced(
    known: ProducerState | None, generation: int, *, partition_count: int = NO_COUNT
) -> ProducerState:
    """The state once the name is fenced for `generation`.

    1. Nothing was known: epoch and sequence begin at 0.
    2. A lower generation than the known one: refused.
    3. The same: the sequence goes on, in another epoch.
    4. A higher one: the sequence begins at 0, in another epoch.

    Args:
        partition_count: of the topic, by the metadata of the client that fences. A generation
            keeps the first one: in a topic that has grown since, its keys map to other partitions.

    Raises:
        ProducerFenced: a higher generation has begun.
    """
    if known is None:  # case 1
        return ProducerState(0, 0, (), generation, partition_count=partition_count)
    if generation < known.generation:  # case 2
        raise ProducerFenced(
            f"generation {generation} of this producer name is over, {known.generation} has begun: "
            "leave it to the process that writes that one, or take a generation above "
            f"{known.generation}, under which all records are new"
        )
    # Epochs are an i16 and wrap. A process that was fenced 2^15 fences ago does not live any more.
    epoch = (known.epoch + 1) % (PRODUCER_EPOCH_MAX + 1)
    if generation == known.generation:  # case 3
        count = known.partition_count or partition_count
        return known._replace(epoch=epoch, runs=(), partition_count=count)
    return ProducerState(epoch, 0, (), generation, partition_count=partition_count)


def check_named(known: ProducerState | None, header: BatchHeader, account: Account | None) -> None:
    """Check that a batch of a named producer is of the process that fenced it last.

    Raises:
        UnknownProducerId: the name was never fenced here, or that was forgotten.
        ProducerFenced: another process has fenced it since.
        InvalidRecord: without generation, or with another one than the fence's; or the generation
            would have too many records.
    """
    if known is None:  # forgotten: its sequence is unknown, a repeat could not be detected
        raise UnknownProducerId(
            f"{name_of(header)}: nothing is known of this producer name here (any more), so "
            "records that are sent again would be taken for new: check which records stand here, "
            "and send the rest under a higher generation"
        )
    if header.producer_epoch != known.epoch:  # not `<`: epochs of names wrap
        raise ProducerFenced(
            "another process has begun to write under this producer name, for generation "
            f"{known.generation}: leave the rest to it; or stop it, open the producer again, and "
            "send all of it again: what has arrived is skipped"
        )
    if account is None:  # without them a replica that lacks the fence would not know the generation
        raise InvalidRecord(
            f"{name_of(header)}: batches of named producers say generation and digest, in their "
            "first two keys; they need record.format=columns"
        )
    if account.generation != known.generation:
        raise InvalidRecord(
            f"{name_of(header)}: it says generation {account.generation}, the epoch is one of "
            f"generation {known.generation}"
        )
    # The next fence could not carry the sequence.
    if header.base_sequence + header.record_count > GENERATION_RECORDS_MAX:
        raise InvalidRecord(
            f"{name_of(header)}: a generation has at most {GENERATION_RECORDS_MAX} records in a "
            "partition; begin a higher one"
        )
