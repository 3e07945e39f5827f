"""Pulses: keys that are written to steadily, so that each gap shows the effect of a fault.

Owns their rhythm. A pulse is a process of sends alone, one at a time; after an unknown outcome it
has another number and another producer. All of them share one client.
"""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.generator import Send
from jepsen_like.workloads.sending import perform_send
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, Stop
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer

VALUES_MIN, VALUES_MAX = 5, 10
CLOSE_SECONDS_MAX = 15.0
PAUSE_SECONDS = 0.5  # after a failure to connect, or where no key is to be had

logger = logging.getLogger(__name__)


async def run_pulses(bench: Bench, stop: Stop) -> None:
    """Until `stop` is set; then operations in flight are finished."""
    while not stop.is_set():
        try:
            async with bench.new_client("pulse") as client, trio.open_nursery() as nursery:
                for _ in range(bench.settings.pulses_max):
                    nursery.start_soon(Pulse(bench, client, stop).run)
        except* RaftmqError as group:
            logger.info("pulse: reason=%s", group)
        await wait_stop(stop, PAUSE_SECONDS)


class Pulse:
    def __init__(self, bench: Bench, client: Client, stop: Stop) -> None:
        self._bench, self._client, self._stop = bench, client, stop
        self._random = Random(bench.random.getrandbits(64))
        self._key: str | None = None

    async def run(self) -> None:
        while not self._stop.is_set():
            with trio.CancelScope() as scope:
                async with self._new_producer() as producer:
                    await self._beat(next(self._bench.numbers), producer)
                    scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX

    def _new_producer(self) -> Producer:
        settings = self._bench.settings
        return self._client.producer(
            acks="all",
            linger_ms=0,
            request_timeout_ms=settings.pulse_request_timeout_ms,
            delivery_timeout_ms=settings.delivery_timeout_ms,
        )

    async def _beat(self, process: int, producer: Producer) -> None:
        """Until an outcome is unknown."""
        bench, next_at = self._bench, trio.current_time()
        while not self._stop.is_set():
            self._key = bench.keys.pulse_key(self._key)
            if self._key is None:
                await wait_stop(self._stop, PAUSE_SECONDS)
                continue
            count = self._random.randint(VALUES_MIN, VALUES_MAX)
            operation = Send(self._key, bench.keys.take_steadily(self._key, count))
            if await perform_send(bench, process, producer, operation) is Type.INFO:
                return
            next_at = max(next_at + bench.settings.pulse_seconds, trio.current_time())
            await trio.sleep_until(next_at)
