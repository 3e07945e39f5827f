"""The watcher: polls cluster metadata (in sync or not) and leaders' high watermarks.

Owns one connection to the cluster, the requests and their pace; keeps a `LiveView` fresh. It only
reads, and its errors end no process.
"""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import WATCH, Type
from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.keys import split_key
from jepsen_like.workloads.sending import error_text
from jepsen_like.workloads.view import snapshot_of
from raftmq.client.administration.topics import all_metadata
from raftmq.client.client import parse_bootstrap
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import RaftmqError
from raftmq.wire.messages.offsets import LATEST, ListOffsets, WantedOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.workloads.bench import Bench, Stop
    from jepsen_like.workloads.view import LiveView
    from raftmq.client.routing.routes import LeaderPlace

LOOK_SECONDS = 0.5  # between two metadata requests: recovery times are measured as precisely
MARK_SECONDS = 0.5  # between two requests for one key's high watermark
MARKERS = 3  # processes that ask for watermarks: a leader that does not answer holds up one of them
ANSWER_SECONDS_MAX = 1.0  # then it is recorded as not answered, and another broker is asked

logger = logging.getLogger(__name__)


def new_cluster(bootstrap: str | Sequence[str], name: str, random: Random) -> Cluster:
    return Cluster(parse_bootstrap(bootstrap), AnyioTcpNetwork(), random=random, client_id=name)


async def run_watcher(bench: Bench, view: LiveView, stop: Stop) -> None:
    """Of the keys that are written to, until `stop` is set."""
    watcher = Watcher(
        bench.bootstrap,
        bench.recorder,
        view,
        random=Random(bench.random.getrandbits(64)),
        numbers=bench.numbers,
        keys=lambda: tuple(bench.keys.active),
    )
    await watcher.run(stop)


class Watcher:
    """
    Args:
        keys: whose watermarks to ask for, at any time; none: only the cluster is watched.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        recorder: Recorder,
        view: LiveView,
        *,
        random: Random,
        numbers: Iterator[int],
        keys: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._recorder, self._view = recorder, view
        self._numbers, self._keys = numbers, keys
        self._cluster = new_cluster(bootstrap, "watch", random)

    async def run(self, stop: Stop) -> None:
        """Once, until `stop` is set."""
        async with self._cluster, trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again, stop)
            for place in range(MARKERS):
                nursery.start_soon(self._mark_again, stop, place, next(self._numbers))

    async def _look_again(self, stop: Stop) -> None:
        while not stop.is_set():
            await self._look()
            await wait_stop(stop, LOOK_SECONDS)

    async def _look(self) -> None:
        deadline = trio.current_time() + ANSWER_SECONDS_MAX
        try:
            snapshot = snapshot_of(await all_metadata(self._cluster, deadline=deadline))
        except RaftmqError as error:
            logger.info("watch: reason=%s", error)
            self._view.doubt()
            self._recorder.record(WATCH, Type.FAIL, "isr", error=error_text(error))
            return
        self._view.show(snapshot)
        self._recorder.record(WATCH, Type.OK, "isr", snapshot.told)

    async def _mark_again(self, stop: Stop, place: int, process: int) -> None:
        while not stop.is_set():
            for key in self._keys()[place::MARKERS]:
                await self._mark(process, key)
            await wait_stop(stop, MARK_SECONDS)

    async def _mark(self, process: int, key: str) -> None:
        self._recorder.invoke(process, "watermark", {"key": key})
        try:
            epoch, end = await self._find_end(*split_key(key))
        except RaftmqError as error:
            told = {"key": key}
            text = error_text(error)
            self._recorder.record(process, Type.FAIL, "watermark", told, error=text)
        else:
            found = {"key": key, "epoch": epoch, "high_watermark": end}
            self._recorder.record(process, Type.OK, "watermark", found)

    async def _find_end(self, topic: str, partition: int) -> tuple[int, int]:
        """The leader epoch of the answer, and its high watermark."""
        cluster, deadline = self._cluster, trio.current_time() + ANSWER_SECONDS_MAX

        async def attempt(place: LeaderPlace) -> tuple[int, int]:
            wanted = WantedOffset(place.topic_id, place.partition, place.leader_epoch, LATEST)
            found, _ = await cluster.ask_leader(place, ListOffsets((wanted,)), deadline=deadline)
            return place.leader_epoch, found.offset

        return await cluster.at_leader(
            topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS
        )
