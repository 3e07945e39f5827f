"""What a partition remembers of its producers, so that nothing of theirs stands in it twice. Pure.

Owns who is known. A leader asks `Admission` before it appends; `note` takes what stands in the log
as it is, on every replica and in recovery (docs/decisions/0020, 0022). Producers with names stand
on a shelf of their own: they are few, and are remembered for longer.

Invariant: what is known follows from the batches that were noted, in their order. Time and limits
only make it forget whole producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import TooManyProducers
from raftmq.partition.fences import check_named, fenced
from raftmq.partition.sequences import Producer, after, check_numbers, noted, stands_at
from raftmq.partition.shelf import Shelf, ShelfLimits
from raftmq.wire.named import is_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.wire.header import BatchHeader
    from raftmq.wire.named import Account

DAY_SECONDS = 86_400.0


class ProducerLimits(NamedTuple):
    """A process that begins again under its name may do so after a long weekend, a plain producer
    is gone with its process.
    """

    plain: ShelfLimits = ShelfLimits(10_000, idle_seconds_max=DAY_SECONDS, spare_seconds=300.0)
    named: ShelfLimits = ShelfLimits(
        10_000, idle_seconds_max=14 * DAY_SECONDS, spare_seconds=DAY_SECONDS
    )


class Remembered(NamedTuple):
    """A producer, as it is kept from one life of a replica to the next."""

    producer_id: int
    producer: Producer
    idle_seconds: float


class Picture(NamedTuple):
    """All producers at one moment. Nobody changes these dicts any more."""

    known: dict[int, Producer]
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
        self._plain, self._named = Shelf(self.limits.plain), Shelf(self.limits.named)
        for producer_id, producer, idle_seconds in remembered:
            self.shelf_of(producer_id).restore(producer_id, producer, -idle_seconds)

    def __len__(self) -> int:
        return len(self._plain.known) + len(self._named.known)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.shelf_of(producer_id).known

    def get(self, producer_id: int) -> Producer | None:
        return self.shelf_of(producer_id).known.get(producer_id)

    def shelf_of(self, producer_id: int) -> Shelf:
        return self._named if is_named(producer_id) else self._plain

    def picture(self) -> Picture:
        """What another thread may look at while this one goes on."""
        return Picture(
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
        self._ahead: dict[int, Producer] = {}  # as they will be after what was admitted
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

    def fence(self, producer_id: int, generation: int, *, partition_count: int = 0) -> Producer:
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

    def _find(self, producer_id: int) -> Producer | None:
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
