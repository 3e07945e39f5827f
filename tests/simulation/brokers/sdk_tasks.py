"""Simulated tasks of named producers: runs of the same rows until one ends without an error.

Run after run of one generation, each on a machine of its own, broken off at some moment, by an
error of the program or with its machine, or overtaken while it goes on. The promises are judged by
`task_ledger.py` and `task_logs.py`.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import ProducerFenced, RaftmqError, ReplayMismatch
from tests.simulation.brokers.sdk_clients import HEALED_SECONDS_MAX, SdkProgram
from tests.simulation.brokers.task_ledger import TaskLedger
from tests.simulation.raft.checks import Violation, demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.producer.batch import BatchMetadata
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer
    from tests.simulation.brokers.task_ledger import Generation, Row
    from tests.simulation.brokers.task_plan import TaskPlan
    from tests.simulation.brokers.world import World

KEYS = (None, b"", b"k")
CHUNK_MAX = 20
PAUSE_SHARE = 0.3  # of steps after which a run takes a break


class SdkTask(SdkProgram):
    """One generation after the other.

    Attributes:
        succession: a fault wants the next run to begin now, while this one goes on.
        gives_up: it wants that one to be of the next generation.
    """

    def __init__(self, world: World, number: int, plan: TaskPlan) -> None:
        super().__init__(world, f"t{number}")
        self.ledger, self.plan = TaskLedger(world, self.name), plan
        self.succession, self.gives_up = trio.Event(), False

    async def run(self) -> None:
        async with trio.open_nursery() as runs:
            while not self.world.is_closing:
                if topics := self._topics():
                    await self._work_off(self._draw(topics), runs)
                await self._think()  # also where there is no topic

    def _topics(self) -> list[str]:
        """That can be written under a name, and keep what was written."""
        return [
            topic
            for topic in self.world.living_topics()
            if (plan := self.world.topic_plans[topic]).configs["record.format"] == "columns"
            and not plan.expires
        ]

    def _draw(self, topics: list[str]) -> Generation:
        topic = self._random.choice(topics)
        return self.ledger.draw(self._random, topic, self.plan.rows_max)

    async def _work_off(self, generation: Generation, runs: trio.Nursery) -> None:
        """Until a run has completed, the generation is given up, or the topic is gone."""
        while not generation.is_finished and generation.topic not in self.world.deleted:
            run = Run(self, generation)
            runs.start_soon(run.live)
            await self._leave_alone(run)
            if not run.is_over.is_set():
                await self._break_off(run)
            wants_to = self._random.random() < self.plan.give_up_share or self.gives_up
            self.gives_up = False
            if wants_to and not self.world.is_repaired:
                return
            await trio.sleep(self._random.choice(self.plan.break_seconds))

    async def _leave_alone(self, run: Run) -> None:
        """For a while; when all is well, for as long as it takes."""
        self.succession = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lose_patience, nursery.cancel_scope)
            nursery.start_soon(self._wait_succession, nursery.cancel_scope)
            await run.is_over.wait()
            nursery.cancel_scope.cancel()

    async def _lose_patience(self, scope: trio.CancelScope) -> None:
        await trio.sleep(self._random.choice(self.plan.patience))
        if not self.world.is_repaired:
            scope.cancel()
            return
        await trio.sleep(2 * HEALED_SECONDS_MAX)
        raise Violation(f"{self.name}: a run does not come to its end, though all is well")

    async def _wait_succession(self, scope: trio.CancelScope) -> None:
        await self.succession.wait()
        scope.cancel()

    async def _break_off(self, run: Run) -> None:
        draw = self._random.random()
        if self.succession.is_set() or draw < self.plan.overlap_share:
            self.trace(f"{run} is overtaken")
        elif draw < (1 + self.plan.overlap_share) / 2:
            await run.cancel()
        else:
            self.world.network.isolate(run.machine)
            await run.cancel()

    def draw_options(self) -> dict[str, Any]:
        choose = self._random.choice
        return {
            "linger_ms": choose((0, 5, 50)),
            "batch_size": choose((100, 1000, 64 << 10)),
            "max_request_size": choose((1000, 64 << 10)),
            "compression": choose((None, None, "gzip")),
            "retries": choose((None, None, None, 2)),
            "retry_backoff_ms": choose((10, 100)),
            "request_timeout_ms": choose((300, 2000, 10_000)),
            "delivery_timeout_ms": choose((3000, 20_000)),
        }


class Run:
    """Of one generation, from its first row on.

    Attributes:
        machine: another one for each run.
        is_over: however it has ended.
        overtaken: runs that were fenced when this one began.
    """

    def __init__(self, task: SdkTask, generation: Generation) -> None:
        self._task, self._world, self._random = task, task.world, task._random
        self._ledger, self.generation = task.ledger, generation
        self.machine = f"{task.name}.{self._ledger.runs}"
        self._options = task.draw_options()
        self._steps = self._random.choice((1, 5, CHUNK_MAX))
        self._scope, self.is_over = trio.CancelScope(), trio.Event()
        self._producer: Producer | None = None
        self._waiting: list[tuple[Row, Delivery, bool]] = []
        self.overtaken = [run for run in self._ledger.under_way if run.is_fenced]
        rows = {spot: generation.of(spot) for spot in generation.spots}
        self._history = self._world.history.on_run(generation.label, rows)
        self._ledger.begin(self)
        task.trace(f"{self} {len(generation.rows)} rows {self._options}")

    def __str__(self) -> str:
        return f"{self.machine} of {tuple(self.generation.label)} in {self.generation.topic}"

    @property
    def is_connected(self) -> bool:
        return self._producer is not None

    @property
    def is_fenced(self) -> bool:
        """Earlier producers of the name write no more."""
        if self._producer is None:
            return False
        topic = self._producer._accumulator.topics.get(self.generation.topic)
        return topic is not None and topic.fences is not None and topic.fences.is_complete

    @property
    def _is_late(self) -> bool:
        return any(
            self in run.overtaken and run.is_fenced
            for run in self._ledger.under_way
            if run.generation.topic == self.generation.topic
        )

    async def cancel(self) -> None:
        self._scope.cancel()
        await self.is_over.wait()

    async def live(self) -> None:
        told = "broken off"
        try:
            with self._scope:
                told = await self._try()
        finally:
            self._take_down(told)
            self._ledger.end(self)
            self.is_over.set()

    async def _try(self) -> str:
        """Why it has ended; nothing: all rows stand there."""
        label = self.generation.label
        try:
            async with self._task._client(self.machine) as client:
                self._producer = client.producer(**label._asdict(), **self._options)
                async with self._producer:
                    await self._hand_in_all()
                self._finish()
        except RaftmqError as error:
            demand(not isinstance(error, ReplayMismatch), f"{self}: {error!r}")
            self._ledger.refused += isinstance(error, ProducerFenced)
            return repr(error)
        return ""

    def _finish(self) -> None:
        self.generation.is_finished = True
        self._settle()
        demand(not self._waiting, f"{self}: has ended, and nobody knows of {self._waiting[:1]}")

    def _take_down(self, told: str) -> None:
        self._task.trace(f"{self}: {told or 'finished'}")
        with suppress(RaftmqError):
            self._settle()
        self._history.on_end(told)

    # Handing in

    async def _hand_in_all(self) -> None:
        rows = iter(self.generation.rows)
        await trio.sleep(self._random.choice(self._task.plan.break_seconds))
        while chunk := list(islice(rows, self._random.randint(1, self._steps))):
            await self._random.choice((self._enqueue, self._enqueue, self._send_columns))(chunk)
            if self._random.random() < PAUSE_SHARE:
                await trio.sleep(self._random.choice(self._task.plan.break_seconds))

    async def _enqueue(self, rows: list[Row]) -> None:
        """Now and then the task waits for its outcome."""
        assert self._producer is not None
        for row in rows:
            is_late = self._is_late
            delivery = await self._producer.enqueue(
                row.spot.topic, row.value, key=key_of(row), partition=row.spot.partition
            )
            self._waiting.append((row, delivery, is_late))
        if self._random.random() < 0.3:
            await delivery
            self._settle()

    async def _send_columns(self, rows: list[Row]) -> None:
        assert self._producer is not None
        is_late = self._is_late
        told = await self._producer.send_columns(
            self.generation.topic,
            values=[row.value for row in rows],
            keys=[key_of(row) for row in rows],
            partitions=[row.spot.partition for row in rows],
        )
        for row, offset in _placed(rows, told):
            self._on_told(row, offset, is_late=is_late)

    # Being told

    def _settle(self) -> None:
        """The outcomes by now of rows without a wait.

        Raises:
            RaftmqError: the outcome of one: the run must not be taken for finished.
        """
        known = [one for one in self._waiting if one[1].is_done]
        self._waiting = [one for one in self._waiting if not one[1].is_done]
        errors = []
        for row, delivery, is_late in known:
            try:
                self._on_told(row, delivery.result().offset, is_late=is_late)
            except RaftmqError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _on_told(self, row: Row, offset: int, *, is_late: bool) -> None:
        if offset >= 0:  # others were skipped
            self._ledger.on_told(self, row, offset, is_late=is_late)
            self._history.on_row(row.spot, row.index, offset)


def key_of(row: Row) -> bytes | None:
    """The same in each run."""
    return KEYS[row.index % len(KEYS)]


def _placed(rows: list[Row], told: list[BatchMetadata]) -> Iterator[tuple[Row, int]]:
    """Rows, and their offsets; -1 of those that were skipped."""
    offsets: dict[int, list[int]] = {}
    for run in told:
        base, step = run.base_offset, 0 if run.is_skipped else 1
        found = [base + step * number for number in range(run.record_count)]
        offsets.setdefault(run.partition, []).extend(found)
    for row in rows:
        yield row, offsets[row.spot.partition].pop(0)
