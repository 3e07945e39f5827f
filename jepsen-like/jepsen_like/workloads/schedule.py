"""The schedule workload: records that are to be delivered later, of which some are cancelled.

Owns the tasks of a run and the topics that it makes. A pulse writes to the same partitions; readers
read all along, and go on for some seconds, in which much of the rest is due; then everything
is read once more, and leaders are asked what is left.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, QueueSettings, WallClock
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.keys import Keys, key_of
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.schedule_plan import Dues
from jepsen_like.workloads.schedule_process import run_scheduler
from jepsen_like.workloads.sending import error_text
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop

TOPICS, PARTITIONS = 2, 3
READERS = 2  # of all keys
# After the last due time that is waited for: longer than the grace of the checker.
GRACE_SECONDS = 3.0
# After the last send: what is due then must come; what is due later must be kept.
DUE_SECONDS_MAX = 8.0
PENDING_SECONDS_MAX, PENDING_MAX = 20.0, 1_000_000


class ScheduleWorkload:
    """
    Args:
        settings: `processes` is how many clients schedule records.
    """

    name = "schedule"

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
            matrix=("all",),  # what fewer have may be lost before it is due
            active_max=TOPICS * PARTITIONS,
            topics_max=TOPICS,
            partitions=PARTITIONS,
        )
        topics = (keys.next_topic() for _ in range(TOPICS))
        self._topics = [topic for topic in topics if topic is not None]
        self._settings, self._view, self._dues = settings, LiveView(), Dues()
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=chance,
            settings=settings,
            keys=keys,
            numbers=count(),
            wall_clock=WallClock(recorder),
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
        """Until `stop` is set; then nothing more is scheduled; readers go on for some seconds."""
        settings, all_due = self._settings, trio.Event()
        async with trio.open_nursery() as readers:
            for number in range(READERS):
                readers.start_soon(run_reader, self._bench, all_due, f"reader-{number}")
            async with trio.open_nursery() as nursery:
                start = nursery.start_soon
                start(run_watcher, self._bench, self._view, stop)
                if settings.pulses_max:
                    start(run_pulses, self._bench, stop)
                for number in range(settings.processes):
                    name, rate = f"scheduler-{number}", settings.rate / settings.processes
                    start(partial(run_scheduler, self._bench, stop, name, self._dues, rate=rate))
            left = self._dues.last - self._bench.recorder.seconds
            await trio.sleep(min(max(0.0, left), DUE_SECONDS_MAX) + GRACE_SECONDS)
            all_due.set()

    async def final(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(READERS):
                nursery.start_soon(read_everything, self._bench, f"final-{number}")
        await self._ask_pending()

    async def _ask_pending(self) -> None:
        """What is left to be delivered, by the leaders."""
        found: dict[str, list[int]] = {key: [] for key in self._bench.keys.everything}
        record = self._bench.recorder.record
        try:
            async with self._bench.new_client("pending") as client:
                admin = client.admin.with_timeout(PENDING_SECONDS_MAX)
                for topic in self._topics:
                    listed = await admin.scheduled(topic, limit=PENDING_MAX)
                    assert listed.is_complete, "a run schedules fewer"
                    for one in listed.records:
                        key = key_of(topic, one.handle.partition)
                        found[key].append(one.handle.offset)
        except RaftmqError as error:
            record(WATCH, Type.FAIL, "pending", error=error_text(error))
        else:
            record(WATCH, Type.OK, "pending", {"keys": list(found.items())})
