"""The partitions of a group member: assign, hold back, release; how far each is done.

Owns the work in flight, up to which a partition counts as done.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeAlias

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.group.effects import Position
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from raftmq.client.consumer.batch import Work
    from raftmq.client.consumer.fetcher import FetchLeaders, MetadataWatch, RecordSignal
    from raftmq.client.consumer.partition_state import ConsumedPartition, Key, ReadingEvents
    from raftmq.client.consumer.record import PartitionOwnership
    from raftmq.client.consumer.record_iterator import RecordIterator
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.group.effects import LossCause

    Place: TypeAlias = tuple[PartitionOwnership | None, int]  # with the first offset


# -- Records in flight ----------------------------------------------------------------------------
# Records that were handed out and are not finished. Pure.
#
# Owns the record or batch that was handed out last, which is finished once the next is asked for,
# and what is held beyond that (`Consumer.processing`). Nothing is noted per record: for records
# that are handed out one by one, the caller passes the last one (`more` below). Records of an
# earlier ownership of a partition do not delay a later one.


class RecordsInHand(Protocol):
    """Records that `process` has taken over, of all partitions; it decides when each is handled."""

    @property
    def is_held(self) -> bool:
        """Whether there are any."""
        ...

    def is_busy(self, ownerships: Collection[PartitionOwnership | None]) -> bool:
        """Whether records of one of these are handled right now."""
        ...

    def first_offset(self, ownership: PartitionOwnership | None) -> int | None:
        """The first unfinished one; None: all are finished."""
        ...

    def hold_back(self, ownership: PartitionOwnership | None) -> None:
        """Begin no more of these."""
        ...

    def hand_out(self, ownership: PartitionOwnership | None) -> None:
        """They may be begun, after all."""
        ...

    def release(self, ownership: PartitionOwnership | None) -> None:
        """The ownership has ended: drop them."""
        ...

    def abandon(self) -> None:
        """The consumer leaves: nothing waits for what was begun."""
        ...


class InFlightRecords:
    """What the program is working on.

    Args:
        on_finished: called when something is finished.
    """

    def __init__(self, on_finished: Callable[[], None]) -> None:
        self._on_finished = on_finished
        self._current: Place | None = None
        self._held: dict[int, Place] = {}
        self._failed: list[tuple[Place, Work | None]] = []  # with what was handed out last by then
        self._abandoned: list[Place] = []
        self._tokens = count()
        self._in_hand: list[RecordsInHand] = []

    def join(self, in_hand: RecordsInHand) -> None:
        """These count, too. Before anything is read."""
        self._in_hand.append(in_hand)

    @property
    def are_taken_over(self) -> bool:
        """By `process`."""
        return bool(self._in_hand)

    def on_progress(self) -> None:
        """Some of the records in hand are finished."""
        self._on_finished()

    def hold_back(self, ownership: PartitionOwnership | None) -> None:
        for in_hand in self._in_hand:
            in_hand.hold_back(ownership)

    def hand_out(self, ownership: PartitionOwnership | None) -> None:
        for in_hand in self._in_hand:
            in_hand.hand_out(ownership)

    def release_all(self, ownership: PartitionOwnership | None) -> None:
        """The ownership has ended."""
        for in_hand in self._in_hand:
            in_hand.release(ownership)

    def take(self, work: Work) -> None:
        """It was handed out."""
        self._current = place_of(work)

    def put_down(self) -> None:
        """The next is asked for, so the program has finished, or has got over its error."""
        if self._current is not None or self._failed:
            self._current = None
            self._failed.clear()
            self._on_finished()

    def end(self, newest: Work | None) -> None:
        """The program has ended in order: it has finished what it had in hand, and got over work
        that failed, if it has asked for more since.

        Args:
            newest: of records handed out one by one, the last one.
        """
        self._current = None
        self._failed = [(place, seen) for place, seen in self._failed if seen is newest]
        self._on_finished()

    def hold(self, work: Work) -> int:
        """It is not finished before `release` is called with the token that this returns."""
        token = next(self._tokens)
        self._held[token] = place_of(work)
        return token

    def release(self, token: int, *, is_finished: bool = True, newest: Work | None = None) -> None:
        """A failed block: its records are not done, as the program may end over the error, but a
        rebalance does not wait for them.

        Args:
            newest: as in `end`.
        """
        place = self._held.pop(token, None)
        if place is not None and not is_finished:  # None: abandoned when the consumer left
            self._failed.append((place, newest))
        self._on_finished()

    def abandon_all(self) -> None:
        """The consumer leaves: what is in flight is never finished, and no rebalance waits for it.

        It still limits how far a partition is done: background commits go on until the end.
        """
        self._abandoned += [*self._in_work(None), *(place for place, _ in self._failed)]
        self._current = None
        self._held.clear()
        self._failed.clear()
        for in_hand in self._in_hand:
            in_hand.abandon()
        self._on_finished()

    @property
    def is_held(self) -> bool:
        """A `processing` block is open, or `process` is at work."""
        return bool(self._held) or any(in_hand.is_held for in_hand in self._in_hand)

    def is_busy(self, ownerships: Collection[PartitionOwnership | None], more: Work | None) -> bool:
        """Whether records of one of these ownerships are in flight."""
        if any(in_hand.is_busy(ownerships) for in_hand in self._in_hand):
            return True
        return any(ownership in ownerships for ownership, _ in self._in_work(more))

    def first_offset(self, ownership: PartitionOwnership | None, more: Work | None) -> int | None:
        """The first unfinished offset of an ownership; None: all is finished."""
        failed = (place for place, _ in self._failed)
        places = (*self._in_work(more), *failed, *self._abandoned)
        offsets = [offset for at, offset in places if at is ownership]
        firsts = (in_hand.first_offset(ownership) for in_hand in self._in_hand)
        offsets += [offset for offset in firsts if offset is not None]
        return min(offsets, default=None)

    def _in_work(self, more: Work | None) -> Iterator[Place]:
        yield from self._held.values()
        if self._current is not None:
            yield self._current
        if more is not None:  # of records handed out one by one
            yield place_of(more)


def place_of(work: Work) -> Place:
    """Ownership and first offset of a record or batch."""
    return work.ownership, work.offset if isinstance(work, ConsumerRecord) else work.base_offset


def end_of(work: Work) -> tuple[Key, int]:
    """Partition, and where reading goes on after it."""
    offset = work.offset + 1 if isinstance(work, ConsumerRecord) else work.end_offset
    return (work.topic, work.partition), offset


def epoch_before_end(work: Work) -> int:
    """Leader epoch of the last record; -1: not known."""
    return ABSENT if isinstance(work, ConsumerRecord) else work.epoch_before(work.end_offset)


# -- Group reader ---------------------------------------------------------------------------------


class GroupReader:
    """The member's view of its partitions.

    Attributes:
        one_by_one: hands out single records; what is left of them is put back.
        in_flight_records: what the program is working on.
        events: what the member's tasks wait for.
    """

    def __init__(
        self,
        subscription: Subscription,
        one_by_one: RecordIterator,
        in_flight_records: InFlightRecords,
        leaders: FetchLeaders,
        signal: RecordSignal,
        events: ReadingEvents,
        watch: MetadataWatch,
    ) -> None:
        self._subscription, self.one_by_one = subscription, one_by_one
        self.in_flight_records, self.events = in_flight_records, events
        self._leaders, self._signal, self._watch = leaders, signal, watch

    def read_topics(self, topics: Sequence[str], watched: Sequence[str]) -> None:
        """Partitions of `topics` are assigned; of `watched` only the number of partitions is
        needed.
        """
        self._subscription.read_topics(topics, watched)
        self._watch.look()

    def assign(self, committed: Mapping[Key, Position], keys: Iterable[Key]) -> None:
        """Fetch these, too, from the committed offsets, but hand out nothing before `hand_out`."""
        for state in self._subscription.assign(keys):
            state.is_held_back = True
        self.begin(committed)

    def begin(self, committed: Mapping[Key, Position]) -> None:
        """Begin at the committed offsets, if nothing was handed out yet."""
        for state in self._states(committed):
            state.begin_at(*committed[state.key])
        self._on_change(self._states(committed))

    def hand_out(self, keys: Iterable[Key]) -> None:
        states = self._states(keys)
        for state in states:
            state.is_held_back = False
            self.in_flight_records.hand_out(state.ownership)
        self._on_change(states)

    def hold_back(self, keys: Iterable[Key]) -> None:
        """Hand out nothing more of these."""
        for state in self._states(keys):
            self.one_by_one.put_back(state)
            state.is_held_back = True
            self.in_flight_records.hold_back(state.ownership)

    def release(self, keys: Iterable[Key], cause: LossCause) -> None:
        """These are another member's now. `cause`: if they are lost, why."""
        keys = list(keys)
        for state in self._states(keys):
            self.one_by_one.put_back(state)
            if state.ownership is not None:  # late commits then name the cause
                state.ownership.cause = cause
            self.in_flight_records.release_all(state.ownership)
        self._on_change(self._subscription.release(keys))
        self.events.on_finished()

    def outdated(self) -> list[Key]:
        """Partitions of a deleted topic where another topic has its name now."""
        return self._subscription.outdated()

    async def wait_finished(self, keys: Collection[Key]) -> None:
        """Wait until no record of these is in flight."""
        ownerships = {state.ownership for state in self._states(keys)}
        while self.in_flight_records.is_busy(ownerships, self.one_by_one.in_flight):
            # Set each time that something is finished; `MemberShell` bounds the wait.
            await self.events.finished.wait()

    def done(
        self, keys: Iterable[Key] | None = None, *, is_all: bool = False
    ) -> dict[Key, Position]:
        """How far partitions are done; those without a known position are left out.

        Args:
            keys: of these; None: of all.
            is_all: records in flight count as done.
        """
        states = self._states(self._subscription.states if keys is None else keys)
        found = {state.key: self._done(state, is_all=is_all) for state in states}
        return {key: position for key, position in found.items() if position is not None}

    def _done(self, state: ConsumedPartition, *, is_all: bool) -> Position | None:
        offset = self.one_by_one.position(state)
        topic_id = self._subscription.topic_id_of(state)
        if offset is None or topic_id is None:  # no start yet: nothing to commit
            return None
        more = self.one_by_one.in_flight
        first = None if is_all else self.in_flight_records.first_offset(state.ownership, more)
        # Records in flight are not done: commit up to the first of them, whose epoch is not kept.
        if first is not None and first < offset:
            return Position(topic_id, first)
        epoch = state.position_epoch if offset == state.position else ABSENT
        return Position(topic_id, offset, epoch)

    def beginnings(self) -> dict[Key, Position]:
        """Start offsets that must be committed, as a later lookup may find others."""
        found = {}
        for state in self._subscription.states.values():
            topic_id = self._subscription.topic_id_of(state)
            # None: an explicit or committed offset, or "earliest".
            if state.found_at is not None and topic_id is not None:
                found[state.key] = Position(topic_id, state.found_at)
        return found

    def beginning_of(self, key: Key) -> int | None:
        """Where reading of a partition has begun in this ownership; None: not known yet."""
        state = self._subscription.states.get(key)
        return None if state is None else state.began_at

    def on_problem(self) -> None:
        """Wake the task that waits for records: it raises the problem."""
        self._signal.on_news()

    def _on_change(self, states: Sequence[ConsumedPartition]) -> None:
        """Something else is wanted of these now."""
        for state in states:
            self._leaders.on_change(state)
        self._signal.on_news(states)

    def _states(self, keys: Iterable[Key]) -> list[ConsumedPartition]:
        states = self._subscription.states
        return [states[key] for key in keys if key in states]
