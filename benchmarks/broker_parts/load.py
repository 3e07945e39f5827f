"""Loads through `raftmq.client`, in this process: closed loops, and one that keeps a schedule.

A closed loop has a number of requests in flight, each of which is followed by the next one; what
ends in the warming up or after the end is not counted. Every error ends the benchmark.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.topics import FIRST_OFFSET
from raftmq.client.administration.offsets import list_offset
from raftmq.wire.messages.offsets import LATEST
from tests.fetching import fetch
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.topics import Batch, Case
    from raftmq.client.routing.cluster import Cluster

WARM_UP_SHARE = 0.2
SECONDS_MIN = 2.0  # however small the scale: a busy machine stands still for long
TIMEOUT_SECONDS = 60.0
FETCH_BYTES_MAX = 1 << 20
QUIET_SECONDS = 1.0  # without news nothing more will come


@dataclass
class Load:
    """What was done between the warming up and the end."""

    seconds: float = 0.0
    byte_count: int = 0
    latencies: list[float] = field(default_factory=list)  # seconds, of each request
    brokers_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.byte_count / self.seconds / 1e6


def scaled(seconds: float, scale: float) -> float:
    """How long a load of `seconds` is to last."""
    return max(SECONDS_MIN, seconds * scale)


async def closed_loop(
    brokers: Brokers, act: Callable[[int], Awaitable[int]], *, in_flight: int, seconds: float
) -> Load:
    """`act` is told which worker it is for, makes one request and returns its bytes."""
    load = Load(seconds=seconds)
    begin = trio.current_time() + WARM_UP_SHARE * seconds
    end = begin + seconds

    async def work(worker: int) -> None:
        while (start := trio.current_time()) < end:
            byte_count = await act(worker)
            if begin <= (now := trio.current_time()) < end:
                load.latencies.append(now - start)
                load.byte_count += byte_count

    async with trio.open_nursery() as nursery:
        for worker in range(in_flight):
            nursery.start_soon(work, worker)
        await trio.sleep_until(begin)
        brokers_cpu, client_cpu = brokers.cpu_seconds(), time.process_time()
        await trio.sleep_until(end)
        load.brokers_cpu_seconds = brokers.cpu_seconds() - brokers_cpu
        load.client_cpu_seconds = time.process_time() - client_cpu
    assert load.latencies, "not one request was done in time"
    return load


async def produce_load(
    client: Cluster, brokers: Brokers, topic: str, case: Case, *, seconds: float
) -> Load:
    data = case.batch().data
    turns = [_turns(worker, case) for worker in range(case.in_flight)]
    next_turn = [0] * case.in_flight

    async def act(worker: int) -> int:
        partition = turns[worker][next_turn[worker] % len(turns[worker])]
        next_turn[worker] += 1
        await produce(
            client, topic, partition, data, acks=case.acks, timeout_seconds=TIMEOUT_SECONDS
        )
        return len(data)

    return await closed_loop(brokers, act, in_flight=case.in_flight, seconds=seconds)


def _turns(worker: int, case: Case) -> range:
    """The partitions of a worker: all have equally many workers, or all workers as many."""
    return range(worker % case.partitions, case.partitions, case.in_flight)


async def unanswered_load(
    client: Cluster, brokers: Brokers, topic: str, case: Case, *, seconds: float
) -> Load:
    """With acks=0: what is committed in the end, divided by the time until nothing comes any more.

    Each is of the latencies with the same share of that time: nobody hears when it was done.
    """
    begin = trio.current_time()
    brokers_cpu, client_cpu = brokers.cpu_seconds(), time.process_time()
    await produce_load(client, brokers, topic, case, seconds=seconds)
    records, newest_at = 0, trio.current_time()
    while trio.current_time() < newest_at + QUIET_SECONDS:
        if (come := await _come(client, topic, case)) > records:
            records, newest_at = come, trio.current_time()
        await trio.sleep(QUIET_SECONDS / 20)
    assert records, "nothing has come of requests with acks=0"
    batch = case.batch()
    count = records // batch.records
    load = Load(newest_at - begin, count * len(batch.data))
    load.latencies = [load.seconds / count] * count
    load.brokers_cpu_seconds = brokers.cpu_seconds() - brokers_cpu
    load.client_cpu_seconds = time.process_time() - client_cpu
    return load


async def _come(client: Cluster, topic: str, case: Case) -> int:
    """How many records of the load are committed, of all partitions."""
    ends: list[int] = []

    async def ask(partition: int) -> None:
        ends.append(await list_offset(client, topic, partition, LATEST))

    async with trio.open_nursery() as nursery:
        for partition in range(case.partitions):
            nursery.start_soon(ask, partition)
    return sum(ends) - FIRST_OFFSET * case.partitions


async def fill(
    client: Cluster, topic: str, batch: Batch, *, partitions: int, bytes_per_partition: int
) -> int:
    """With `batch` again and again; how many of them each partition has."""
    at_once = max(1, (512 << 10) // len(batch.data))
    rounds = max(1, bytes_per_partition // (at_once * len(batch.data)))

    async def fill_one(partition: int) -> None:
        for _ in range(rounds):
            await produce(
                client, topic, partition, batch.data * at_once, timeout_seconds=TIMEOUT_SECONDS
            )

    async with trio.open_nursery() as nursery:
        for partition in range(partitions):
            nursery.start_soon(fill_one, partition)
    return rounds * at_once


async def fetch_load(
    client: Cluster,
    brokers: Brokers,
    topic: str,
    batch: Batch,
    case: Case,
    *,
    batches: int,
    seconds: float,
) -> Load:
    """Each worker reads a partition that holds so many batches, from its beginning, over and over.

    A request brings up to 1 MiB, or one batch where that is a single record.
    """
    end = FIRST_OFFSET + batches * batch.records
    offsets = [(end - FIRST_OFFSET) * worker // case.in_flight for worker in range(case.in_flight)]
    offsets = [FIRST_OFFSET + offset - offset % batch.records for offset in offsets]
    bytes_max = 1 if case.is_single else FETCH_BYTES_MAX

    async def act(worker: int) -> int:
        partition = worker % case.partitions
        fetched = await fetch(
            client, topic, partition, offsets[worker], bytes_max=bytes_max, max_wait_seconds=1
        )
        count, rest = divmod(len(fetched.data), len(batch.data))
        assert rest == 0 < count, f"{len(fetched.data)} bytes of batches of {len(batch.data)}"
        offsets[worker] += count * batch.records
        if offsets[worker] == end:
            offsets[worker] = FIRST_OFFSET
        return len(fetched.data)

    return await closed_loop(brokers, act, in_flight=case.in_flight, seconds=seconds)


async def scheduled_load(
    client: Cluster, topic: str, case: Case, *, per_second: int, seconds: float
) -> list[float]:
    """One record a request, each on its time, however late those before are.

    Returns:
        Seconds from when a request was to be sent until its answer, without the warming up.
    """
    data, latencies = case.batch().data, list[float]()
    warm_up = int(WARM_UP_SHARE * seconds * per_second)
    begin = trio.current_time() + 0.1

    async def send(number: int, due: float) -> None:
        partition = number % case.partitions
        await produce(
            client, topic, partition, data, acks=case.acks, timeout_seconds=TIMEOUT_SECONDS
        )
        if number >= warm_up:
            latencies.append(trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        for number in range(warm_up + int(seconds * per_second)):
            due = begin + number / per_second
            await trio.sleep_until(due)
            nursery.start_soon(send, number, due)
    assert latencies, "the schedule is empty"
    return latencies
