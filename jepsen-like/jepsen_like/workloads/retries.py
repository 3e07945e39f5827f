"""The retries workload: groups that move what fails to topics of retries, or to dead letters.

Owns the tasks of a run and the topics that it makes. In half of the runs the SDK makes those of
retries and dead letters, when the first record fails: it has to wait for all brokers. Three groups
read all that senders write: by hand, with `process`, and exactly once; their members join, leave,
crash, are slow, or are heard late. At the end fresh members go on until each group has done all;
then letters and results are read whole.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import (
    TOPIC_SECONDS_MAX,
    Bench,
    QueueSettings,
    WallClock,
    wait_stop,
)
from jepsen_like.workloads.coordinators import watch_coordinators
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.group_plan import End, Fate, draw_fate
from jepsen_like.workloads.keys import Keys, key_of
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.retry_bench import RESULTS, RetryBench
from jepsen_like.workloads.retry_end import tell_letters, tell_results, wait_done
from jepsen_like.workloads.retry_member import RetryLife
from jepsen_like.workloads.retry_plan import (
    ATTEMPTS,
    LOOP_CHANCE,
    Way,
    draw_retry_groups,
    pauses_min,
)
from jepsen_like.workloads.retry_transactions import handle_exactly_once, handle_in_loop
from jepsen_like.workloads.retry_ways import handle_by_hand, handle_in_process
from jepsen_like.workloads.senders import run_sender
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher
from raftmq.client.dead_letters.letters import dead_letter_topic, retry_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.retry_member import Work
    from jepsen_like.workloads.retry_plan import RetryGroup
    from raftmq.client.client import Client

TOPICS, PARTITIONS = 2, 3
MADE_CHANCE = 1 / 2  # that the topics of retries and dead letters are there before
MOVED_PARTITIONS = 2  # of these
SENDERS = 2
LIFE_SECONDS = 20.0  # of a member, on the average: a minute has many rebalances, and calm between
REBIRTH_SECONDS_MAX = 3.0  # until the next life begins, below and above a rebalance's duration
FINAL_PAUSE_SECONDS = 0.5  # before the next final life, if one has failed
JOIN_SECONDS_MAX = 10.0  # for a final life to get its partitions

WORK: dict[Way, Work] = {
    Way.BY_HAND: handle_by_hand,
    Way.PROCESS: handle_in_process,
    Way.EXACTLY_ONCE: handle_exactly_once,
}


class RetriesWorkload:
    """
    Args:
        settings: of the senders; `processes` is how many members there are, of all groups.
    """

    name = "retries"

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        recorder: Recorder,
        random: Random,
        settings: QueueSettings,
        *,
        life_seconds: float = LIFE_SECONDS,
    ) -> None:
        chance = Random(random.getrandbits(64))
        keys = Keys(
            Random(chance.getrandbits(64)),
            matrix=("all",),  # what fewer have may be lost before it is handled
            active_max=TOPICS * PARTITIONS,
            topics_max=TOPICS,
            partitions=PARTITIONS,
        )
        topics = (keys.next_topic() for _ in range(TOPICS))
        self._topics = [topic for topic in topics if topic is not None]
        self._settings, self._view, self._life_seconds = settings, LiveView(), life_seconds
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=chance,
            settings=settings,
            keys=keys,
            numbers=count(),
            wall_clock=WallClock(recorder),
        )
        self._shared = RetryBench(bench=self._bench, topics=self._topics)
        self.groups = draw_retry_groups(self._random())
        self._makes_all = self._random().random() < MADE_CHANCE

    def view(self) -> View:
        return self._view

    async def prepare(self) -> None:
        """Topics, and what groups there will be.

        Raises:
            RaftmqError: the cluster, still without faults, does not make them.
        """
        recorder = self._bench.recorder
        replicas = {"replicas": self._settings.replication_factor}
        recorder.record(WATCH, Type.OK, "keeps", replicas)
        async with self._bench.new_client("topics") as client:
            for topic in self._topics:
                await self._bench.make_topic(client, topic)
            await self._make_topic(client, RESULTS, partitions=PARTITIONS)
            for group in self.groups if self._makes_all else ():
                for topic in (retry_topic(group.name), dead_letter_topic(group.name)):
                    await self._make_topic(client, topic, partitions=MOVED_PARTITIONS)
        keys = [key_of(topic, number) for topic in self._topics for number in range(PARTITIONS)]
        for group in self.groups:
            told = {"group": group.name, "keys": keys, "attempts": ATTEMPTS, "pauses": pauses_min()}
            told["is_exactly_once"] = group.way is Way.EXACTLY_ONCE
            told |= {"can_reject": group.can_reject, "commit": group.commit}
            recorder.record(WATCH, Type.OK, "retry-group", told)

    async def _make_topic(self, client: Client, topic: str, *, partitions: int) -> None:
        """One that senders do not write to."""
        await client.admin.with_timeout(TOPIC_SECONDS_MAX).create_topic(
            topic,
            partitions=partitions,
            replication_factor=self._settings.replication_factor,
            config={"min.insync.replicas": self._settings.min_insync_replicas},
        )

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then operations in flight are finished, and members leave."""
        settings, names = self._settings, [group.name for group in self.groups]
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(run_watcher, self._bench, self._view, stop)
            start(watch_coordinators, self._bench, self._view, names, stop)
            start(run_reader, self._bench, stop, "reader")
            for number in range(SENDERS):
                rate = settings.rate / SENDERS
                start(partial(run_sender, self._bench, stop, f"sender-{number}", rate=rate))
            if settings.pulses_max:
                start(run_pulses, self._bench, stop)
            for place in range(settings.processes):
                start(self._run_lives, place, stop)

    async def final(self) -> None:
        """Every group to its end; then all is read once more."""
        async with trio.open_nursery() as nursery:
            for group in self.groups:
                nursery.start_soon(self._come_to_the_end, group)
        await read_everything(self._bench, "final")
        for group in self.groups:
            await tell_letters(self._bench, group)
            if group.way is Way.EXACTLY_ONCE:
                await tell_results(self._bench, group)

    # -- members ---------------------------------------------------------------------------

    async def _run_lives(self, place: int, stop: Stop) -> None:
        group, random = self.groups[place % len(self.groups)], self._random()
        for life in count(1):
            if stop.is_set():
                return
            fate, work = draw_fate(random, life_seconds=self._life_seconds), WORK[group.way]
            if group.way is Way.EXACTLY_ONCE and random.random() < LOOP_CHANCE:
                work = handle_in_loop
            name = f"{group.name}/{place}.{life}"
            await RetryLife(self._shared, group, name).run(stop, fate, work)
            await wait_stop(stop, random.uniform(0, REBIRTH_SECONDS_MAX))

    async def _come_to_the_end(self, group: RetryGroup) -> None:
        """Members without faults, until the group has done all or the time is over."""
        stop = trio.Event()
        deadline = trio.current_time() + self._settings.final_seconds
        async with trio.open_nursery() as nursery:
            for place in range(max(1, self._settings.processes // len(self.groups))):
                nursery.start_soon(self._run_final_lives, group, place, stop)
            await wait_done(self._bench, group, deadline=deadline)
            stop.set()

    async def _run_final_lives(self, group: RetryGroup, place: int, stop: Stop) -> None:
        well = Fate(self._settings.final_seconds + JOIN_SECONDS_MAX, End.LEAVE)
        for life in count(1):
            if stop.is_set():
                return
            name = f"{group.name}/final-{place}.{life}"
            await RetryLife(self._shared, group, name).run(stop, well, WORK[group.way])
            await wait_stop(stop, FINAL_PAUSE_SECONDS)

    def _random(self) -> Random:
        return Random(self._bench.random.getrandbits(64))
