"""One worker of the queue workload: a client, and on it one process after the other.

Owns the life of a process: number, producers, consumer. Some processes' producers are not
idempotent: what they had to send again may be in the log twice. A process ends with an unknown
outcome, with an error of the consumer, and with a crash; the next one has another number and makes
anew what it uses. Connections live on, except after a crash.
"""

from __future__ import annotations

import logging
import math
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import Pace, wait_stop
from jepsen_like.workloads.generator import (
    BEGINNING,
    UNCOMMITTED,
    Assign,
    Crash,
    Generator,
    Poll,
    Send,
)
from jepsen_like.workloads.keys import ACKS, acks_of, split_key
from jepsen_like.workloads.polling import perform_poll
from jepsen_like.workloads.sending import error_text, perform_send
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, Stop
    from jepsen_like.workloads.generator import Operation
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.producer.producer import Producer

ASSIGN_SECONDS_MAX = 5.0  # to make a consumer; without a leader it is tried again later
PLAIN_CHANCE = 1 / 5  # that a process has producers without idempotence
CLOSE_SECONDS_MAX = 15.0  # longer than any delivery may take
PAUSE_SECONDS = 0.5  # after a failure to connect

logger = logging.getLogger(__name__)


async def run_worker(bench: Bench, stop: Stop, name: str) -> None:
    """Until `stop` is set; then operations in flight are finished."""
    random = Random(bench.random.getrandbits(64))
    settings = bench.settings
    pace = Pace(random, settings.processes / settings.rate)
    while not stop.is_set():
        try:
            async with bench.new_client(name) as client:
                while not stop.is_set():
                    life = Life(bench, client, stop, random=random, pace=pace)
                    await life.run()
                    if life.is_crashed:
                        break
        except RaftmqError as error:
            logger.info("worker: name=%s reason=%s", name, error)
            await wait_stop(stop, PAUSE_SECONDS)


class Life:
    """Attributes:
    is_crashed: it has ended by a crash.
    """

    def __init__(
        self, bench: Bench, client: Client, stop: Stop, *, random: Random, pace: Pace
    ) -> None:
        self._bench, self._client, self._stop, self._pace = bench, client, stop, pace
        self._generator = Generator(
            random,
            bench.keys,
            bench.seen,
            now=trio.current_time(),
            crash_seconds=bench.settings.crash_seconds,
        )
        self._process = next(bench.numbers)
        self._is_idempotent = random.random() >= PLAIN_CHANCE
        self._producers: dict[int, Producer] = {}
        self.is_crashed = False

    async def run(self) -> None:
        with trio.CancelScope() as scope:
            async with AsyncExitStack() as stack:
                for name in self._bench.settings.acks_names:
                    producer = self._new_producer(name)
                    self._producers[ACKS[name]] = await stack.enter_async_context(producer)
                wanted: Assign | None = self._generator.first()
                while wanted is not None:
                    wanted = await self._read(wanted)
                scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX

    def _new_producer(self, acks: str) -> Producer:
        settings = self._bench.settings
        return self._client.producer(
            acks="all" if acks == "all" else int(acks),
            idempotence=self._is_idempotent,
            linger_ms=0,
            request_timeout_ms=settings.request_timeout_ms,
            delivery_timeout_ms=settings.delivery_timeout_ms,
        )

    async def _read(self, wanted: Assign) -> Assign | None:
        """Work with these keys to read; what to read next, None: this life is over."""
        recorder, process = self._bench.recorder, self._process
        asked = wanted.told
        recorder.invoke(process, "assign", asked)
        error, is_open = f"not open within {ASSIGN_SECONDS_MAX:g} s", False
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + ASSIGN_SECONDS_MAX
            try:
                async with new_consumer(self._client, wanted) as consumer:
                    scope.deadline, is_open = math.inf, True
                    recorder.record(process, Type.OK, "assign", asked)
                    return await self._work(consumer)
            except RaftmqError as failure:
                if is_open:
                    raise
                error = error_text(failure)
        recorder.record(process, Type.INFO, "assign", asked, error=error)
        return None

    async def _work(self, consumer: Consumer) -> Assign | None:
        while not self._stop.is_set():
            await self._pace.wait()
            operation = self._generator.next(now=trio.current_time())
            if isinstance(operation, Assign):
                return operation
            if not await self._perform(operation, consumer):
                return None
        return None

    async def _perform(self, operation: Operation, consumer: Consumer) -> bool:
        """Whether this life goes on."""
        bench, process = self._bench, self._process
        match operation:
            case Send():
                producer = self._producers[acks_of(operation.key)]
                kind = await perform_send(
                    bench, process, producer, operation, is_idempotent=self._is_idempotent
                )
                return kind is not Type.INFO
            case Poll():
                return await perform_poll(bench, process, consumer)
            case Crash():
                bench.recorder.invoke(process, "crash")
                bench.recorder.record(process, Type.INFO, "crash")
                self.is_crashed = True
        return False


def new_consumer(client: Client, wanted: Assign) -> Consumer:
    options: dict[str, Any] = {"auto_offset_reset": "none"}
    if wanted.level == UNCOMMITTED:
        options["isolation_level"] = "read_uncommitted"
    return client.consumer(
        assign=[split_key(key) for key in wanted.keys],
        start="earliest" if wanted.start == BEGINNING else "latest",
        **options,
    )
