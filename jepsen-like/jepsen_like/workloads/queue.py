"""The queue workload: many senders and readers of partitions, all through the public client.

Owns the tasks of a run and the topics that it makes. Each worker does one thing after the other;
pulses write steadily; a watcher polls the cluster's state; at the end everything is read once more.
"""

from __future__ import annotations

import logging
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, QueueSettings, wait_stop
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.keys import Keys
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher
from jepsen_like.workloads.worker import run_worker
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop
    from raftmq.client.client import Client

LOOK_SECONDS = 0.5  # between checks whether another topic is needed

logger = logging.getLogger(__name__)


class QueueWorkload:
    name = "queue"

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        recorder: Recorder,
        random: Random,
        settings: QueueSettings,
    ) -> None:
        chance = Random(random.getrandbits(64))
        keys = Keys(
            Random(chance.getrandbits(64)),
            matrix=settings.acks,
            active_max=settings.active_keys_max,
            values_max=settings.values_per_key_max,
            topics_max=settings.topics_max,
        )
        self._settings, self._view = settings, LiveView()
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=chance,
            settings=settings,
            keys=keys,
            numbers=count(),
        )

    @property
    def keys(self) -> list[str]:
        """Every key that there was so far."""
        return list(self._bench.keys.everything)

    def view(self) -> View:
        return self._view

    async def prepare(self) -> None:
        """Topics for as many keys as are written to at a time.

        Raises:
            RaftmqError: the cluster, still without faults, does not make them.
        """
        replicas = {"replicas": self._settings.replication_factor}
        self._bench.recorder.record(WATCH, Type.OK, "keeps", replicas)
        async with self._bench.new_client("topics") as client:
            while (topic := self._bench.keys.next_topic()) is not None:
                await self._bench.make_topic(client, topic)

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then operations in flight are finished."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_watcher, self._bench, self._view, stop)
            if self._settings.pulses_max:
                nursery.start_soon(run_pulses, self._bench, stop)
            nursery.start_soon(self._make_topics, stop)
            nursery.start_soon(self._allow_topics, stop)
            for number in range(self._settings.processes):
                nursery.start_soon(run_worker, self._bench, stop, f"worker-{number}")

    async def final(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(self._settings.processes):
                nursery.start_soon(read_everything, self._bench, f"final-{number}")

    async def _allow_topics(self, stop: Stop) -> None:
        while not await wait_stop(stop, self._settings.topic_seconds):
            self._bench.keys.allow_another()

    async def _make_topics(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                async with self._bench.new_client("topics") as client:
                    while not await wait_stop(stop, LOOK_SECONDS):
                        if (topic := self._bench.keys.next_topic()) is not None:
                            await self._make_if_possible(client, topic)
            except RaftmqError as error:
                logger.info("topics: reason=%s", error)
                await wait_stop(stop, LOOK_SECONDS)

    async def _make_if_possible(self, client: Client, topic: str) -> None:
        """Faults may prevent it: then another name is tried, as this topic may come later."""
        try:
            await self._bench.make_topic(client, topic)
        except RaftmqError as error:
            if error.definite:
                self._bench.keys.on_refused()
            logger.info("topics: topic=%s reason=%s", topic, error)
