"""Idempotence: producer state, duplicate detection by sequence, fencing of named producers. Pure.

Owns what a partition remembers of its producers (Kafka: ProducerStateManager). A leader checks each
request with `Admission` before it appends; `note` records what stands in the log without judging
it, on every replica and in recovery (docs/decisions/0020, 0022). Named producers have a cache of
their own, in which they are remembered for longer.

Invariant: the state follows from the batches that were noted, in their order. Time and limits only
make it forget whole producers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    ProducerFenced,
    TooManyProducers,
    UnknownProducerId,
)
from raftmq.wire.batch.header import is_named
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

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
    """

    epoch: int
    next_sequence: int
    runs: tuple[SequenceRun, ...] = ()
    generation: int = NO_GENERATION
    digest: int = NO_DIGEST
    partition_count: int = NO_COUNT

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
        return ProducerState(header.producer_epoch, following, runs)
    generation, digest, _ = account
    is_same = known is not None and known.generation == generation
    # Only fences carry the count; one of another generation says nothing about this one.
    partition_count = known.partition_count if known is not None and is_same else NO_COUNT
    return ProducerState(
        header.producer_epoch, following, runs, generation, digest, partition_count
    )


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


# -- Producer cache -------------------------------------------------------------------------------
# Producers of one kind (plain or named) in one partition, least recently active first. Pure.
#
# Owns which ones are forgotten: by idle time and by number, always whole producers, the one that
# has been idle for longest first.


class ProducerCacheLimits(NamedTuple):
    """Attributes:
    producers_max: of one partition.
    idle_seconds_max: a producer that has appended nothing for longer is forgotten.
    spare_seconds: when the cache is full, a new producer replaces only one that has been idle for
        so long: one that is active must not be forgotten, or it would lose its idempotence.
    """

    producers_max: int
    idle_seconds_max: float
    spare_seconds: float


class ProducerCache:
    """Attributes:
    known: by producer id, the one that has been idle for longest first.
    last_append: by producer id, seconds since the same moment for all.
    """

    def __init__(self, limits: ProducerCacheLimits) -> None:
        self.limits = limits
        self.known: dict[int, ProducerState] = {}
        self.last_append: dict[int, float] = {}

    def put(self, producer_id: int, producer: ProducerState, time: float) -> None:
        """The producer has appended just now, later than all others."""
        is_new = self.known.pop(producer_id, None) is None  # popped, to be inserted at the end
        # On a leader `Admission` has refused it unless one is idle; on a follower the log decides.
        if is_new and len(self.known) >= self.limits.producers_max:
            self._forget_idlest()
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def restore(self, producer_id: int, producer: ProducerState, time: float) -> None:
        """From a snapshot; to be called in its order, the longest idle first."""
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def forget_idle(self, time: float) -> None:
        """Forget producers that have appended nothing for longer than the limit."""
        oldest = time - self.limits.idle_seconds_max
        while self.known and self.last_append[next(iter(self.known))] < oldest:
            self._forget_idlest()

    def _forget_idlest(self) -> None:
        producer_id = next(iter(self.known))
        del self.known[producer_id], self.last_append[producer_id]

    def forget_all(self) -> None:
        self.known.clear()
        self.last_append.clear()

    def has_room(self, count: int, time: float, *, but: Container[int] = ()) -> bool:
        """Whether `count` new producers fit, if none of `but` is replaced by them."""
        excess = len(self.known) + count - self.limits.producers_max
        if excess <= 0:  # there is room without replacing any
            return True
        others = (producer_id for producer_id in self.known if producer_id not in but)
        last_to_go = next(islice(others, excess - 1, None), None)
        if last_to_go is None:  # fewer can be replaced than are needed
            return False
        return time - self.last_append[last_to_go] >= self.limits.spare_seconds


# -- Producers ------------------------------------------------------------------------------------


DAY_SECONDS = 86_400.0


class ProducerLimits(NamedTuple):
    """Of each cache. 10,000 producers are about 10 MB of memory and 1 MB of snapshot for a
    partition (decision 0020).
    """

    # A plain producer is gone with its process: after a day without an append it will hardly come
    # back. Replaced after five minutes: longer than it retries (delivery timeout: 2 min).
    plain: ProducerCacheLimits = ProducerCacheLimits(
        10_000, idle_seconds_max=DAY_SECONDS, spare_seconds=300.0
    )
    # A process may begin again under its name after a long weekend; 14 days are also the default of
    # retention.ms. A day before it is replaced: others may be jobs that run once a day.
    named: ProducerCacheLimits = ProducerCacheLimits(
        10_000, idle_seconds_max=14 * DAY_SECONDS, spare_seconds=DAY_SECONDS
    )


class Remembered(NamedTuple):
    """A producer, as a snapshot keeps it across restarts of the broker."""

    producer_id: int
    producer: ProducerState
    idle_seconds: float


class ProducersSnapshot(NamedTuple):
    """All producers at one moment: copies, which the disk thread may read."""

    known: dict[int, ProducerState]
    last_append: dict[int, float]
    time: float

    def remembered(self) -> list[Remembered]:
        """Plain producers first; of each kind, the one that has been idle for longest first."""
        return [
            Remembered(producer_id, producer, max(0.0, self.time - self.last_append[producer_id]))
            for producer_id, producer in self.known.items()
        ]


class Producers:
    """The state of all producers of one partition.

    Times are seconds of the caller's monotonic clock. The first time that is passed counts as the
    moment of the restore: idle time adds up only while the broker runs, so that no producer is
    forgotten because of an outage of the broker (decision 0020).
    """

    def __init__(
        self, remembered: Iterable[Remembered] = (), limits: ProducerLimits | None = None
    ) -> None:
        self.limits = limits or ProducerLimits()
        self._beginning: float | None = None  # the first time that was passed
        self.latest = 0.0  # seconds since the beginning
        self._plain, self._named = (
            ProducerCache(self.limits.plain),
            ProducerCache(self.limits.named),
        )
        for producer_id, producer, idle_seconds in remembered:
            self.cache_of(producer_id).restore(producer_id, producer, -idle_seconds)

    def __len__(self) -> int:
        return len(self._plain.known) + len(self._named.known)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.cache_of(producer_id).known

    def get(self, producer_id: int) -> ProducerState | None:
        return self.cache_of(producer_id).known.get(producer_id)

    def cache_of(self, producer_id: int) -> ProducerCache:
        return self._named if is_named(producer_id) else self._plain

    def picture(self) -> ProducersSnapshot:
        """A copy, for another thread."""
        return ProducersSnapshot(
            self._plain.known | self._named.known,
            self._plain.last_append | self._named.last_append,
            self.latest,
        )

    def note(
        self, header: BatchHeader, now: float | None = None, account: Account | None = None
    ) -> None:
        """A batch was appended, or found in the log (`now` is None: the time is unknown).

        Checks nothing: an earlier leader may have known other producers, and what it has appended
        counts. `account`: generation and digest in the batch, if it is of a named producer.
        """
        producer_id = header.producer_id
        cache = self.cache_of(producer_id)
        producer = noted(cache.known.get(producer_id), header, account)
        if producer is not None:  # else the batch has no producer
            cache.put(producer_id, producer, self.latest if now is None else self._time(now))

    def _time(self, now: float) -> float:
        if self._beginning is None:
            self._beginning = now
        # Never back: the order of the caches is the order of these times.
        self.latest = max(self.latest, now - self._beginning)
        return self.latest

    def forget_idle(self, now: float) -> None:
        """Forget producers that have appended nothing for longer than the limit."""
        time = self._time(now)
        self._plain.forget_idle(time)
        self._named.forget_idle(time)

    def forget_all(self) -> None:
        self._plain.forget_all()
        self._named.forget_all()


class Admission:
    """Checks the batches of one request in their order, before any of them is appended: either
    all of them are accepted or nothing is written."""

    def __init__(self, producers: Producers, now: float) -> None:
        self._producers, self._now = producers, now
        self._ahead: dict[int, ProducerState] = {}  # states after the batches accepted so far
        # Unknown producers among them, which are all plain: a batch of an unknown name is refused
        # (`check_named`), and a fence comes alone. So the sum is that of one cache.
        self._new = 0

    def original_offset(self, placed: BatchHeader, account: Account | None = None) -> int | None:
        """The offset of the original if the batch is a duplicate; None: it is the next one, and
        will stand where `placed` has it. `account`: generation and digest, of a named producer.

        Raises:
            InvalidRecord, OutOfOrderSequence, DuplicateSequence, InvalidProducerEpoch,
            UnknownProducerId, ProducerFenced, TooManyProducers: nothing of the request may be
                appended.
        """
        check_numbers(placed)
        producer_id = placed.producer_id
        known = self._find(producer_id)
        if is_named(producer_id):  # they begin with a fence, not with sequence 0
            check_named(known, placed, account)
        original = stands_at(known, placed)
        if original is None:
            if known is None:  # only an unknown producer needs room in the cache
                self._check_room(producer_id)
            self._ahead[producer_id] = after(known, placed, account)
        return original

    def fence(
        self, producer_id: int, generation: int, *, partition_count: int = 0
    ) -> ProducerState:
        """The state of a named producer once it is fenced; see `fenced`.

        Raises:
            ProducerFenced, TooManyProducers: nothing may be appended.
        """
        assert is_named(producer_id), producer_id
        known = self._find(producer_id)
        following = fenced(known, generation, partition_count=partition_count)
        if known is None:  # as above
            self._check_room(producer_id)
        return following

    def _find(self, producer_id: int) -> ProducerState | None:
        # First, so that an answer does not depend on when the last cleaning was.
        self._producers.forget_idle(self._now)
        return self._ahead.get(producer_id) or self._producers.get(producer_id)

    def _check_room(self, producer_id: int) -> None:
        self._new += 1
        cache = self._producers.cache_of(producer_id)
        if not cache.has_room(self._new, self._producers.latest, but=self._ahead):
            what = "producer name" if is_named(producer_id) else "producer"
            raise TooManyProducers(
                f"{what} {producer_id} is new, and the partition knows {cache.limits.producers_max}"
                f" that all have appended within {cache.limits.spare_seconds:g} s: let fewer "
                f"{what}s write it, each for longer, or send without "
                f"{'a name' if is_named(producer_id) else 'idempotence'}"
            )
