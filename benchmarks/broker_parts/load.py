"""Loads through `raftmq.client`, in this process: closed loops, and one that keeps a schedule.

A closed loop has a number of requests in flight, each of which is followed by the next one; what
ends in the warming up or after the end is not counted. Every error ends the benchmark.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.process import usage_of
from benchmarks.broker_parts.timer import open_timer
from benchmarks.broker_parts.topics import FIRST_OFFSET
from raftmq.client.administration.offsets import list_offset
from raftmq.wire.messages.offsets import LATEST
from tests.fetching import fetch
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.process import Usage
    from benchmarks.broker_parts.topics import Batch, Case
    from raftmq.client.routing.cluster import Cluster

WARM_UP_SHARE = 0.2
SECONDS_MIN = 2.0  # however small the scale: a busy machine stands still for long
TIMEOUT_SECONDS = 60.0
FETCH_BYTES_MAX = 1 << 20
FIRST_AFTER_NS = 100_000_000  # until the first request of a schedule
QUIET_SECONDS = 1.0  # without news nothing more will come


@dataclass
class Load:
    """What was done between the warming up and the end."""

    seconds: float = 0.0
    byte_count: int = 0
    latencies: list[float] = field(default_factory=list)  # seconds, of each request
    lateness: list[float] = field(default_factory=list)  # of a schedule: seconds until it was sent
    brokers_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    waited_seconds: float = 0.0  # for a core: of brokers and client together

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.byte_count / self.seconds / 1e6

    @property
    def is_judged(self) -> bool:
        """Whether its figures are of brokers and client: not if they waited for a core longer than
        they ran, be it for other programs or for each other."""
        return self.waited_seconds <= self.brokers_cpu_seconds + self.client_cpu_seconds


class Meter:
    """What brokers and client use from when it is made until `note`."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._before = brokers, _usages(brokers)

    def note(self, load: Load) -> None:
        pairs = [*zip(self._before, _usages(self._brokers), strict=True)]
        *brokers, client = [after.cpu_seconds - before.cpu_seconds for before, after in pairs]
        load.brokers_cpu_seconds, load.client_cpu_seconds = sum(brokers), client
        # Below zero where a thread has ended, which waits no longer.
        waits = [max(0.0, after.waited_seconds - before.waited_seconds) for before, after in pairs]
        load.waited_seconds = sum(waits)


def _usages(brokers: Brokers) -> list[Usage]:
    """Of the brokers, then of this process."""
    return [*brokers.usage().values(), usage_of(os.getpid())]


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
        meter = Meter(brokers)
        await trio.sleep_until(end)
        meter.note(load)
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
    begin, meter = trio.current_time(), Meter(brokers)
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
    meter.note(load)
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
    client: Cluster, brokers: Brokers, topic: str, case: Case, *, per_second: int, seconds: float
) -> Load:
    """One record a request, each on its time, however late those before are.

    Latencies are from when a request was to be sent until its answer. What is late in being sent
    is so because this process was busy: with requests before it, or with other programs' turns.
    """
    data, load, period_ns = case.batch().data, Load(seconds), round(1e9 / per_second)
    warm_up = int(WARM_UP_SHARE * seconds * per_second)
    total = warm_up + int(seconds * per_second)
    first_ns = time.monotonic_ns() + FIRST_AFTER_NS
    meter = Meter(brokers)

    async def send(number: int) -> None:
        due, sent = (first_ns + number * period_ns) / 1e9, time.monotonic()
        partition = number % case.partitions
        await produce(
            client, topic, partition, data, acks=case.acks, timeout_seconds=TIMEOUT_SECONDS
        )
        if number >= warm_up:
            load.latencies.append(time.monotonic() - due)
            load.lateness.append(sent - due)
            load.byte_count += len(data)

    async with trio.open_nursery() as nursery:
        number = 0
        with open_timer(first_ns=first_ns, period_ns=period_ns) as timer:
            while number < total:
                for _ in range(min(await timer.wait(), total - number)):
                    if number == warm_up:
                        meter = Meter(brokers)
                    nursery.start_soon(send, number)
                    number += 1
    meter.note(load)
    assert load.latencies, "the schedule is empty"
    return load
