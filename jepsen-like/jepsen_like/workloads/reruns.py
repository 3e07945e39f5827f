"""The reruns workload: named producers that send the same rows until a run completes.

Owns the tasks of a run and the topics that it makes. Pulses write to the same partitions, so that
rows are among other records and each gap shows a fault; readers read all along; at the end
everything is read once more.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, QueueSettings
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.keys import Keys
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.rerun_task import run_task
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop

TOPICS, PARTITIONS = 2, 3
READERS = 2  # of all keys, for the order that clients see while runs overlap


class RerunsWorkload:
    """
    Args:
        settings: `processes` is how many tasks there are.
    """

    name = "reruns"

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
            matrix=("all",),  # a name takes no other acks
            active_max=TOPICS * PARTITIONS,
            topics_max=TOPICS,
            partitions=PARTITIONS,
        )
        topics = (keys.next_topic() for _ in range(TOPICS))
        self._topics = [topic for topic in topics if topic is not None]
        self._settings, self._view = settings, LiveView()
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=chance,
            settings=settings,
            keys=keys,
            numbers=count(),
        )

    def view(self) -> View:
        return self._view

    async def prepare(self) -> None:
        """Raises RaftmqError: the cluster, still without faults, does not make the topics."""
        replicas = {"replicas": self._settings.replication_factor}
        self._bench.recorder.record(WATCH, Type.OK, "keeps", replicas)
        async with self._bench.new_client("topics") as client:
            for topic in self._topics:
                await self._bench.make_topic(client, topic)

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then operations in flight are finished."""
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(run_watcher, self._bench, self._view, stop)
            if self._settings.pulses_max:
                start(run_pulses, self._bench, stop)
            for number in range(READERS):
                start(run_reader, self._bench, stop, f"reader-{number}")
            for number in range(self._settings.processes):
                task = partial(run_task, self._bench, stop, f"task-{number}", self._topics)
                start(partial(task, partitions=PARTITIONS))

    async def final(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(READERS):
                nursery.start_soon(read_everything, self._bench, f"final-{number}")
