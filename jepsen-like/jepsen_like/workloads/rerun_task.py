"""One task of the reruns workload: named producers send generations of rows until one completes.

Owns its life, and that of a run: a client and a named producer from the first row on, which is
broken off at some moment, or overtaken by the next run while it goes on. A run is recorded as one
send for each key, of all rows of the generation there, by processes of its own: ok once its block
has ended without an error, and info otherwise, as other runs may have sent the same rows.
"""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from jepsen_like.history.event import ACKS_ALL, Type
from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.keys import encode_value, key_of, split_key
from jepsen_like.workloads.sending import error_text
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.workloads.bench import Bench, Stop
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer

ROWS_MAX = 300  # of one generation
CHUNK_MAX = 30  # rows, after which a run takes a break
BREAK_SECONDS_MAX = 0.1  # so that a run is broken off between batches, too
PATIENCE_SECONDS_MAX = 3.0  # until a run is broken off or overtaken; some complete before
OVERTAKEN_CHANCE = 0.4  # that the next run begins while it goes on
GIVEN_UP_CHANCE = 0.1  # that a generation is not finished after a run was broken off
ENOUGH_CHANCE = 0.3  # that a run is left alone until it ends
LAST_RUNS_MAX = 5  # of a task, when all is well

logger = logging.getLogger(__name__)


class Row(NamedTuple):
    key: str
    value: int


class Generation(NamedTuple):
    """`rows`: in the order in which each run hands them in."""

    name: str
    number: int
    rows: Sequence[Row]

    def by_key(self) -> dict[str, list[int]]:
        values: dict[str, list[int]] = {}
        for key, value in self.rows:
            values.setdefault(key, []).append(value)
        return values


async def run_task(
    bench: Bench, stop: Stop, name: str, topics: Sequence[str], *, partitions: int
) -> None:
    """Until `stop` is set; then the current generation is finished, if possible."""
    task = Task(bench, stop, name)
    async with trio.open_nursery() as runs:
        while not stop.is_set():
            topic = task.random.choice(topics)
            await task.work_off([key_of(topic, number) for number in range(partitions)], runs)


class Task:
    def __init__(self, bench: Bench, stop: Stop, name: str) -> None:
        self._bench, self._stop, self._name = bench, stop, name
        self.random = Random(bench.random.getrandbits(64))
        self._generation = 0

    async def work_off(self, keys: Sequence[str], runs: trio.Nursery) -> None:
        """Run after run until one has completed, or the generation is given up."""
        generation, runs_left = self._draw(keys), LAST_RUNS_MAX
        while runs_left:
            runs_left -= self._stop.is_set()
            run = Run(self._bench, generation, self.random)
            runs.start_soon(run.live)
            if not await self._leave_alone(run) and self.random.random() >= OVERTAKEN_CHANCE:
                await run.break_off()
            is_wanted = self._stop.is_set() or self.random.random() >= GIVEN_UP_CHANCE
            if run.is_finished or not is_wanted:
                return
            await trio.sleep(self.random.uniform(0, BREAK_SECONDS_MAX))

    def _draw(self, keys: Sequence[str]) -> Generation:
        self._generation += self.random.choice((1, 1, 5))
        chosen = self.random.choices(keys, k=self.random.randint(1, ROWS_MAX))
        take = self._bench.keys.take_steadily
        values = {key: iter(take(key, chosen.count(key))) for key in keys}
        rows = [Row(key, next(values[key])) for key in chosen]
        return Generation(self._name, self._generation, rows)

    async def _leave_alone(self, run: Run) -> bool:
        """For a while, or for as long as it takes; whether it is over."""
        may_end = self.random.random() < ENOUGH_CHANCE
        seconds = self.random.uniform(0, PATIENCE_SECONDS_MAX)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if not may_end:
                    nursery.start_soon(self._lose_patience, scope, seconds)
                await run.is_over.wait()
                nursery.cancel_scope.cancel()
        return run.is_over.is_set()

    async def _lose_patience(self, scope: trio.CancelScope, seconds: float) -> None:
        """Unless no new runs are started any more."""
        if not await wait_stop(self._stop, seconds):
            scope.cancel()


class Run:
    """Attributes:
    is_over: it has ended, with or without an error.
    is_finished: without an error.
    """

    def __init__(self, bench: Bench, generation: Generation, random: Random) -> None:
        self._bench, self._generation = bench, generation
        self._random = Random(random.getrandbits(64))
        self._scope, self.is_over, self.is_finished = trio.CancelScope(), trio.Event(), False
        self._deliveries: list[tuple[Row, Delivery]] = []
        self._processes = {key: next(bench.numbers) for key in generation.by_key()}

    async def break_off(self) -> None:
        """As if its process had died: its connections are gone, and what it has sent may arrive."""
        self._scope.cancel()
        await self.is_over.wait()

    async def live(self) -> None:
        error = "broken off"
        for key, process in self._processes.items():
            self._bench.recorder.invoke(process, "send", self._asked(key))
        try:
            with self._scope:
                error = await self._try()
        finally:
            self._tell(error)
            self.is_over.set()

    def _asked(self, key: str) -> dict[str, object]:
        generation = self._generation
        asked = {"key": key, "acks": ACKS_ALL, "values": generation.by_key()[key]}
        label = {"name": generation.name, "generation": generation.number}
        return {**asked, **label, "is_idempotent": True}

    async def _try(self) -> str:
        """Its error; none: all rows are in the log."""
        settings, generation = self._bench.settings, self._generation
        try:
            async with self._bench.new_client(generation.name) as client:
                async with client.producer(
                    name=generation.name,
                    generation=generation.number,
                    linger_ms=self._random.choice((0, 5, 50)),
                    batch_size=self._random.choice((200, 64 << 10)),
                    request_timeout_ms=settings.request_timeout_ms,
                    delivery_timeout_ms=settings.delivery_timeout_ms,
                ) as producer:
                    await self._hand_in(producer)
                self.is_finished = True
        except RaftmqError as error:
            logger.info("run: name=%s reason=%s", generation.name, error)
            return error_text(error)
        return ""

    async def _hand_in(self, producer: Producer) -> None:
        left = self._random.randint(1, CHUNK_MAX)
        for row in self._generation.rows:
            topic, partition = split_key(row.key)
            data = encode_value(row.value, padding_bytes=self._bench.settings.padding_bytes)
            self._deliveries.append((row, await producer.enqueue(topic, data, partition=partition)))
            if (left := left - 1) == 0:
                left = self._random.randint(1, CHUNK_MAX)
                await trio.sleep(self._random.uniform(0, BREAK_SECONDS_MAX))

    def _tell(self, error: str) -> None:
        offsets = self._offsets()
        kind = Type.OK if self.is_finished else Type.INFO
        for key, values in self._generation.by_key().items():
            told = [offsets.get(Row(key, value)) for value in values]
            value = {**self._asked(key), "offsets": told, "is_repeated": False}
            self._bench.recorder.record(
                self._processes[key], kind, "send", value, error=error or None
            )
            self._bench.seen.on_sent(key, told)

    def _offsets(self) -> dict[Row, int]:
        """Of rows that this run has put there, as far as it was told; it skips the others."""
        found = {}
        for row, delivery in self._deliveries:
            try:
                offset = delivery.result().offset if delivery.is_done else -1
            except RaftmqError:
                continue
            if offset >= 0:
                found[row] = offset
        return found
