"""One life of a consumer group member: it joins, works, and leaves or crashes.

Owns what is recorded of it, and how a program of each commit mode behaves. After a crash nothing
leaves the member any more, not even a leave request, so that its session has to time out.
"""

from __future__ import annotations

import logging
import math
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.group_plan import End
from jepsen_like.workloads.keys import decode_value, key_of
from jepsen_like.workloads.sending import error_text
from raftmq.client.consumer.consumer import Consumer
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.group_bench import GroupBench
    from jepsen_like.workloads.group_plan import Fate, GroupPlan
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.group.effects import Rebalance

BATCH_RECORDS_MAX = 50  # small, for many commits
POLL_SECONDS = 0.5  # without records, until it checks whether to stop or to idle
WORK_SECONDS_MAX = 0.03  # for one batch, so that rebalances come while records are being processed
SESSION_MS, HEARTBEAT_MS, POLL_MS_MAX = 6_000, 1_500, 8_000
CLOSE_SECONDS_MAX = 20.0  # to commit and leave, while faults go on
FOREVER = math.inf

logger = logging.getLogger(__name__)


class MemberLife:
    """
    Args:
        instance_id: of a static member, whose lives follow each other.
    """

    def __init__(
        self, bench: GroupBench, plan: GroupPlan, name: str, *, instance_id: str | None = None
    ) -> None:
        self._bench, self._plan, self._name = bench, plan, name
        self._recorder, self._instance_id = bench.recorder, instance_id
        self._random = Random(bench.random.getrandbits(64))
        self._cluster = bench.new_cluster(name)
        self._idle_at, self._idle_seconds = FOREVER, 0.0

    async def run(self, stop: Stop, fate: Fate) -> None:
        """Until its end, or until `stop` is set: then it leaves."""
        self._note("member", {"group": self._plan.name})
        began_at = trio.current_time()
        if fate.idle_at is not None:
            self._idle_at, self._idle_seconds = began_at + fate.idle_at, fate.idle_seconds
        error: str | None = None
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._meet_fate, fate, scope)
                is_crash = fate.end is End.CRASH
                until = FOREVER if is_crash else began_at + fate.seconds
                error = await self._live(stop, scope, until)
                nursery.cancel_scope.cancel()
        if not self._cluster.is_dead:
            self._recorder.record(self._name, Type.INFO, "gone", error=error)

    async def _meet_fate(self, fate: Fate, scope: trio.CancelScope) -> None:
        began_at = trio.current_time()
        if fate.mute_at is not None:
            await trio.sleep_until(began_at + fate.mute_at)
            self._note("mute", {"seconds": round(fate.mute_seconds, 2)})
            self._cluster.mute(fate.mute_seconds)
        if fate.end is End.CRASH:
            await trio.sleep_until(began_at + fate.seconds)
            self._cluster.is_dead = True
            self._note("crash")
            scope.cancel()

    async def _live(self, stop: Stop, scope: trio.CancelScope, until: float) -> str | None:
        """What went wrong, if something did."""
        try:
            async with self._cluster, self._new_consumer() as consumer:
                try:
                    await self._work(consumer, stop, until)
                finally:
                    if not self._cluster.is_dead:
                        self._note("leave")
                        scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX
        except RaftmqError as error:
            logger.info("member: name=%s reason=%s", self._name, error)
            return error_text(error)
        return None

    def _new_consumer(self) -> Consumer:
        options: dict[str, Any] = {
            "group": self._plan.name,
            "commit": self._plan.commit,
            "assignor": self._plan.assignor,
            "group_instance_id": self._instance_id,
            "start": "earliest",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "max_poll_interval_ms": POLL_MS_MAX,
            "on_rebalance": self._on_rebalance,
        }
        chance = Random(self._random.getrandbits(64))
        return Consumer(self._cluster, self._plan.topics, options, random=chance)

    async def _work(self, consumer: Consumer, stop: Stop, until: float) -> None:
        batches = consumer.batches(max_records=BATCH_RECORDS_MAX)
        while not stop.is_set() and trio.current_time() < until:
            self._recorder.invoke(self._name, "take")
            batch = None
            with trio.move_on_after(POLL_SECONDS):
                batch = await anext(batches)
            if self._cluster.is_dead:
                return
            self._note_taken(batch)
            self._note_positions(consumer)
            if batch is not None:
                await self._work_on(consumer, batch)
                await self._maybe_idle(stop)

    async def _work_on(self, consumer: Consumer, batch: ConsumedBatch) -> None:
        seconds = self._random.uniform(0, WORK_SECONDS_MAX)
        if self._plan.commit == "record":
            seconds /= 10
        if self._plan.commit != "manual":
            await trio.sleep(seconds)
            return
        with consumer.processing(batch):
            await trio.sleep(seconds)
        try:
            await consumer.commit(batch)
        except RaftmqError as error:
            if not error.definite:  # the next owner's fetch shows how it ended
                logger.info("commit: name=%s reason=%s", self._name, error)

    async def _maybe_idle(self, stop: Stop) -> None:
        """Called with records handed out: only then `max.poll.interval` applies to the program."""
        if trio.current_time() >= self._idle_at:
            self._idle_at = FOREVER
            self._note("idle", {"seconds": round(self._idle_seconds, 2)})
            await wait_stop(stop, self._idle_seconds)

    # -- the history -----------------------------------------------------------------------

    def _note(self, f: str, value: object = None) -> None:
        self._recorder.record(self._name, Type.INFO, f, value)

    def _note_taken(self, batch: ConsumedBatch | None) -> None:
        if batch is None:
            self._recorder.record(self._name, Type.FAIL, "take")
            return
        told = {
            "key": key_of(batch.topic, batch.partition),
            "offsets": list(batch.offsets),
            "values": [decode_value(value) for value in batch.values],
        }
        self._recorder.record(self._name, Type.OK, "take", told)

    def _note_positions(self, consumer: Consumer) -> None:
        """The group's positions, for the tasks that wait for its end."""
        for key in consumer.assignment:
            position = consumer.position(*key)
            if position is not None:
                self._bench.progress.on_position(self._plan.name, key_of(*key), position)

    def _on_rebalance(self, rebalance: Rebalance) -> None:
        if self._cluster.is_dead:
            return
        told = {
            what: [key_of(*key) for key in getattr(rebalance, what)]
            for what in ("assigned", "revoked", "lost")
            if getattr(rebalance, what)
        }
        self._note("rebalance", {**told, "generation": rebalance.generation})
