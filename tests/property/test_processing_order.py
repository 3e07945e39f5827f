"""Records on their way through `process`: any interleaving of arrivals, finishes, failures and
rebalances against what a list of everything says (A12.4, A11.2).
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.processing.order import ProcessingOrder, RecordInHand

MAX_IN_HAND = 12
PARTITIONS = st.integers(0, 2)
KEYS = st.sampled_from([None, b"a", b"b", "a", 7])


class Ownership:
    """One time for which a partition is this member's."""

    def __init__(self, partition: int, position: int) -> None:
        self.partition, self.position = partition, position
        self.arrived: list[int] = []
        self.finished: set[int] = set()
        self.is_held_back = False
        self.alone = 0  # so many of the first ones are handled alone
        self.is_full = False

    @property
    def first_unfinished(self) -> int | None:
        return next((one for one in self.arrived if one not in self.finished), None)

    @property
    def window(self) -> int:
        first = self.first_unfinished
        return 0 if first is None else len(self.arrived) - self.arrived.index(first)


class AnyInterleaving(RuleBasedStateMachine):
    """Attributes:
    committed: of each partition, what a member would have committed: nothing below is unfinished.
    done: of each partition the offsets that were finished, in any ownership.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order = ProcessingOrder(MAX_IN_HAND)
        self.now, self.keys = 0.0, dict[tuple[int, int], object]()
        self.owned: dict[int, Ownership] = {}
        self.committed = dict.fromkeys(range(3), 0)
        self.done: dict[int, set[int]] = {number: set() for number in range(3)}
        self.begun: list[tuple[RecordInHand, Ownership]] = []
        self.waiting: list[tuple[float, RecordInHand, Ownership]] = []

    # What the member does

    @rule(partition=PARTITIONS, alone=st.sampled_from([0, 0, 2, 5]))
    def assign(self, partition: int, alone: int) -> None:
        """It reads on from what is committed."""
        if partition not in self.owned:
            owned = self.owned[partition] = Ownership(partition, self.committed[partition])
            if alone:
                owned.alone = alone
                self.order.handle_alone(owned, alone)

    @rule(partition=PARTITIONS)
    def clear(self, partition: int) -> None:
        """What comes next is as any."""
        if owned := self.owned.get(partition):
            owned.alone = min(owned.alone, len(owned.arrived))
            self.order.clear(owned)

    @rule(partition=PARTITIONS, keys=st.lists(KEYS, max_size=6), gap=st.integers(0, 2))
    def read(self, partition: int, keys: list[object], gap: int) -> None:
        owned = self.owned.get(partition)
        if owned is None or owned.is_held_back:
            return
        self.look_for_room()
        if owned.is_full:
            return
        records = []
        for key in keys[: self.order.room]:
            offset = owned.position
            # A record read again is the same one.
            known = self.keys.setdefault((partition, offset), key)
            records.append(ConsumerRecord("orders", partition, offset, -1, known, b""))
            owned.arrived.append(offset)
            owned.position += 1 + gap * (offset % 2)
        if records:
            self.order.add(owned, records)

    @rule()
    def look_for_room(self) -> None:
        """Each is full where it has as much as there is room, until it has half of that."""
        free = MAX_IN_HAND - self.order.in_hand
        before = {number for number, owned in self.owned.items() if owned.is_full}
        for owned in self.owned.values():
            at_least = owned.window >= max(free, 1)
            owned.is_full = 2 * owned.window > free if owned.is_full else at_least
        full = {number for number, owned in self.owned.items() if owned.is_full}
        filled, roomy = self.order.update_full()
        assert sorted(filled) == sorted(("orders", number) for number in full - before)
        assert sorted(roomy) == sorted(("orders", number) for number in before - full)
        assert self.order.full == {("orders", number) for number in full}

    @rule(partition=PARTITIONS)
    def hold_back(self, partition: int) -> None:
        if owned := self.owned.get(partition):
            owned.is_held_back = True
            self.order.hold_back(owned)

    @rule(partition=PARTITIONS)
    def hand_out(self, partition: int) -> None:
        if owned := self.owned.get(partition):
            owned.is_held_back = False
            self.order.hand_out(owned)

    @rule(partition=PARTITIONS)
    def release(self, partition: int) -> None:
        if owned := self.owned.pop(partition, None):
            self.order.release(owned)
            self.waiting = [one for one in self.waiting if one[2] is not owned]

    # What workers do

    @rule()
    def begin(self) -> None:
        one = self.order.begin()
        if one is None:
            return
        owned = self.owned[one.record.partition]
        assert not owned.is_held_back
        assert not any(other.is_alone for other, _ in self.begun)
        assert one.is_alone == (owned.arrived.index(one.record.offset) < owned.alone)
        if one.is_alone:  # what was begun has ended, and what comes before it is finished
            assert not self.begun
            assert one.record.offset == self.next_alone(owned)
        assert one.record.offset not in owned.finished
        lane = lane_of(one)
        if lane is not None:  # nothing of the key is at work, and nothing before it is unfinished
            assert lane not in [lane_of(other) for other, _ in self.begun]
            before = [
                offset
                for offset in owned.arrived
                if offset < one.record.offset
                and offset not in owned.finished
                and same_key(self.keys[one.record.partition, offset], one.record.key)
            ]
            assert not before
        self.begun.append((one, owned))

    def next_alone(self, owned: Ownership) -> int | None:
        """The first one; while that waits, and may be passed, the next whose key is free."""
        first = owned.first_unfinished
        waiting = {one.record.offset: one for _, one, at in self.waiting if at is owned}
        if first not in waiting or not waiting[first].is_passed:
            return first
        taken = {lane_of(one) for one in waiting.values()} | {lane_of(one) for one, _ in self.begun}
        for offset in owned.arrived[: owned.alone]:
            key = self.keys[owned.partition, offset]
            lane = None if key is None else (owned.partition, as_bytes(key))
            is_there = offset in owned.finished or offset in waiting
            if not is_there and (lane is None or lane not in taken):
                return offset
        return None

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        one, owned = self.take(data)
        is_lost = self.owned.get(owned.partition) is not owned
        assert one.is_lost == is_lost
        self.order.finish(one)
        self.end_alone(one)
        self.done[owned.partition].add(one.record.offset)
        if not is_lost:
            owned.finished.add(one.record.offset)

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), pause=st.floats(0, 100), is_passed=st.booleans())
    def fail(self, data: st.DataObject, pause: float, is_passed: bool) -> None:
        one, owned = self.take(data)
        one.is_passed = is_passed
        self.order.postpone(one, self.now + pause)
        self.end_alone(one)
        if not one.is_lost:
            self.waiting.append((self.now + pause, one, owned))

    def end_alone(self, one: RecordInHand) -> None:
        """Nothing is begun before it is said that it is over."""
        if one.is_alone:
            assert self.order.begin() is None
            self.order.end_alone(one)

    def take(self, data: st.DataObject) -> tuple[RecordInHand, Ownership]:
        return self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))

    @rule(seconds=st.floats(0, 50))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [one for one in self.waiting if one[0] <= self.now]
        assert self.order.wake(self.now) == bool(due)
        self.waiting = [one for one in self.waiting if one[0] > self.now]

    # What is committed

    @rule(partition=PARTITIONS)
    def commit(self, partition: int) -> None:
        if owned := self.owned.get(partition):
            first = self.order.first_offset(owned)
            self.committed[partition] = owned.position if first is None else first

    @invariant()
    def nothing_is_passed_over(self) -> None:
        """What is committed was handled, all of it."""
        for partition, committed in self.committed.items():
            offsets = {one[1] for one in self.keys if one[0] == partition and one[1] < committed}
            assert offsets <= self.done[partition]

    @invariant()
    def bounds_hold(self) -> None:
        lost = sum(one.is_lost for one, _ in self.begun)
        assert self.order.in_hand == lost + sum(one.window for one in self.owned.values())
        assert self.order.in_hand <= MAX_IN_HAND

    @invariant()
    def what_is_told_is_true(self) -> None:
        for owned in self.owned.values():
            assert self.order.first_offset(owned) == owned.first_unfinished
            is_busy = any(mark is owned for _, mark in self.begun)
            assert self.order.is_busy([owned]) == is_busy
        assert self.order.next_due == min((due for due, *_ in self.waiting), default=float("inf"))

    def teardown(self) -> None:
        """Nothing is forgotten: with time and workers all that is in hand is finished."""
        for owned in self.owned.values():
            self.order.hand_out(owned)
        begun = [one for one, _ in self.begun]
        for one in begun:
            self.order.finish(one)
            self.end_alone(one)
        self.order.wake(self.now + 1_000)
        while (one := self.order.begin()) is not None:  # type: ignore[assignment]
            self.order.finish(one)
            self.end_alone(one)
        assert self.order.in_hand == 0
        assert not list(self.order)
        self.look_for_room()
        kept = {owned for owned in self.owned.values() if owned.alone > len(owned.arrived)}
        assert self.order._places.keys() == kept
        assert not self.order.is_held


def same_key(one: object, other: object) -> bool:
    return other is not None and as_bytes(one) == as_bytes(other)


def as_bytes(key: object) -> object:
    return key.encode() if isinstance(key, str) else key


def lane_of(one: RecordInHand) -> object:
    key = one.record.key
    return None if key is None else (one.record.partition, as_bytes(key))


TestAnyInterleaving = AnyInterleaving.TestCase
