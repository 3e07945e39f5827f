"""`ProcessingOrder`: which record is handled next, and how far each partition is done. Pure.

Owns the records that a program has in hand: those that wait, those that are handled, and those that
wait for another attempt. The caller reads the clock and calls the handler. Kafka: the work
containers of Confluent's Parallel Consumer.

Of a partition whose workers have crashed, some records are handled alone: in the order of their
offsets, each with no other record of any partition beside it (`alone.py` says why). While the first
of them waits for its next attempt, so do the others, unless it may be passed.

Invariants: of the records of one key, one is handled at a time, in the order of their offsets, also
where a partition was lost and is back. `first_offset` is the lowest offset of a partition that is
not finished: what lies below may be committed. At most `max_in_hand` records are in hand, those
included that are finished behind an unfinished one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Sequence
    from typing import TypeAlias

    from raftmq.client.consumer.record import AnyRecord

    Key: TypeAlias = tuple[str, int]
    Ownership: TypeAlias = Hashable

# A share of the free room for each batch: the others find some, too.
BATCHES_PER_ROOM = 4


class RecordStanding(Enum):
    """Where a record in hand stands."""

    QUEUED = auto()  # behind another one of its key
    READY = auto()
    BEGUN = auto()  # a worker has it
    WAITING = auto()  # for its next attempt
    OVER = auto()  # finished, or dropped


class RecordInHand:
    """A record, and where it stands.

    Attributes:
        record: as it was sent.
        attempts: how often it was begun.
        failure: it is to be set aside because of this, and needs no other attempt.
        is_lost: its partition is not this member's any more: its result does not count.
        is_alone: nothing else is handled beside it.
        is_passed: while it waits, others of its partition are handled that are to be alone.
    """

    __slots__ = (
        "attempts", "failure", "is_alone", "is_lost", "is_passed", "lane", "number", "place",
        "record", "standing",
    )  # fmt: skip

    def __init__(self, record: AnyRecord, place: _Place, lane: Hashable, number: int) -> None:
        self.record, self.place, self.lane, self.number = record, place, lane, number
        self.attempts, self.is_lost, self.standing = 0, False, RecordStanding.QUEUED
        self.failure: Exception | None = None
        self.is_alone, self.is_passed = place.alone_left > 0, False


class _Place:
    """A partition in one ownership.

    Attributes:
        unfinished: by offset, in order; an OrderedDict, as finding the first one of a dict takes as
            long as it has had entries.
        arrived: how many records have come.
        begun: how many are handled right now.
        parked: ready, but the partition is held back.
        alone_left: so many of the records that come next are handled alone.
        alone_ready: those that are ready and to be handled alone, as a heap by their numbers.
        size: the window, as it is counted in `in_hand`.
        is_full: reading of it pauses.
    """

    def __init__(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self.key: Key | None = None
        self.unfinished: OrderedDict[int, RecordInHand] = OrderedDict()
        self.arrived = self.begun = self.alone_left = self.size = 0
        self.parked: list[RecordInHand] = []
        self.alone_ready: list[tuple[int, RecordInHand]] = []
        self.is_held_back = self.is_full = False

    @property
    def first(self) -> RecordInHand | None:
        for one in self.unfinished.values():
            return one
        return None

    @property
    def window(self) -> int:
        """Records from the first unfinished one on."""
        first = self.first
        return 0 if first is None else self.arrived - first.number

    @property
    def next_alone(self) -> RecordInHand | None:
        first = self.first
        if first is None or not self.alone_ready or self.is_held_back:
            return None
        _, one = self.alone_ready[0]
        is_passed = first.is_passed and first.standing is RecordStanding.WAITING
        return one if one is first or is_passed else None

    @property
    def is_idle(self) -> bool:
        """Nothing of it need be known."""
        return not (self.unfinished or self.alone_left or self.is_held_back or self.is_full)


class ProcessingOrder:
    """The records in hand of one consumer.

    Args:
        max_in_hand: how many these are at most.

    Attributes:
        in_hand: how many these are.
        full: partitions of which no more is read, as of the last `update_full`.
    """

    def __init__(self, max_in_hand: int) -> None:
        self._max = max_in_hand
        self.in_hand = 0
        self._places: dict[Ownership, _Place] = {}
        self._lanes: dict[Hashable, deque[RecordInHand]] = {}
        self._ready: deque[RecordInHand] = deque()
        self._waiting: list[tuple[float, int, RecordInHand]] = []
        self._serials = count()
        self._begun = 0
        self._suspects: dict[_Place, None] = {}  # the next one to be alone may be ready
        # Places by whether they are full, and by size: of few sizes, as all are together in hand.
        self._sizes: dict[tuple[bool, int], dict[_Place, None]] = {}
        self.full: set[Key] = set()
        self._alone: RecordInHand | None = None  # nothing is begun beside it
        self._is_stopped = self._is_abandoned = False

    # -- records ---------------------------------------------------------------------------

    def add(self, ownership: Ownership, records: Sequence[AnyRecord]) -> None:
        """They were read, in the order of their offsets; no more than `room`."""
        assert len(records) <= self.room, "more than there is room for"
        place = self._place(ownership)
        for record in records:
            place.key = record.topic, record.partition
            one = RecordInHand(record, place, _lane_of(record), place.arrived)
            place.arrived += 1
            place.alone_left = max(0, place.alone_left - 1)
            place.unfinished[record.offset] = one
            self._enter(one)
        self._on_size(place)

    def _place(self, ownership: Ownership) -> _Place:
        place = self._places.get(ownership)
        if place is None:
            place = self._places[ownership] = _Place(ownership)
        return place

    def _on_size(self, place: _Place) -> None:
        """Its records have become more, or fewer."""
        self.in_hand += place.window - place.size
        self._file(place, place.window, is_full=place.is_full)

    def _file(self, place: _Place, size: int, *, is_full: bool) -> None:
        self._unfile(place)
        place.size, place.is_full = size, is_full
        if size or is_full:
            self._sizes.setdefault((is_full, size), {})[place] = None
        self._drop_idle(place)

    def _unfile(self, place: _Place) -> None:
        key = place.is_full, place.size
        alike = self._sizes.get(key)
        if alike is not None:
            alike.pop(place, None)
            if not alike:
                del self._sizes[key]

    def _drop_idle(self, place: _Place) -> None:
        if place.is_idle and self._places.get(place.ownership) is place:
            del self._places[place.ownership]

    def _enter(self, one: RecordInHand) -> None:
        if one.lane is None:
            return self._make_ready(one)
        lane = self._lanes.setdefault(one.lane, deque())
        lane.append(one)
        if len(lane) == 1:
            self._make_ready(one)
        return None

    def _make_ready(self, one: RecordInHand) -> None:
        one.standing = RecordStanding.READY
        if one.is_alone:
            heappush(one.place.alone_ready, (one.number, one))
            self._look_at(one.place)
        else:
            self._ready.append(one)

    def begin(self) -> RecordInHand | None:
        """The next record for a worker; None: there is none now."""
        if self._is_stopped or self._alone is not None:
            return None
        alone = self._next_alone()
        if alone is not None and self._begun:  # what is begun ends first
            return None
        if alone is not None:
            self._alone = alone
            heappop(alone.place.alone_ready)  # the first of them
            return self._begin(alone)
        while self._ready:
            one = self._ready.popleft()
            if one.standing is not RecordStanding.READY:  # dropped meanwhile
                continue
            if one.place.is_held_back:
                one.place.parked.append(one)
                continue
            return self._begin(one)
        return None

    def _begin(self, one: RecordInHand) -> RecordInHand:
        one.standing = RecordStanding.BEGUN
        one.place.begun += 1
        self._begun += 1
        one.attempts += 1
        return one

    def finish(self, one: RecordInHand) -> None:
        """It was handled, or set aside."""
        assert one.standing is RecordStanding.BEGUN, one.standing
        place = one.place
        place.begun -= 1
        self._begun -= 1
        one.standing = RecordStanding.OVER
        if one.is_lost:
            self.in_hand -= 1
        else:
            del place.unfinished[one.record.offset]
            self._on_size(place)
            self._look_at(place)
        self._leave(one)

    def postpone(self, one: RecordInHand, due: float) -> None:
        """It has failed, and is ready again at `due`. Its key waits for it, and no worker does."""
        assert one.standing is RecordStanding.BEGUN, one.standing
        if one.is_lost:  # its new owner tries it
            return self.finish(one)
        one.place.begun -= 1
        self._begun -= 1
        one.standing = RecordStanding.WAITING
        heappush(self._waiting, (due, next(self._serials), one))
        self._look_at(one.place)
        return None

    def _leave(self, one: RecordInHand) -> None:
        """The next one of its key is ready."""
        if one.lane is None:
            return
        lane = self._lanes[one.lane]
        assert lane[0] is one, "handled out of order"
        lane.popleft()
        if lane:
            self._make_ready(lane[0])
        else:
            del self._lanes[one.lane]

    # -- alone -----------------------------------------------------------------------------

    def handle_alone(self, ownership: Ownership, records: int) -> None:
        """Handle the first records of this partition alone, so many of them. Later than before the
        first it has no effect.
        """
        place = self._place(ownership)
        if not place.arrived:
            place.alone_left = records

    def end_alone(self, one: RecordInHand) -> None:
        """It was begun alone, and is finished or postponed: others may be begun."""
        assert self._alone is one, "not the one that was begun alone"
        self._alone = None

    def clear(self, ownership: Ownership) -> None:
        """What crashed workers had in hand is done with: the records that come next are as any."""
        place = self._places.get(ownership)
        if place is not None:
            place.alone_left = 0
            self._drop_idle(place)

    def _look_at(self, place: _Place) -> None:
        """Its next record to be handled alone may be ready now."""
        if place.alone_ready:
            self._suspects[place] = None

    def _next_alone(self) -> RecordInHand | None:
        """The first unfinished record of a partition, if it is ready and to be handled alone; or
        the next one, where that waits and may be passed.
        """
        while self._suspects:
            place = next(iter(self._suspects))
            if (one := place.next_alone) is not None:
                return one
            del self._suspects[place]
        return None

    # -- time ------------------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """When the next record is ready that waits; infinite: none waits."""
        while self._waiting and self._waiting[0][2].standing is not RecordStanding.WAITING:
            heappop(self._waiting)  # dropped
        return self._waiting[0][0] if self._waiting else inf

    def wake(self, now: float) -> bool:
        """Make ready what is due; whether there was any."""
        is_any = False
        while self.next_due <= now:
            self._make_ready(heappop(self._waiting)[2])
            is_any = True
        return is_any

    # -- room ------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many records the next batch may have; 0: read none."""
        free = self._max - self.in_hand
        return -(-free // BATCHES_PER_ROOM)

    def update_full(self) -> tuple[list[Key], list[Key]]:
        """Find the partitions of which no more is read until some of their records are finished.

        Of a partition about as many records are in hand as there is room left, a batch more at the
        most: so k that are stuck leave a (k + 1)th part of the room to the others. It is read again
        once it has half of that.

        Returns:
            Those that are full now, and those that are not any more.
        """
        free = self._max - self.in_hand
        filled: list[Key] = []
        roomy: list[Key] = []
        for is_full, size in list(self._sizes):
            if 2 * size <= free if is_full else size >= max(free, 1):
                for place in list(self._sizes[is_full, size]):
                    assert place.key is not None, "without records"
                    (roomy if is_full else filled).append(place.key)
                    self._file(place, size, is_full=not is_full)
        self.full.update(filled)
        self.full.difference_update(roomy)
        return filled, roomy

    # -- rebalances ------------------------------------------------------------------------

    def hold_back(self, ownership: Ownership) -> None:
        """Begin no more of it: it is to be another member's."""
        self._place(ownership).is_held_back = True

    def hand_out(self, ownership: Ownership) -> None:
        """It stays this member's, after all."""
        if (place := self._places.get(ownership)) is not None:
            place.is_held_back = False
            self._ready.extendleft(reversed(place.parked))
            place.parked.clear()
            self._look_at(place)
            self._drop_idle(place)

    def release(self, ownership: Ownership) -> None:
        """It is another member's: what is not begun is dropped, and what is begun does not count.
        The next records of these keys wait for those that are begun.
        """
        place = self._places.pop(ownership, None)
        if place is None:
            return
        self._suspects.pop(place, None)
        self._unfile(place)
        self.in_hand -= place.size
        if place.is_full and place.key is not None:
            self.full.discard(place.key)
        lanes = dict.fromkeys(one.lane for one in place.unfinished.values())
        for one in place.unfinished.values():
            if one.standing is RecordStanding.BEGUN:
                one.is_lost = True
                self.in_hand += 1
            else:
                one.standing = RecordStanding.OVER
        for key in lanes:
            if key is not None:
                self._thin_out(key)

    def _thin_out(self, key: Hashable) -> None:
        lane = deque(one for one in self._lanes[key] if one.standing is not RecordStanding.OVER)
        if not lane:
            del self._lanes[key]
            return
        self._lanes[key] = lane
        # Of another ownership: a topic that was made anew while its old records were in hand.
        if lane[0].standing is RecordStanding.QUEUED:
            self._make_ready(lane[0])

    # -- what is told ----------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether anything is in hand: the program is at work, and needs not ask for more."""
        return self.in_hand > 0

    def is_busy(self, ownerships: Collection[Any]) -> bool:
        """Whether a record of one of these is handled. One that waits for its next attempt is not:
        a rebalance does not wait for it.
        """
        if self._is_abandoned:
            return False
        found = (self._places.get(ownership) for ownership in ownerships)
        return any(place is not None and place.begun > 0 for place in found)

    def first_offset(self, ownership: Ownership) -> int | None:
        """The first unfinished offset; None: all is finished."""
        place = self._places.get(ownership)
        first = None if place is None else place.first
        return None if first is None else first.record.offset

    # -- the end ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True

    def abandon(self) -> None:
        """The program ends: what is begun is never finished, and nothing waits for it."""
        self._is_stopped = self._is_abandoned = True

    def __iter__(self) -> Iterator[RecordInHand]:
        """What is not finished, and counts."""
        for place in self._places.values():
            yield from place.unfinished.values()


def _lane_of(record: AnyRecord) -> Hashable:
    """Records with one lane are handled one after the other; None: with no other."""
    key = record.key
    if key is None:
        return None
    # Text and its UTF-8 bytes go to one partition, and are one key to most programs.
    return record.topic, record.partition, key.encode() if isinstance(key, str) else key
