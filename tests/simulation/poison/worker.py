"""A worker of the worlds of poison: the order in which `process` handles records, and its commits.

The order and the rules of what is handled alone are the real ones. Each step is one thing that a
worker does; between two of them everything else may happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.processing.alone import is_passed, is_poison, is_suspect
from raftmq.client.processing.order import ProcessingOrder, RecordInHand

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.poison.world import World

KEYS = (None, b"a", b"b")
FAILING_SHARE = 0.1  # of attempts, whatever the record


class Violation(Exception):
    """A promise was broken."""


class Tenure:
    """A partition in one ownership.

    Attributes:
        told: the committed offset as it was fetched, and the crashes beside it.
    """

    def __init__(self, world: World, partition: int) -> None:
        self.partition = partition
        self.position = world.metadata.committed(partition)
        self.told = (self.position, world.metadata.crashes(partition))
        self.has_ended = False


class Worker:
    """A process.

    Attributes:
        at_work: what its handler has.
        marking: what is to be handled alone, and not noted in the quorum yet.
        now: how many steps it has done.
    """

    def __init__(self, world: World) -> None:
        self.world, self.member_id = world, ""
        self.order = ProcessingOrder(world.plan.max_in_hand)
        self.tenures: dict[int, Tenure] = {}
        self.at_work: list[tuple[RecordInHand, Tenure]] = []
        self.marking: tuple[RecordInHand, Tenure] | None = None
        self.is_up, self.is_paused, self.now = True, False, 0.0

    # -- partitions ------------------------------------------------------------------------

    def assign(self, partitions: frozenset[int]) -> None:
        for partition in sorted(self.tenures.keys() - partitions):
            self._release(partition)
        for partition in sorted(partitions - self.tenures.keys()):
            self.tenures[partition] = Tenure(self.world, partition)

    def _release(self, partition: int) -> None:
        tenure = self.tenures.pop(partition)
        tenure.has_ended = True
        self.order.release(tenure)

    def lose_all(self) -> None:
        for partition in list(self.tenures):
            self._release(partition)

    def busy(self) -> set[int]:
        """Partitions that a rebalance waits for."""
        return {one.record.partition for one, tenure in self.at_work if not tenure.has_ended}

    @property
    def alone(self) -> tuple[int, int] | None:
        """What a crash counts for: handled alone, or about to be; or it waits, and another one is
        handled under its note.
        """
        alone = self.order._alone
        return None if alone is None else (alone.record.partition, self._first(alone))

    @property
    def is_passing(self) -> bool:
        alone = self.order._alone
        return alone is not None and alone.record.offset != self._first(alone)

    # -- steps -----------------------------------------------------------------------------

    def step(self, chance: Random) -> None:
        self.now += 1
        self.order.wake(self.now)
        if self.marking is not None:
            self._mark(*self.marking)
        elif chance.random() < self.world.plan.commit_share:
            self.commit()
        elif self.at_work and chance.random() < 0.5:
            self._go_on(chance)
        elif len(self.at_work) < self.world.plan.concurrency and chance.random() < 0.7:
            self._begin()
        elif self.tenures:
            self._read(self.tenures[chance.choice(sorted(self.tenures))], chance)

    def _read(self, tenure: Tenure, chance: Random) -> None:
        room = min(self.order.room, chance.randint(1, 4))
        last = min(tenure.position + room, self.world.plan.records)
        records = [
            ConsumerRecord("t", tenure.partition, offset, -1, KEYS[offset % 3], b"")
            for offset in range(tenure.position, last)
        ]
        self.order.update_full()
        if records and ("t", tenure.partition) not in self.order.full:
            if is_suspect(tenure.told[1]):
                self.order.handle_alone(tenure, self.world.plan.max_in_hand)
            tenure.position = last
            self.order.add(tenure, records)

    def _begin(self) -> None:
        one = self.order.begin()
        if one is None:
            return
        tenure = self.tenures.get(one.record.partition)
        assert tenure is not None, "begun, and not owned"
        if one.is_alone:
            offset, crashes = tenure.told
            if offset == one.record.offset and is_poison(crashes, self.world.plan.attempts):
                self.world.on_set_aside(one.record, crashes)
                self._end(one, tenure)
            else:
                self.marking = one, tenure
        else:
            self._work(one, tenure)

    def _mark(self, one: RecordInHand, tenure: Tenure) -> None:
        if tenure.has_ended:
            self.marking = None
            self._end(one, tenure)
        elif self.world.commits(self, tenure, first := self._first(one), alone=True):
            self.marking = None
            if tenure.told[0] != first:  # it has moved
                tenure.told = first, 0
            self._work(one, tenure)

    def _work(self, one: RecordInHand, tenure: Tenure) -> None:
        if one.is_alone and self.at_work:
            raise Violation(f"{one.record} is alone beside {self.at_work}")
        self.at_work.append((one, tenure))

    def _go_on(self, chance: Random) -> None:
        one, tenure = chance.choice(self.at_work)
        if chance.random() < FAILING_SHARE:
            self._postpone(one, tenure)
        elif (one.record.partition, one.record.offset) in self.world.plan.poison:
            self.world.kill(self, one.record)
        else:
            self._end(one, tenure, is_done=True)

    def _postpone(self, one: RecordInHand, tenure: Tenure) -> None:
        """Its handler has raised: it is tried again, and is not at work until then."""
        if one.is_alone and not self._has_committed(tenure, self._first(one)):
            return
        self.at_work.remove((one, tenure))
        offset, crashes = tenure.told
        told = crashes if offset == one.record.offset else 0
        one.is_passed = one.is_alone and is_passed(told, self.world.plan.attempts)
        self.order.postpone(one, self.now + self.world.plan.pause)
        if one.is_alone:
            self.order.end_alone(one)

    def _first(self, one: RecordInHand, *, without: bool = False) -> int:
        """How far its partition is done, `without` this one or with it."""
        tenure = self.tenures.get(one.record.partition)
        left = [n for n in one.place.unfinished if not (without and n == one.record.offset)]
        return min(left, default=one.record.offset if tenure is None else tenure.position)

    def _has_committed(self, tenure: Tenure, offset: int) -> bool:
        """Before anything else begins, who was alone says that it is not any more."""
        is_over = tenure.has_ended or self.world.is_stranger(self)
        return is_over or self.world.commits(self, tenure, offset)

    def _end(self, one: RecordInHand, tenure: Tenure, *, is_done: bool = False) -> None:
        if is_done and not tenure.has_ended:
            self.world.done.add((one.record.partition, one.record.offset))
        if (one, tenure) in self.at_work:
            if one.is_alone and not self._has_committed(tenure, self._first(one, without=True)):
                return  # it is tried again
            self.at_work.remove((one, tenure))
        self.order.finish(one)
        if one.is_alone:
            self.order.end_alone(one)

    def commit(self, *, given_up: frozenset[int] = frozenset()) -> None:
        for partition, tenure in self.tenures.items():
            first = self.order.first_offset(tenure)
            offset = tenure.position if first is None else first
            if offset > self.world.metadata.committed(partition):
                self.world.commits(self, tenure, offset)
