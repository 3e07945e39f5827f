"""What a partition remembers of its producers, so that nothing of theirs stands in it twice. Pure.

Owns who is known. A leader asks `Admission` before it appends; `note` takes what stands in the log
as it is, on every replica and in recovery (docs/decisions/0020, 0022). Producers with names stand
on a shelf of their own: they are few, and are remembered for longer.

Invariant: what is known follows from the batches that were noted, in their order. Time and limits
only make it forget whole producers.
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
from raftmq.wire.messages.producers import PRODUCER_EPOCH_MAX

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from raftmq.wire.batch.header import Account, BatchHeader


# -- Sequences ------------------------------------------------------------------------------------
# The numbers of one producer in one partition: what comes next, what stands there already. Pure.
#
# Owns the rules of sequences. A producer numbers its records in each partition, without holes, from
# 0 in each of its epochs; after 2^31-1 comes 0. A name's epochs are begun by fences, and its
# sequence may go on across them (see the fences below); otherwise these rules hold for both.
#
# Invariant: a batch that comes next is fresh, whatever else is remembered: what is told to be a
# duplicate stands in the log (docs/decisions/0020).


SEQUENCES = 1 << 31  # so many numbers there are, from 0 on
RUNS_MAX = 5
RUN_RECORDS_MAX = 1 << 30  # of one run are remembered; more could not be told apart
NO_GENERATION, NO_DIGEST, NO_COUNT = -1, 0, 0


class SequenceRun(NamedTuple):
    """Records of one producer whose sequences and offsets both follow each other."""

    first_sequence: int
    base_offset: int
    record_count: int

    def offset_of(self, sequence: int, count: int) -> int | None:
        """Where `count` records from `sequence` on stand; None if not all of them are here."""
        distance = (sequence - self.first_sequence) % SEQUENCES
        return self.base_offset + distance if distance + count <= self.record_count else None

    def grown(self, count: int) -> SequenceRun:
        total = self.record_count + count
        excess = max(0, total - RUN_RECORDS_MAX)
        first = (self.first_sequence + excess) % SEQUENCES
        return SequenceRun(first, self.base_offset + excess, total - excess)


class ProducerState(NamedTuple):
    """One producer in one partition.

    Attributes:
        runs: the newest comes last; there may be none.
        generation: of a name: the one that it was fenced for last.
        digest: of a name: what it said of its records of this generation.
        partition_count: of a name: how many the topic had when this generation began; 0: not known.
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


def noted(
    known: ProducerState | None, header: BatchHeader, account: Account | None
) -> ProducerState | None:
    """What is known of the batch's producer once it stands in the log; None: it says nothing of
    one. `account`: what it says if it is a name's. A fence says everything.
    """
    if is_numbered(header):
        return after(known, header, account)
    if account is None:
        return None
    return ProducerState(header.producer_epoch, header.base_sequence, (), *account)


def after(
    known: ProducerState | None, header: BatchHeader, account: Account | None = None
) -> ProducerState:
    """What is known once records of the producer stand in the log.

    Where they do not go on with what was known, they are all that is known: numbers of before would
    be taken for those that come.
    """
    following = (header.base_sequence + header.record_count) % SEQUENCES
    runs = _runs_after(known, header)
    if account is None:
        return ProducerState(header.producer_epoch, following, runs)
    generation, digest, _ = account
    is_same = known is not None and known.generation == generation
    partition_count = known.partition_count if known is not None and is_same else NO_COUNT
    return ProducerState(
        header.producer_epoch, following, runs, generation, digest, partition_count
    )


def _runs_after(known: ProducerState | None, header: BatchHeader) -> tuple[SequenceRun, ...]:
    epoch, first, count = header.producer_epoch, header.base_sequence, header.record_count
    if known is None or (known.epoch, known.next_sequence) != (epoch, first):
        return (SequenceRun(first, header.base_offset, count),)
    runs = known.runs
    if runs and runs[-1].base_offset + runs[-1].record_count == header.base_offset:
        return (*runs[:-1], runs[-1].grown(count))
    return (*runs[1 - RUNS_MAX :], SequenceRun(first, header.base_offset, count))


def stands_at(known: ProducerState | None, header: BatchHeader) -> int | None:
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


def _check_beginning(known: ProducerState | None, header: BatchHeader) -> None:
    if header.base_sequence == 0:
        return
    if known is None:
        raise UnknownProducerId(
            f"{name_of(header)}: nothing is known of the producer here (any more); begin a new "
            "epoch, with sequence 0"
        )
    raise OutOfOrderSequence(f"{name_of(header)}: a new epoch begins with sequence 0")


def _misfit(known: ProducerState, header: BatchHeader) -> DuplicateSequence | OutOfOrderSequence:
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
# Producers with names: what a fence does, and what must be true of their batches. Pure.
#
# Whoever begins to write under a name fences it first, in each partition, for a generation. Owns
# the rules of that; the sequences behind a fence are everybody's (see above,
# docs/decisions/0022).
#
# Invariants:
# 1. Only one epoch of a name is ever written in; each fence begins another one.
# 2. Within a generation the sequence goes on across fences: it counts the records of the generation
#    that stand in the partition. A higher generation begins at 0.


# The next sequence has to fit into the header of a fence, whose numbers end at 2^31-1.
GENERATION_RECORDS_MAX = SEQUENCES - 1


def fenced(
    known: ProducerState | None, generation: int, *, partition_count: int = NO_COUNT
) -> ProducerState:
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
        return ProducerState(0, 0, (), generation, partition_count=partition_count)
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
    return ProducerState(epoch, 0, (), generation, partition_count=partition_count)


def check_named(known: ProducerState | None, header: BatchHeader, account: Account | None) -> None:
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


# -- Shelf ----------------------------------------------------------------------------------------
# Producers of one kind in one partition, in the order of their last appends. Pure.
#
# Owns who is forgotten: time and the limit make it forget whole producers, those first that have
# appended nothing for longest.


class ProducerCacheLimits(NamedTuple):
    """Attributes:
    producers_max: of one partition.
    idle_seconds_max: a producer that has appended nothing for longer is forgotten.
    spare_seconds: where there are too many, only one that is idle for so long makes room.
    """

    producers_max: int
    idle_seconds_max: float
    spare_seconds: float


class ProducerCache:
    """Attributes:
    known: whoever is idle for longest comes first.
    last_append: seconds, from the same moment for all.
    """

    def __init__(self, limits: ProducerCacheLimits) -> None:
        self.limits = limits
        self.known: dict[int, ProducerState] = {}
        self.last_append: dict[int, float] = {}

    def put(self, producer_id: int, producer: ProducerState, time: float) -> None:
        """It has appended just now, later than all others."""
        is_new = self.known.pop(producer_id, None) is None
        if is_new and len(self.known) >= self.limits.producers_max:
            self._forget_idlest()
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def restore(self, producer_id: int, producer: ProducerState, time: float) -> None:
        """As it was known in an earlier life; whoever was idle for longest comes first."""
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def forget_idle(self, time: float) -> None:
        """Forget who has appended nothing for longer than the limit."""
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
        """Whether `count` new ones find room, if nobody of `but` makes any."""
        excess = len(self.known) + count - self.limits.producers_max
        if excess <= 0:
            return True
        others = (producer_id for producer_id in self.known if producer_id not in but)
        last_to_go = next(islice(others, excess - 1, None), None)
        if last_to_go is None:
            return False
        return time - self.last_append[last_to_go] >= self.limits.spare_seconds


# -- Producers ------------------------------------------------------------------------------------


DAY_SECONDS = 86_400.0


class ProducerLimits(NamedTuple):
    """A process that begins again under its name may do so after a long weekend, a plain producer
    is gone with its process.
    """

    plain: ProducerCacheLimits = ProducerCacheLimits(
        10_000, idle_seconds_max=DAY_SECONDS, spare_seconds=300.0
    )
    named: ProducerCacheLimits = ProducerCacheLimits(
        10_000, idle_seconds_max=14 * DAY_SECONDS, spare_seconds=DAY_SECONDS
    )


class Remembered(NamedTuple):
    """A producer, as it is kept from one life of a replica to the next."""

    producer_id: int
    producer: ProducerState
    idle_seconds: float


class ProducersSnapshot(NamedTuple):
    """All producers at one moment. Nobody changes these dicts any more."""

    known: dict[int, ProducerState]
    last_append: dict[int, float]
    time: float

    def remembered(self) -> list[Remembered]:
        """Those without names first; of either, those that are idle for longest."""
        return [
            Remembered(producer_id, producer, max(0.0, self.time - self.last_append[producer_id]))
            for producer_id, producer in self.known.items()
        ]


class Producers:
    """All that are known of one partition.

    Times are seconds of the caller's monotonic clock. The first one that is heard of counts as the
    moment at which everything was remembered: idle is only who was so while somebody watched.
    """

    def __init__(
        self, remembered: Iterable[Remembered] = (), limits: ProducerLimits | None = None
    ) -> None:
        self.limits = limits or ProducerLimits()
        self._beginning: float | None = None
        self.latest = 0.0  # seconds since the beginning
        self._plain, self._named = (
            ProducerCache(self.limits.plain),
            ProducerCache(self.limits.named),
        )
        for producer_id, producer, idle_seconds in remembered:
            self.shelf_of(producer_id).restore(producer_id, producer, -idle_seconds)

    def __len__(self) -> int:
        return len(self._plain.known) + len(self._named.known)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.shelf_of(producer_id).known

    def get(self, producer_id: int) -> ProducerState | None:
        return self.shelf_of(producer_id).known.get(producer_id)

    def shelf_of(self, producer_id: int) -> ProducerCache:
        return self._named if is_named(producer_id) else self._plain

    def picture(self) -> ProducersSnapshot:
        """What another thread may look at while this one goes on."""
        return ProducersSnapshot(
            self._plain.known | self._named.known,
            self._plain.last_append | self._named.last_append,
            self.latest,
        )

    def note(
        self, header: BatchHeader, now: float | None = None, account: Account | None = None
    ) -> None:
        """A batch was appended, or found in the log; now None: nobody knows when. `account`: what
        it says if it is a name's.

        An earlier leader may have seen things differently: what it let in counts, odd or not.
        """
        producer_id = header.producer_id
        shelf = self.shelf_of(producer_id)
        producer = noted(shelf.known.get(producer_id), header, account)
        if producer is not None:
            shelf.put(producer_id, producer, self.latest if now is None else self._time(now))

    def _time(self, now: float) -> float:
        if self._beginning is None:
            self._beginning = now
        self.latest = max(self.latest, now - self._beginning)
        return self.latest

    def forget_idle(self, now: float) -> None:
        """Forget who has appended nothing for longer than the limit."""
        time = self._time(now)
        self._plain.forget_idle(time)
        self._named.forget_idle(time)

    def forget_all(self) -> None:
        self._plain.forget_all()
        self._named.forget_all()


class Admission:
    """The batches of one request, looked at one after the other before any of them is appended."""

    def __init__(self, producers: Producers, now: float) -> None:
        self._producers, self._now = producers, now
        self._ahead: dict[int, ProducerState] = {}  # as they will be after what was admitted
        self._new = 0

    def original_offset(self, placed: BatchHeader, account: Account | None = None) -> int | None:
        """Where the records of the batch stand in the log already; None: it comes next, and will
        stand where `placed` says. `account`: what it says if it is a name's.

        Raises:
            InvalidRecord, OutOfOrderSequence, DuplicateSequence, InvalidProducerEpoch,
            UnknownProducerId, ProducerFenced, TooManyProducers: nothing of the request may be
                appended.
        """
        check_numbers(placed)
        producer_id = placed.producer_id
        known = self._find(producer_id)
        if is_named(producer_id):
            check_named(known, placed, account)
        original = stands_at(known, placed)
        if original is None:
            if known is None:
                self._check_room(producer_id)
            self._ahead[producer_id] = after(known, placed, account)
        return original

    def fence(
        self, producer_id: int, generation: int, *, partition_count: int = 0
    ) -> ProducerState:
        """What will be known of a name once it is fenced; see `fenced`.

        Raises:
            ProducerFenced, TooManyProducers: nothing may be appended.
        """
        assert is_named(producer_id), producer_id
        known = self._find(producer_id)
        following = fenced(known, generation, partition_count=partition_count)
        if known is None:
            self._check_room(producer_id)
        return following

    def _find(self, producer_id: int) -> ProducerState | None:
        self._producers.forget_idle(self._now)
        return self._ahead.get(producer_id) or self._producers.get(producer_id)

    def _check_room(self, producer_id: int) -> None:
        self._new += 1
        shelf = self._producers.shelf_of(producer_id)
        if not shelf.has_room(self._new, self._producers.latest, but=self._ahead):
            what = "producer name" if is_named(producer_id) else "producer"
            raise TooManyProducers(
                f"{what} {producer_id} is new, and the partition knows {shelf.limits.producers_max}"
                f" that all have appended within {shelf.limits.spare_seconds:g} s: let fewer "
                f"{what}s write it, each for longer, or send without "
                f"{'a name' if is_named(producer_id) else 'idempotence'}"
            )
