"""Clients of one topic, in a thread of this process: producers, consumers, watchers.

Owns the load and the telling of its outcomes to the ledger. Each producer waits for one outcome
before it sends the next batch, and sends no batch twice; each consumer reads a partition from its
beginning to its end, as it grows.
"""

from __future__ import annotations

import time
from itertools import count
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.client.administration.topics import create_topic, wait_leaders
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import OffsetOutOfRange, RaftmqError
from raftmq.wire.batch.header import iter_batches
from tests.cluster.broker_ledger import StoredBatch, batch_of
from tests.cluster.broker_watch import Watch
from tests.cluster.load_thread import LoadThread
from tests.fetching import fetch
from tests.producing import ACKS_ALL, produce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.model import Address
    from tests.cluster.broker_ledger import BrokerLedger
    from tests.cluster.broker_watch import View
    from tests.fetching import FetchedChunk

PARTITIONS = 2  # fewer than brokers: one of them leads nothing
ACKS_LEADER = 1
PAUSE_SECONDS = 0.02
AGAIN_SECONDS = 0.1


class Topic(NamedTuple):
    """Attributes:
    acks: of each producer of a partition.
    """

    name: str
    acks: tuple[int, ...]
    configs: dict[str, str]


SYNCED = Topic(
    "orders",
    (ACKS_ALL,) * 4 + (ACKS_LEADER,),
    {"min.insync.replicas": "2", "durability": "fsync"},
)
UNSYNCED = Topic(
    "clicks", (ACKS_ALL,) * 2, {"min.insync.replicas": "2", "durability": "page_cache"}
)


class Acknowledgement(NamedTuple):
    began_at: float
    heard_at: float


class Load(LoadThread):
    """Attributes:
    acknowledgements: of each partition, in the order in which they were heard.
    read_up_to: where the consumer of each partition is; `high_watermarks`: what it was told last.
    """

    def __init__(
        self, addresses: Mapping[int, Address], ledger: BrokerLedger, topic: Topic = SYNCED
    ) -> None:
        super().__init__(is_working=False)
        self.topic, self.ledger, self._addresses = topic, ledger, dict(addresses)
        self._keys, self._releases = count(1), 0
        self._watches = {each: Watch(address, topic.name) for each, address in addresses.items()}
        self.acknowledgements: dict[int, list[Acknowledgement]] = {
            partition: [] for partition in range(PARTITIONS)
        }
        self.read_up_to = dict.fromkeys(range(PARTITIONS), 0)
        self.high_watermarks = dict.fromkeys(range(PARTITIONS), 0)

    # From the other thread

    def release(self) -> None:
        """None is held to what it promised, for those who could keep it are dead."""
        self._releases += 1
        self.ledger.release()
        for log in self.acknowledgements.values():
            log.clear()

    def view(self, node_id: int) -> View | None:
        return self._watches[node_id].view

    def led_at(self, by: frozenset[int], *, after: float) -> float | None:
        """From when on every partition was led by one of these, as they see it themselves."""
        found = (self._watches[node_id].led_at(by, after=after) for node_id in by)
        return min((at for at in found if at is not None), default=None)

    # In the thread of its own

    async def _run_load(self) -> None:
        async with trio.open_nursery() as nursery:
            for watch in self._watches.values():
                nursery.start_soon(watch.run)
            addresses = list(self._addresses.values())
            for watch in self._watches.values():
                await watch.wait_brokers(self._addresses.keys())  # each may place the topic
            async with Cluster(addresses, AnyioTcpNetwork(), random=Random()) as cluster:
                deadline = trio.current_time() + 30.0
                await create_topic(
                    cluster,
                    self.topic.name,
                    partition_count=PARTITIONS,
                    replication_factor=len(addresses),
                    configs=self.topic.configs,
                    deadline=deadline,
                )
                await wait_leaders(cluster, self.topic.name, deadline=deadline)
                self.work()
                await self._run_clients(cluster)

    async def _run_clients(self, cluster: Cluster) -> None:
        async with trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(self._consume, cluster, partition)
                for acks in self.topic.acks:
                    nursery.start_soon(self._produce_on, cluster, partition, acks)

    async def _produce_on(self, cluster: Cluster, partition: int, acks: int) -> None:
        while True:
            if self._is_working:
                self._in_flight += 1
                await self._produce(cluster, partition, next(self._keys), acks)
                self._in_flight -= 1
            await trio.sleep(PAUSE_SECONDS)

    async def _produce(self, cluster: Cluster, partition: int, key: int, acks: int) -> None:
        began_at, releases = time.monotonic(), self._releases
        try:
            offset = await produce(cluster, self.topic.name, partition, batch_of(key), acks=acks)
        except RaftmqError as error:
            self.ledger.on_failed(key, error)
            return
        if releases != self._releases:
            return
        if acks != ACKS_ALL:
            self.ledger.on_taken(key, partition=partition, offset=offset)
            return
        self.ledger.on_acknowledged(key, partition=partition, offset=offset)
        self.acknowledgements[partition].append(Acknowledgement(began_at, time.monotonic()))

    async def _consume(self, cluster: Cluster, partition: int) -> None:
        while True:
            releases = self._releases
            await self._consume_until(
                cluster, partition, lambda now=releases: now != self._releases
            )

    async def _consume_until(
        self, cluster: Cluster, partition: int, is_over: Callable[[], bool]
    ) -> None:
        """From the beginning; what comes after the end is nobody's promise."""
        offset = 0
        while not is_over():
            try:
                fetched = await fetch(cluster, self.topic.name, partition, offset)
            except RaftmqError as error:
                if not (is_over() and isinstance(error, OffsetOutOfRange)):
                    self.ledger.on_error(f"fetch of {partition} from {offset}", error)
                await trio.sleep(AGAIN_SECONDS)
                continue
            if not is_over():
                offset = self._read(partition, offset, fetched)

    def _read(self, partition: int, offset: int, fetched: FetchedChunk) -> int:
        for position, header in iter_batches(fetched.data):
            data = bytes(fetched.data[position : position + header.size])
            batch = StoredBatch(header.base_offset, header.end_offset, data)
            self.ledger.on_read(partition, batch)
            offset = batch.end_offset
        self.read_up_to[partition] = offset
        self.high_watermarks[partition] = fetched.high_watermark
        return offset
