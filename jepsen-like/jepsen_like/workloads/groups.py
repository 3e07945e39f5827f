"""The groups workload: consumer groups whose members join, leave, crash, idle and are cut off.

Owns the tasks of a run: senders of rising values, members one life after the other, one task that
fetches committed offsets, and one that watches coordinators. At the end fresh members read on until
their group has reached the end of every partition.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import Bench, QueueSettings, wait_stop
from jepsen_like.workloads.coordinators import watch_coordinators
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.group_bench import GroupBench
from jepsen_like.workloads.group_member import MemberLife
from jepsen_like.workloads.group_plan import End, Fate, draw_fate, draw_groups
from jepsen_like.workloads.keys import Keys, key_of, split_key
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.senders import run_sender
from jepsen_like.workloads.view import LiveView
from jepsen_like.workloads.watcher import run_watcher
from jepsen_like.workloads.witness import Notes
from raftmq.client.administration.groups.committed import fetch_offsets
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.machines import View
    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.group_plan import GroupPlan

TOPICS, PARTITIONS = 3, 3
GROUPS = 2  # of all members together: one that mixes topics, one more commit mode
SENDERS = 2
LIFE_SECONDS = 20.0  # of a member, on the average: a minute has many rebalances, and calm between
REBIRTH_SECONDS_MAX = 3.0  # until the next life begins, below and above a rebalance's duration
LOOK_SECONDS = 0.5  # between two fetches of a group's committed offsets
ANSWER_SECONDS_MAX = 2.0  # for one of them
JOIN_SECONDS_MAX = 10.0  # for a final life to get its partitions
ENDS_SECONDS_MAX = 10.0  # for the leaders to say where partitions end

logger = logging.getLogger(__name__)


class GroupsWorkload:
    """
    Args:
        settings: of the senders; `processes` is how many members there are, of all groups.
    """

    name = "groups"

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        recorder: Recorder,
        random: Random,
        settings: QueueSettings,
        *,
        life_seconds: float = LIFE_SECONDS,
    ) -> None:
        self._recorder, self._settings, self._life_seconds = recorder, settings, life_seconds
        self._random = Random(random.getrandbits(64))
        self._numbers, self._view = count(), LiveView()
        keys = Keys(
            self._new_random(),
            matrix=settings.acks,
            active_max=TOPICS * PARTITIONS,
            topics_max=TOPICS,
            partitions=PARTITIONS,
        )
        topics = _topics(keys)
        self.plans = draw_groups(self._new_random(), topics, count=GROUPS)
        self._topics, self._names = topics, dict[bytes, str]()
        group_keys = {plan.name: _keys_of(plan) for plan in self.plans}
        self._bench = Bench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=self._random,
            settings=settings,
            keys=keys,
            numbers=self._numbers,
        )
        self._groups = GroupBench(
            bootstrap=bootstrap,
            recorder=recorder,
            random=self._random,
            notes=Notes(recorder, self._names, group_keys),
        )

    def view(self) -> View:
        return self._view

    async def prepare(self) -> None:
        """Topics, and what groups there will be.

        Raises:
            RaftmqError: the cluster, still without faults, does not make them.
        """
        replicas = {"replicas": self._settings.replication_factor}
        self._recorder.record(WATCH, Type.OK, "keeps", replicas)
        async with self._bench.new_client("topics") as client:
            for topic in self._topics:
                await self._bench.make_topic(client, topic)
                details = await client.admin.describe_topic(topic)
                self._names[details.topic_id] = topic
        for plan in self.plans:
            told = {"group": plan.name, "keys": _keys_of(plan), "commit": plan.commit}
            self._recorder.record(WATCH, Type.OK, "group", {**told, "assignor": plan.assignor})

    async def run(self, stop: Stop) -> None:
        """Until `stop` is set; then operations in flight are finished, and members leave."""
        async with trio.open_nursery() as nursery:
            start = nursery.start_soon
            start(run_watcher, self._bench, self._view, stop)
            start(watch_coordinators, self._bench, self._view, self._group_names(), stop)
            for number in range(SENDERS):
                rate = self._settings.rate / SENDERS
                name = f"sender-{number}"
                start(partial(run_sender, self._bench, stop, name, rate=rate))
            if self._settings.pulses_max:
                start(run_pulses, self._bench, stop)
            for plan in self.plans:
                start(self._ask_for_offsets, plan, stop)
            for place in range(self._settings.processes):
                start(self._run_lives, place, stop)

    async def final(self) -> None:
        """Every group to the ends of its partitions; then everything is read once more."""
        ends = await self._find_ends()
        async with trio.open_nursery() as nursery:
            for plan in self.plans:
                nursery.start_soon(self._come_to_the_end, plan, ends)
        await read_everything(self._bench, "final")

    # -- members ---------------------------------------------------------------------------

    async def _run_lives(self, place: int, stop: Stop) -> None:
        """The first place of each group is a static member's."""
        plan = self.plans[place % len(self.plans)]
        instance_id = f"{plan.name}-static" if place < len(self.plans) else None
        random = self._new_random()
        for name in self._life_names(plan, place):
            if stop.is_set():
                return
            life = MemberLife(self._groups, plan, name, instance_id=instance_id)
            await life.run(stop, draw_fate(random, life_seconds=self._life_seconds))
            await wait_stop(stop, random.uniform(0, REBIRTH_SECONDS_MAX))

    def _life_names(self, plan: GroupPlan, place: int | str) -> Iterator[str]:
        return (f"{plan.name}/{place}.{life}" for life in count(1))

    async def _come_to_the_end(self, plan: GroupPlan, ends: dict[str, int]) -> None:
        """Members without faults, until the group is at all ends or the time is over."""
        wanted = {key: ends[key] for key in _keys_of(plan)}
        progress, stop = self._groups.progress, trio.Event()
        deadline = trio.current_time() + self._settings.final_seconds
        async with trio.open_nursery() as nursery:
            for place in range(max(1, self._settings.processes // len(self.plans))):
                nursery.start_soon(self._run_final_lives, plan, place, stop)
            with trio.move_on_at(deadline):
                while progress.behind(plan.name, wanted):  # noqa: ASYNC110  # many tasks change it
                    await trio.sleep(LOOK_SECONDS)
            stop.set()
        if behind := progress.behind(plan.name, wanted):
            told = {"group": plan.name, "keys": [list(one) for one in behind]}
            self._recorder.record(WATCH, Type.INFO, "behind", told, error="time is over")

    async def _run_final_lives(self, plan: GroupPlan, place: int, stop: Stop) -> None:
        well = Fate(self._settings.final_seconds + JOIN_SECONDS_MAX, End.LEAVE)
        for name in self._life_names(plan, f"final-{place}"):
            if stop.is_set():
                return
            await MemberLife(self._groups, plan, name).run(stop, well)
            await wait_stop(stop, LOOK_SECONDS)

    async def _find_ends(self) -> dict[str, int]:
        """By the leaders; without an answer, by the senders' acknowledgements."""
        seen, everything = self._bench.seen, self._bench.keys.everything
        ends = {key: seen.highest(key) + 1 for key in everything}
        try:
            with trio.move_on_after(ENDS_SECONDS_MAX):
                async with self._bench.new_client("ends") as client:
                    assign = [split_key(key) for key in everything]
                    async with client.consumer(assign=assign, start="earliest") as consumer:
                        found = await consumer.end_offsets()
                        ends = {key_of(*key): end for key, end in found.items()}
        except RaftmqError as error:
            logger.info("final: ends=%s", error)
        return ends

    # -- questions -------------------------------------------------------------------------

    async def _ask_for_offsets(self, plan: GroupPlan, stop: Stop) -> None:
        """Processes that are no members may fetch offsets, too, and must get the latest ones."""
        async with self._groups.new_cluster(f"{plan.name}/asking") as cluster:
            while not stop.is_set():
                deadline = trio.current_time() + ANSWER_SECONDS_MAX
                try:
                    await fetch_offsets(cluster, plan.name, deadline=deadline)
                except RaftmqError as error:
                    logger.info("offsets: group=%s reason=%s", plan.name, error)
                await wait_stop(stop, LOOK_SECONDS)

    def _group_names(self) -> list[str]:
        return [plan.name for plan in self.plans]

    def _new_random(self) -> Random:
        return Random(self._random.getrandbits(64))


def _topics(keys: Keys) -> list[str]:
    names = (keys.next_topic() for _ in range(TOPICS))
    return [name for name in names if name is not None]


def _keys_of(plan: GroupPlan) -> list[str]:
    return [key_of(topic, number) for topic in plan.topics for number in range(PARTITIONS)]
