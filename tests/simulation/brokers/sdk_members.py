"""Simulated programs that read as group members: they join, leave, crash, are cut off, are slow.

What each group owes to its members is judged by `group_ledger.py`. In the end all members run at
once, and must reach the end of everything together.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import (
    FencedInstanceId,
    IllegalGeneration,
    OutcomeUnknown,
    RaftmqError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tests.simulation.brokers.group_ledger import BEFORE, GroupLedger
from tests.simulation.brokers.group_life import Life
from tests.simulation.brokers.sdk_clients import HEALED_SECONDS_MAX, SdkProgram
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Batches, Consumer
    from raftmq.client.consumer.record import ConsumerRecord
    from tests.simulation.brokers.group_plan import GroupPlan
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World

GONE = (UnknownTopicId, UnknownTopicOrPartition)
HEARTBEATS = 5  # in a session: several may be lost before it expires
PATTERN = "topic-.*"
_BY_HAND_FROM = {"manual": 0.7, "batch": 0.9}  # who commits by hand, and how often does not


class SdkGroup:
    """All members of one group.

    Attributes:
        is_over: everything was read by everybody together.
    """

    def __init__(self, world: World, plan: GroupPlan) -> None:
        self._world, self.plan = world, plan
        self.ledger = GroupLedger(world, plan)
        self.is_over = False
        self._members = [SdkMember(world, self, number) for number in range(plan.member_count)]

    async def run(self) -> None:
        ends: dict[Spot, int] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ledger.watch)
            async with trio.open_nursery() as members:
                for member in self._members:
                    members.start_soon(member.run)
                while not self._world.is_closing:  # noqa: ASYNC110  # has no event
                    await trio.sleep(0.2)
                ends = self.ledger.ends()
                if ends:  # else there is no topic just now, and members have gone
                    await self._wait_settled(ends)
                self.is_over = True
            nursery.cancel_scope.cancel()
        await trio.sleep(1.0)  # images show the last commits
        self.ledger.judge(ends)

    async def _wait_settled(self, ends: dict[Spot, int]) -> None:
        """As long as it takes, where each record is committed for itself on a slow disk; but time
        in which no member gets new partitions is short.
        """
        ledger, handed, until = self.ledger, -1, 0.0
        while problem := ledger.unsettled(ends, self.plan.member_count):
            if ledger.record_count > handed:
                handed, until = ledger.record_count, trio.current_time() + HEALED_SECONDS_MAX
            demand(
                trio.current_time() < until, f"{self.plan.name} does not come to rest: {problem}"
            )
            await trio.sleep(0.1)

    @property
    def client_names(self) -> list[str]:
        """The machines of those that are there."""
        return [life.name for life in self.ledger.lives]


class SdkMember(SdkProgram):
    """One member after the other."""

    def __init__(self, world: World, group: SdkGroup, number: int) -> None:
        super().__init__(world, f"{group.plan.name}-{number}")
        self.group = group
        self._lives = count()

    async def run(self) -> None:
        while not self.group.is_over:
            if self.world.living_topics():
                await self._live(f"{self.name}.{next(self._lives)}")
            elif self.world.is_closing:
                return
            await self._think()

    async def _live(self, name: str) -> None:
        topics, given = self._draw()
        self.trace(f"{name} {topics} {given}")
        try:
            async with trio.open_nursery() as nursery:
                life = MemberLife(self, name, topics, given)
                nursery.start_soon(self._meet, life)
                await life.run()
                nursery.cancel_scope.cancel()
        except* RaftmqError as errors:
            self.trace(f"{name} {errors.exceptions!r}")
        except* FailedError:
            self.trace(f"{name} has failed")

    def _draw(self) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
        choose, plan = self._random.choice, self.group.plan
        living = self.world.living_topics()
        commit = BEFORE
        if plan.commit != BEFORE:
            commit = choose(("batch", "batch", "batch", "record", "manual", "none"))
        given: dict[str, Any] = {
            "group": plan.name,
            "commit": commit,
            "commit_interval_ms": choose((1, 100)),
            "start": "earliest",
            "auto_offset_reset": "earliest",
            "assignor": plan.assignors,
            "session_timeout_ms": plan.session_ms,
            "heartbeat_interval_ms": plan.session_ms // HEARTBEATS,
            "rebalance_timeout_ms": plan.rebalance_ms,
            "max_poll_interval_ms": choose((2000, 300_000)),
            "max_poll_records": choose((5, 20, 500) if commit == BEFORE else (1, 5, 500)),
            "fetch_max_wait_ms": choose((50, 500)),
            "group_instance_id": self.name if plan.is_static else None,
        }
        draw = self._random.random()
        if draw < 0.2:
            return None, {**given, "pattern": PATTERN}
        if draw < 0.4 and not self.world.is_closing:
            return tuple(self._random.sample(living, self._random.randint(1, len(living)))), given
        return tuple(living), given

    async def _meet(self, life: MemberLife) -> None:
        """What becomes of it, as long as bad things happen."""
        while True:
            await trio.sleep(self._random.choice(self.group.plan.fate_seconds))
            if self.world.is_repaired:
                return
            fate = self._random.choice(self.group.plan.fates)
            self.trace(f"{life.name} shall {fate}")
            if fate == "crash":
                life.crash()
            elif fate == "cut":
                await self._cut_off(life.name)
            else:
                life.fate = fate

    async def _cut_off(self, name: str) -> None:
        network = self.world.network
        network.isolate(name)
        await trio.sleep(self._random.choice(self.group.plan.cut_seconds))
        network.heal(source=name)
        network.heal(target=name)


class FailedError(Exception):
    """A mistake of the program."""


class MemberLife:
    """From joining to the end, of any kind.

    Attributes:
        fate: what it shall do next time that it looks.
    """

    def __init__(
        self,
        program: SdkMember,
        name: str,
        topics: tuple[str, ...] | None,
        given: dict[str, Any],
    ) -> None:
        self._program, self.name, self._topics, self._given = program, name, topics, given
        self._world, self._random = program.world, program._random
        self._ledger = program.group.ledger
        self.fate = ""
        self._life: Life | None = None
        self._scope = trio.CancelScope()

    def crash(self) -> None:
        """The machine falls silent; what it had in hand is not done."""
        self._world.network.isolate(self.name)
        self._end()
        self._scope.cancel()

    async def run(self) -> None:
        with self._scope:
            async with self._program._client(self.name) as client:
                given = {**self._given, "on_rebalance": self._on_rebalance}
                consumer = client.consumer(*(self._topics or ()), **given)
                self._life = Life(self.name, consumer, self._topics)
                try:
                    async with consumer:
                        self._ledger.lives.append(self._life)
                        await self._work(consumer, self._life)
                finally:
                    self._end()

    def _end(self) -> None:
        if self._life in self._ledger.lives:
            self._ledger.lives.remove(self._life)

    def _on_rebalance(self, rebalance: Any) -> None:
        self._program.trace(f"{self.name} {rebalance}")
        assert self._life is not None, "told before it began"
        self._ledger.on_rebalance(self._life, rebalance)

    @property
    def _is_done(self) -> bool:
        """At the end it stays, if it reads all that there is."""
        if self._program.group.is_over or self.fate == "leave":
            return True
        is_late = self._world.is_closing and self._topics is not None
        return is_late and set(self._topics or ()) != set(self._world.living_topics())

    # Work

    async def _work(self, consumer: Consumer, life: Life) -> None:
        """A member that leaves in order has finished its records; after an error some are left."""
        ways = (self._read_records, self._read_records, self._read_batches, self._hold)
        try:
            while not self._is_done:
                if self.fate == "fail":
                    raise FailedError
                with self._going_on(), trio.move_on_after(self._random.choice((0.02, 0.3, 2.0))):
                    await self._random.choice(ways)(consumer, life)
            self._ledger.on_done(life.hand)
        finally:
            life.hand.clear()

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """After an error, too, unless it is over."""
        try:
            yield
        except (*GONE, FencedInstanceId):
            raise
        except RaftmqError as error:
            self._program.trace(f"{self.name} {error!r}")
            is_fine = error.retriable or isinstance(error, OutcomeUnknown)
            demand(is_fine, f"{self.name}: {error!r}")

    async def _read_records(self, consumer: Consumer, life: Life) -> None:
        while not self._is_done and not self.fate:
            self._ledger.on_done(life.hand)
            record = await anext(consumer)
            self._note(life, (record.topic, record.partition), record.offset, record.value)
            await self._maybe_work(consumer, life, record)

    async def _read_batches(self, consumer: Consumer, life: Life) -> None:
        batches = consumer.batches(max_records=self._random.choice((None, 1, 5)))
        while not self._is_done and not self.fate:
            batch = await self._next_batch(life, batches)
            await self._maybe_work(consumer, life, batch)

    async def _hold(self, consumer: Consumer, life: Life) -> None:
        """Something takes long, and goes on beside what comes next."""
        batches = consumer.batches(max_records=3)
        batch = await self._next_batch(life, batches)
        with consumer.processing(batch):
            life.held, life.hand = life.hand, []
            try:
                with trio.move_on_after(0.5):
                    await self._next_batch(life, batches)
                await trio.sleep(self._random.choice((0.0, 0.5)))
                self._ledger.on_done(life.held)
            finally:  # what is broken off is done once the next is asked for
                life.hand, life.held = life.held + life.hand, []

    async def _maybe_work(
        self, consumer: Consumer, life: Life, work: ConsumerRecord | ConsumedBatch
    ) -> None:
        if self._random.random() < self._program.group.plan.work_share:
            seconds = self._random.choice(self._program.group.plan.work_seconds)
            await trio.sleep(0.01 if self._world.is_repaired else seconds)
        draw = self._random.random()
        if draw > _BY_HAND_FROM.get(self._given["commit"], 1.0):
            self._ledger.on_done(life.hand)
            with suppress(IllegalGeneration, RebalanceInProgress, UnknownMemberId):
                await consumer.commit(work if draw < 0.95 else None)

    async def _next_batch(self, life: Life, batches: Batches) -> ConsumedBatch:
        self._ledger.on_done(life.hand)
        batch = await anext(batches)
        for offset, value in zip(batch.offsets, batch.values, strict=True):
            self._note(life, (batch.topic, batch.partition), offset, value)
        return batch

    def _note(self, life: Life, key: tuple[str, int], offset: int, value: object) -> None:
        assert isinstance(value, bytes), f"a value that nobody sends: {value!r}"
        self._ledger.on_handed_out(life, key, offset, value)
