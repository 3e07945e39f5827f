"""Senders of the groups workload: rising values to keys, at a pace.

A sender is a process of sends alone; after an unknown outcome it has another number and other
producers. Some of them are not idempotent.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import Pace, wait_stop
from jepsen_like.workloads.generator import Send
from jepsen_like.workloads.keys import ACKS, acks_of
from jepsen_like.workloads.sending import perform_send
from jepsen_like.workloads.worker import CLOSE_SECONDS_MAX, PAUSE_SECONDS, PLAIN_CHANCE
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, Stop
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer

VALUES_MAX = 4

logger = logging.getLogger(__name__)


async def run_sender(bench: Bench, stop: Stop, name: str, *, rate: float) -> None:
    """Until `stop` is set; then operations in flight are finished.

    Args:
        rate: sends a second.
    """
    random = Random(bench.random.getrandbits(64))
    pace = Pace(random, 1 / rate)
    while not stop.is_set():
        try:
            async with bench.new_client(name) as client:
                while not stop.is_set():
                    await _Sender(bench, client, stop, random, pace).run()
        except RaftmqError as error:
            logger.info("sender: name=%s reason=%s", name, error)
            await wait_stop(stop, PAUSE_SECONDS)


class _Sender:
    def __init__(
        self, bench: Bench, client: Client, stop: Stop, random: Random, pace: Pace
    ) -> None:
        self._bench, self._client, self._stop = bench, client, stop
        self._random, self._pace = random, pace
        self._is_idempotent = random.random() >= PLAIN_CHANCE

    async def run(self) -> None:
        """Until an outcome is unknown."""
        with trio.CancelScope() as scope:
            async with AsyncExitStack() as stack:
                producers = {
                    ACKS[name]: await stack.enter_async_context(self._new_producer(name))
                    for name in self._bench.settings.acks_names
                }
                await self._send(next(self._bench.numbers), producers)
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

    async def _send(self, process: int, producers: dict[int, Producer]) -> None:
        bench = self._bench
        while not self._stop.is_set():
            await self._pace.wait()
            key = self._random.choice(bench.keys.active)
            values = bench.keys.take_steadily(key, self._random.randint(1, VALUES_MAX))
            kind = await perform_send(
                bench,
                process,
                producers[acks_of(key)],
                Send(key, values),
                is_idempotent=self._is_idempotent,
            )
            if kind is Type.INFO:
                return
