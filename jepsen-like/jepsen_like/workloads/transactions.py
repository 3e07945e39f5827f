"""The transactions workload: owners of transaction ids, one beside and after the other.

Owns the tasks of a run and the topics that it makes. Some owners copy the first topic to the second
as members of a group; others write to both, some of them with versions. A steady writer and readers
at both levels use the same partitions; at the end everything is read once more, when nothing is
open any more.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, Pace, QueueSettings, wait_stop
from jepsen_like.workloads.coordinators import watch_coordinators
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.generator import COMMITTED, UNCOMMITTED
from jepsen_like.workloads.keys import Keys, key_of
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.transaction_bench import GROUP, TransactionBench
from jepsen_like.workloads.transaction_end import look_at_the_end
from jepsen_like.workloads.transaction_owner import Owner
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop

TOPICS, PARTITIONS = 2, 4
READERS = (COMMITTED, COMMITTED, UNCOMMITTED)
BLOCKS_MAX = 200  # of one owner: then another producer opens the id in order
COPYING, VERSIONS = 0, 1  # of three places, what the first and the second do
# Each life of one is another member: with more of them, the group does nothing but rebalance.
COPYING_MAX = 3
TOPIC_SECONDS_MAX = 10.0  # to create a topic in a healthy cluster
PAUSE_SECONDS = 0.2  # until the next owner begins


class TransactionsWorkload:
    """
    Args:
        settings: `processes` is how many ids there are, `rate` that of their blocks together.
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
        settings = self._settings
        replicas = {"replicas": settings.replication_factor}
        self._bench.recorder.record(WATCH, Type.OK, "keeps", replicas)
        async with self._bench.new_client("topics") as client:
            admin = client.admin.with_timeout(TOPIC_SECONDS_MAX)
            for topic in self._topics:
                await admin.create_topic(
                    topic,
                    partitions=PARTITIONS,
                    replication_factor=settings.replication_factor,
                    config={"min.insync.replicas": settings.min_insync_replicas},
                )
                self._names[(await admin.describe_topic(topic)).topic_id] = topic
                self._bench.keys.on_made(topic)

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then the blocks under way are ended."""
        names = [self._name(place) for place in range(self._settings.processes)]
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(self._new_watcher().run, stop)
            start(watch_coordinators, self._bench, self._view, [*names, GROUP], stop)
            if self._settings.pulses_max:
                start(run_pulses, self._bench, stop)
            for number, level in enumerate(READERS):
                start(self._read, f"reader-{number}", level, stop)
            for place in range(self._settings.processes):
                start(self._run_owners, place, stop)

    async def final(self) -> None:
        await look_at_the_end(self._bench, self._names)
        async with trio.open_nursery() as nursery:
            for number, level in enumerate(READERS):
                nursery.start_soon(self._read_finally, f"final-{number}", level)

    async def _read(self, name: str, level: str, stop: Stop) -> None:
        await run_reader(self._bench, stop, name, level=level)

    async def _read_finally(self, name: str, level: str) -> None:
        await read_everything(self._bench, name, level=level)

    # -- owners ----------------------------------------------------------------------------

    @staticmethod
    def _is_copying(place: int) -> bool:
        return place % 3 == COPYING and place < 3 * COPYING_MAX

    def _name(self, place: int) -> str:
        return f"{'copy' if self._is_copying(place) else 'block'}-{place}"

    async def _run_owners(self, place: int, stop: Stop) -> None:
        """One after the other; one that wants to be overtaken goes on beside its successor."""
        pace = Pace(self._random(), self._settings.processes / self._settings.rate)
        before: Owner | None = None
        async with trio.open_nursery() as lives:
            while not stop.is_set():
                owner = Owner(
                    self._shared,
                    self._name(place),
                    pace,
                    is_copying=self._is_copying(place),
                    has_versions=place % 3 == VERSIONS,
                    blocks_max=BLOCKS_MAX,
                )
                lives.start_soon(owner.live, stop)
                await owner.has_opened.wait()
                if before is not None:
                    before.successor_opened.set()
                before = owner
                await owner.wants_next.wait()
                await wait_stop(stop, PAUSE_SECONDS)
            if before is not None:
                before.successor_opened.set()

    def _new_watcher(self) -> Watcher:
        return Watcher(
            self._bench.bootstrap,
            self._bench.recorder,
            self._view,
            random=self._random(),
            numbers=self._bench.numbers,
            keys=lambda: tuple(self._bench.keys.active),
        )

    def _random(self) -> Random:
        return Random(self._bench.random.getrandbits(64))
