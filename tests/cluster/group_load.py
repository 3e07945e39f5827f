"""Clients of a group's topic, in a thread of this process: producers, and who asks about the group.

Owns the load, what was acknowledged, and what the coordinator says. Each key has a task that waits
for one outcome before it sends the next number, so that the numbers of a key rise in the log.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from raftmq.errors import GroupIdNotFound, RaftmqError
from tests.cluster.group_judge import Observation
from tests.cluster.load_thread import LoadThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.administration.results import GroupDetails

GROUP, TOPIC = "shippers", "parcels"
KEYS_PER_PARTITION = 2
CONFIG = {"min.insync.replicas": 2}
PAUSE_SECONDS = 1.0  # of each key
LOOK_SECONDS = 0.1
ASK_SECONDS_MAX = 5.0


class GroupLoad(LoadThread):
    """Attributes:
    acknowledged: number by partition and offset.
    failed, denied: numbers whose `send` has raised; of these, those that certainly were not sent.
    served: when something was acknowledged last, by partition.
    observations: what the group had committed.
    details: of the group, as its coordinator said last, and when it was asked; None: it is silent.
    errors: that clients were told, by name.
    findings: errors that do not pass.
    """

    def __init__(self, bootstrap: str, *, partitions: int) -> None:
        super().__init__(is_working=True)
        self._bootstrap, self.partitions = bootstrap, partitions
        self.key_count = partitions * KEYS_PER_PARTITION
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: set[int] = set()
        self.denied: set[int] = set()
        self.served = dict.fromkeys(range(partitions), 0.0)
        self.observations: list[Observation] = []
        self.details: tuple[float, GroupDetails | None] = 0.0, None
        self.errors: Counter[str] = Counter()
        self.findings: list[str] = []
        self._is_made, self._is_new = False, True  # topic; group

    # From the other thread

    @property
    def is_made(self) -> bool:
        """The topic."""
        return self._is_made

    @property
    def ends(self) -> dict[int, int]:
        """Of what is acknowledged, by partition."""
        found: dict[int, int] = {}
        for partition, offset in list(self.acknowledged):
            found[partition] = max(found.get(partition, 0), offset + 1)
        return found

    @property
    def committed(self) -> dict[int, int]:
        """As it was heard last."""
        return dict(self.observations[-1].offsets) if self.observations else {}

    # In the thread of its own

    async def _run_load(self) -> None:
        async with raftmq.connect(self._bootstrap, client_id="load") as mq:
            await mq.admin.create_topic(
                TOPIC, partitions=self.partitions, replication_factor=3, config=CONFIG
            )
            self._is_made = True
            async with mq.producer(acks="all") as producer, trio.open_nursery() as nursery:
                nursery.start_soon(self._look, self._look_at_group, mq)
                nursery.start_soon(self._look, self._look_at_offsets, mq)
                for key in range(self.key_count):
                    nursery.start_soon(self._produce_on, producer, key)

    async def _produce_on(self, producer: Any, key: int) -> None:
        await trio.sleep(PAUSE_SECONDS * key / self.key_count)
        for turn in count():
            while not self._is_working:  # noqa: ASYNC110  # set by another thread
                await trio.sleep(LOOK_SECONDS)
            self._in_flight += 1
            await self._produce(producer, key, turn * self.key_count + key)
            self._in_flight -= 1
            await trio.sleep(PAUSE_SECONDS)

    async def _produce(self, producer: Any, key: int, number: int) -> None:
        partition, value = key % self.partitions, b"%d" % number
        try:
            sent = await producer.send(TOPIC, value, key=key, partition=partition)
        except RaftmqError as error:
            self.failed.add(number)
            if error.definite:
                self.denied.add(number)
            self._on_error(error)
            return
        self.acknowledged[partition, sent.offset] = number
        self.served[partition] = time.monotonic()

    def _on_error(self, error: RaftmqError) -> None:
        self.errors[type(error).__name__] += 1

    async def _look(self, look: Callable[[Any], Any], mq: Any) -> None:
        admin = mq.admin.with_timeout(ASK_SECONDS_MAX)
        while True:
            try:
                await look(admin)
            except RaftmqError as error:
                self._on_error(error)
                is_passing = error.retriable or (
                    isinstance(error, GroupIdNotFound) and self._is_new
                )
                if not is_passing:
                    self.findings.append(f"asked about the group: {error!r}")
            await trio.sleep(LOOK_SECONDS)

    async def _look_at_group(self, admin: Any) -> None:
        asked_at = time.monotonic()
        try:
            details = await admin.describe_group(GROUP)
        except RaftmqError:
            self.details = asked_at, None
            raise
        self.details = asked_at, details
        self._is_new = False

    async def _look_at_offsets(self, admin: Any) -> None:
        asked_at = time.monotonic()
        found = await admin.group_offsets(GROUP)
        offsets = {partition: told.offset for (_, partition), told in found.items()}
        self.observations.append(Observation(asked_at, time.monotonic(), offsets))
