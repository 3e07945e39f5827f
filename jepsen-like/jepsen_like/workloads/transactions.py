"""The transactions workload: owners of transaction ids, one beside and after the other.

Owns the tasks of a run and the topics that it makes. Some owners copy the first topic to the second
as members of a group; others write to both, some of them with versions. One id more is shared:
tasks in several processes write its versions, and drivers commit them. A steady writer and readers
at both levels use the same partitions; at the end everything is read once more, when nothing is
open any more.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, QueueSettings
from jepsen_like.workloads.coordinators import watch_coordinators
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.generator import COMMITTED, UNCOMMITTED
from jepsen_like.workloads.keys import Keys, key_of
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.transaction_bench import GROUP, TransactionBench
from jepsen_like.workloads.transaction_end import look_at_the_end
from jepsen_like.workloads.transaction_owners import name_of, run_owners
from jepsen_like.workloads.version_drivers import NAME as SHARED_ID
from jepsen_like.workloads.version_drivers import run_drivers
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop

TOPICS, PARTITIONS = 2, 4
TASK_PROCESSES = 3  # that write versions of the shared transaction
READERS = (COMMITTED, COMMITTED, UNCOMMITTED)


class TransactionsWorkload:
    """
    Args:
        settings: `processes` is how many ids there are beside the shared one, `rate` that of their
            blocks together.
    """

    name = "transactions"

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
            matrix=("all",),  # transactions take no other acks
            active_max=TOPICS * PARTITIONS,
            topics_max=TOPICS,
            partitions=PARTITIONS,
        )
        topics = (keys.next_topic() for _ in range(TOPICS))
        self._topics = [topic for topic in topics if topic is not None]
        self._names = dict[bytes, str]()  # of topics, by id
        self._settings, self._view = settings, LiveView()
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=chance,
            settings=settings,
            keys=keys,
            numbers=count(),
        )
        source, target = self._topics
        self._shared = TransactionBench(
            bench=self._bench,
            input_topic=source,
            inputs=[key_of(source, number) for number in range(PARTITIONS)],
            outputs=[key_of(target, number) for number in range(PARTITIONS)],
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
                self._names[(await client.admin.describe_topic(topic)).topic_id] = topic

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then the blocks under way are ended."""
        names = [name_of(place) for place in range(self._settings.processes)]
        names.append(SHARED_ID)
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(run_watcher, self._bench, self._view, stop)
            start(watch_coordinators, self._bench, self._view, [*names, GROUP], stop)
            if self._settings.pulses_max:
                start(run_pulses, self._bench, stop)
            for number, level in enumerate(READERS):
                start(self._read, f"reader-{number}", level, stop)
            for place in range(self._settings.processes):
                start(run_owners, self._shared, place, stop)
            start(partial(run_drivers, self._shared, stop, process_count=TASK_PROCESSES))

    async def final(self) -> None:
        await look_at_the_end(self._bench, self._names)
        async with trio.open_nursery() as nursery:
            for number, level in enumerate(READERS):
                nursery.start_soon(self._read_finally, f"final-{number}", level)

    async def _read(self, name: str, level: str, stop: Stop) -> None:
        await run_reader(self._bench, stop, name, level=level)

    async def _read_finally(self, name: str, level: str) -> None:
        await read_everything(self._bench, name, level=level)

    def _random(self) -> Random:
        return Random(self._bench.random.getrandbits(64))
