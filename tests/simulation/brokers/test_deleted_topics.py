"""Whole brokers, on whom topics are used in every way and deleted: nothing of them stays.

The collector is off: what lives in a reference cycle keeps its files, and the disk their bytes,
until a full collection, which an idle broker never makes, and for ever once it is frozen
(`metadata/raft/gc_control.py`).
"""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.client import Client
from raftmq.disk.checkpoint import read_checkpoint
from raftmq.errors import RaftmqError
from raftmq.model import Address
from raftmq.partition.storage.inspect import TOPICS_FOLDER
from tests.simulation.client_network import ClientNetwork
from tests.simulation.groups.whole_brokers import CLIENTS, DIRECTORY, NODES, Whole, whole_brokers
from tests.simulation.network_pipe import Latency
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio.testing import MockClock

TOPIC, RECORDS = "orders", 20
MOMENT_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def used(segment_bytes: int = 1 << 20) -> AsyncIterator[tuple[Whole, Client]]:
    """Three brokers with a topic that was written with acks=all."""
    async with whole_brokers() as whole, program(whole) as client:
        config = {"segment.bytes": segment_bytes}
        await client.admin.create_topic(TOPIC, partitions=2, config=config)
        await write(client)
        yield whole, client


def program(whole: Whole) -> Client:
    addresses = [Address(f"n{number}", CLIENTS) for number in NODES]
    network = ClientNetwork(whole.network.node("program"))
    return Client(addresses, network=network, random=Random(3), now_ms=lambda: NOW_MS)


async def write(client: Client) -> None:
    async with client.producer() as producer:
        for number in range(RECORDS):
            await producer.send(TOPIC, b"x" * 1000, key=str(number))


async def read(client: Client, task_status: trio.TaskStatus[None]) -> None:
    """Everything, and wait for more."""
    async with client.consumer(TOPIC, start="earliest") as consumer:
        for _ in range(RECORDS):
            await anext(consumer)
        task_status.started()
        with suppress(RaftmqError):
            await anext(consumer)


class Watched:
    """What lives as long as the partitions of a cluster do."""

    def __init__(self, whole: Whole) -> None:
        self._parts: list[weakref.ref[object]] = []
        self.add(whole)

    def add(self, whole: Whole) -> None:
        for node in whole.nodes.values():
            replicas = node.broker.replicas.all() if node.broker is not None else ()
            for replica in replicas:
                log = replica.log
                parts = [replica, replica.leader, replica.follower, log, log.producers]
                parts += [part for one in log.segments for part in (one, one.file, one.index)]
                self._parts += [weakref.ref(part) for part in parts if part is not None]

    @property
    def alive(self) -> list[str]:
        return sorted(type(part).__name__ for ref in self._parts if (part := ref()) is not None)


def removed_open(whole: Whole) -> list[str]:
    """On all disks: `Files.remove` gave back nothing of these."""
    return [str(path) for node in whole.nodes.values() for path in node.files.removed_open()]


async def delete(client: Client) -> None:
    await client.admin.delete_topic(TOPIC)
    await trio.sleep(MOMENT_SECONDS)


async def test_nothing_of_a_deleted_topic_stays(autojump_clock: MockClock) -> None:
    """Written, copied, read; fetches of consumers and followers wait for more."""
    async with used() as (whole, client), trio.open_nursery() as nursery:
        await nursery.start(read, client)
        watched = Watched(whole)
        assert len(watched.alive) == len(NODES) * 2 * 7
        await delete(client)
        assert not watched.alive
        assert not removed_open(whole)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slow", NODES)
async def test_no_record_is_acknowledged_afterwards(autojump_clock: MockClock, slow: int) -> None:
    """Programs write with acks=all while another deletes the topic: what is sent after the call
    has returned is refused, though one leader hears of the deletion later than the others.
    """
    async with used() as (whole, client):
        await client.admin.create_topic("t", partitions=6, replication_factor=1)
        for number in {*NODES} - {slow}:
            whole.network.slow(f"n{number}", f"n{slow}", Latency(0.3, 0.3, tail_probability=0.0))
        begun, acknowledged = dict.fromkeys(range(6), 0.0), dict.fromkeys(range(6), 0.0)

        async def send_all(partition: int) -> None:
            async with program(whole) as one, one.producer(linger_ms=0) as producer:
                while True:
                    now = trio.current_time()
                    try:
                        await producer.send("t", b"x", partition=partition)
                    except RaftmqError:
                        return
                    begun[partition], acknowledged[partition] = now, trio.current_time()

        async with trio.open_nursery() as nursery:
            for partition in range(6):
                nursery.start_soon(send_all, partition)
            await trio.sleep(0.5)
            begin = trio.current_time()
            await client.admin.delete_topic("t")
            end = trio.current_time()
        assert begin < max(acknowledged.values())  # leaders went on for a while ...
        assert max(begun.values()) < end  # ... but not after the call


async def test_records_wait_for_a_broker_that_is_gone(autojump_clock: MockClock) -> None:
    """The topic is deleted while acks=all waits for it; some of its answers are given up."""
    async with used() as (whole, client), trio.open_nursery() as nursery:
        whole.nodes[3].kill()
        watched = Watched(whole)
        nursery.start_soon(write_and_fail, client)
        with trio.move_on_after(0.5):
            await write_and_fail(client)
        await delete(client)
        await trio.sleep(60.0)  # waiting requests have been answered
        assert not watched.alive
        assert not removed_open(whole)


async def write_and_fail(client: Client) -> None:
    with suppress(RaftmqError):
        await write(client)


async def test_a_log_that_was_opened_anew(autojump_clock: MockClock) -> None:
    """A sync fails, the log is repaired, and deleted when it is in order again: both objects go."""
    async with used() as (whole, client):
        watched = Watched(whole)
        for node in whole.nodes.values():
            node.files.fail("sync", "*/Partition-0/*.log")
        with trio.move_on_after(60.0):
            await write(client)
        await trio.sleep(60.0)
        watched.add(whole)
        await delete(client)
        assert all(node.files.has_failed for node in whole.nodes.values())
        assert not watched.alive
        assert not removed_open(whole)


async def test_segments_that_are_trimmed(autojump_clock: MockClock) -> None:
    """Records are deleted while a consumer stands at their end: their files go, the log stays."""
    async with used(segment_bytes=4096) as (whole, client), trio.open_nursery() as nursery:
        await nursery.start(read, client)
        await client.admin.delete_records(TOPIC, {0: "latest", 1: "latest"})
        await trio.sleep(MOMENT_SECONDS)
        trimmed = [
            log.log_start_offset
            for node in whole.nodes.values()
            if node.broker is not None
            for log in node.broker._directory.logs.values()
        ]
        assert any(trimmed)
        assert not removed_open(whole)
        nursery.cancel_scope.cancel()


async def test_a_topic_that_goes_while_a_broker_is_down(autojump_clock: MockClock) -> None:
    """When it is back it removes what it has of it, and what it had opened closes."""
    async with used() as (whole, client):
        whole.nodes[3].kill()
        await trio.sleep(60.0)  # the others go on without it
        gc.collect()  # what a process had ends with it; not so here
        await delete(client)
        topics, disk = DIRECTORY / TOPICS_FOLDER, whole.nodes[3].files
        assert len(disk.names(topics)) == 1
        whole.nodes[3].start()
        await trio.sleep(60.0)
        assert disk.names(topics) == []
        assert not removed_open(whole)
        assert read_checkpoint(disk, DIRECTORY / "checkpoints/recovery-points") == {}
