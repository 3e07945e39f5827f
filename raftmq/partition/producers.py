"""Producers of one partition: what is remembered of them, and who is forgotten. Pure.

Owns what a partition remembers of its producers (Kafka: ProducerStateManager). `note` records what
stands in the log without judging it, on every replica and in recovery (docs/decisions/0020, 0022).
Named producers have a cache of their own, in which they are remembered for longer; those with a
transaction are kept by `transactions`, out of reach of all limits.

Invariant: the state follows from the batches that were noted, in their order. Time and limits only
make it forget whole producers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from raftmq.partition.sequences import NO_OFFSET, noted
from raftmq.partition.transactions import ALL_READ, NOTED_LONG_AGO, Transactions
from raftmq.wire.batch.header import is_named

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.transactions import EndedTransaction, NotedMarker, OutcomeOf, UnreadPart
    from raftmq.wire.batch.header import Account, BatchHeader


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

    def forget(self, producer_id: int) -> None:
        """It is remembered elsewhere from now on."""
        if self.known.pop(producer_id, None) is not None:
            del self.last_append[producer_id]

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


class SavedProducers(NamedTuple):
    """All that is remembered; plain producers first, and of each kind the one that has been idle
    for longest; those with a transaction come last. `markers`, `unread`: see `Transactions`.
    `event_segments`: base offsets of the segments with events of the schedule.
    """

    remembered: list[Remembered]
    markers: Sequence[NotedMarker] = ()
    unread: UnreadPart = ALL_READ
    event_segments: tuple[int, ...] = ()

    def restored(self, limits: ProducerLimits | None = None) -> Producers:
        transactions = Transactions(self.markers, self.unread)
        return Producers(self.remembered, limits, transactions)


class ProducersSnapshot(NamedTuple):
    """All producers at one moment: copies, which the disk thread may read."""

    known: dict[int, ProducerState]
    last_append: dict[int, float]
    time: float
    markers: Sequence[NotedMarker] = ()
    unread: UnreadPart = ALL_READ
    event_segments: tuple[int, ...] = ()

    def saved(self) -> SavedProducers:
        time, last_append = self.time, self.last_append
        remembered = [
            Remembered(producer_id, producer, max(0.0, time - last_append.get(producer_id, time)))
            for producer_id, producer in self.known.items()
        ]
        return SavedProducers(remembered, self.markers, self.unread, self.event_segments)


class Producers:
    """The state of all producers of one partition.

    Times are seconds of the caller's monotonic clock. The first time that is passed counts as the
    moment of the restore: idle time adds up only while the broker runs, so that no producer is
    forgotten because of an outage of the broker (decision 0020).
    """

    def __init__(
        self,
        remembered: Iterable[Remembered] = (),
        limits: ProducerLimits | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        self.limits = limits or ProducerLimits()
        self._beginning: float | None = None  # the first time that was passed
        self.latest = 0.0  # seconds since the beginning
        self._plain, self._named = (
            ProducerCache(self.limits.plain),
            ProducerCache(self.limits.named),
        )
        self.transactions = transactions or Transactions()
        in_transactions: list[tuple[int, ProducerState]] = []
        for producer_id, producer, idle_seconds in remembered:
            if producer.is_transactional:
                in_transactions.append((producer_id, producer))
            else:
                self.cache_of(producer_id).restore(producer_id, producer, -idle_seconds)
        self.transactions.restore(in_transactions)

    def __len__(self) -> int:
        return len(self._plain.known) + len(self._named.known) + len(self.transactions.known)

    def __contains__(self, producer_id: int) -> bool:
        return self.get(producer_id) is not None

    def get(self, producer_id: int) -> ProducerState | None:
        known = self.cache_of(producer_id).known.get(producer_id)
        return self.transactions.known.get(producer_id) if known is None else known

    def cache_of(self, producer_id: int) -> ProducerCache:
        return self._named if is_named(producer_id) else self._plain

    def picture(self) -> ProducersSnapshot:
        """A copy, for another thread."""
        return ProducersSnapshot(
            self._plain.known | self._named.known | self.transactions.known,
            self._plain.last_append | self._named.last_append,
            self.latest,
            tuple(self.transactions.markers),
            self.transactions.unread,
        )

    def note(
        self, header: BatchHeader, now: float | None = None, account: Account | None = None
    ) -> EndedTransaction | None:
        """A batch was appended, or found in the log (`now` is None: the time is unknown). Returns
        the transaction that it has ended, if it is a marker.

        Checks nothing: an earlier leader may have known other producers, and what it has appended
        counts. `account`: generation and digest in the batch, if it is of a named producer.
        """
        producer_id = header.producer_id
        cache = self.cache_of(producer_id)
        known = cache.known.get(producer_id)
        if known is None:  # new, or it has a transaction
            known = self.transactions.known.get(producer_id)
        producer = noted(known, header, account)
        if producer is None:  # the batch has no producer
            return None
        time = self.latest if now is None else self._time(now)
        if producer.is_transactional:
            cache.forget(producer_id)
            noted_at = NOTED_LONG_AGO if now is None else now
            return self.transactions.note(producer_id, producer, noted_at)
        cache.put(producer_id, producer, time)
        return None

    def release(self, high_watermark: int, outcome_of: OutcomeOf) -> None:
        """Forget the producers of transactions that need not be known any more; see
        `Transactions.release`. One that has sent records outside of transactions since is kept as
        a plain one."""
        for producer_id, producer in self.transactions.release(high_watermark, outcome_of):
            if producer.runs:
                plain = producer._replace(marker_offset=NO_OFFSET)
                self._plain.put(producer_id, plain, self.latest)

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

    def on_unread(self, begin: int, end: int) -> None:
        """A walk could not read all batches in [begin, end): a producer may have gone on in them,
        so that its old sequence would take a duplicate for the next batch. Forgotten, it has to
        begin a new epoch. What is open stays so: see `Transactions.is_doubtful`."""
        self._plain.forget_all()
        self._named.forget_all()
        self.transactions.on_unread(begin, end)
