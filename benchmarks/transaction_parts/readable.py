"""How long after a commit has begun a consumer of committed records has the record.

One transaction of one record at a time, on one partition; beside it plain records, timed from when
they are sent. The consumer is of this process, and asks as a program's does.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import closed_loop, scaled
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from raftmq.client.client import Client

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Awaitable, Callable

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.load import Load
    from benchmarks.report import Report

SECONDS = 5.0
PAUSE_SECONDS = 0.05  # before each: what the one before has left to do is no part of it
CASE = Case(durability="fsync", partitions=1, is_single=True)
VALUE = os.urandom(CASE.record_bytes)
AIM = "p50 25 ms"


async def bench_readable(report: Report, options: argparse.Namespace) -> None:
    found: dict[str, list[tuple[Load, list[float]]]] = {"record": [], "transaction": []}
    async with (
        open_brokers(options.root) as brokers,
        Client(brokers.addresses()) as client,
        open_client(brokers) as cluster,
        topic_for(cluster, CASE) as topic,
    ):
        for number in range(options.rounds):
            for each in sorted(found, reverse=bool(number % 2)):
                seconds = scaled(SECONDS, options.scale)
                found[each].append(await measure(brokers, client, topic, each, seconds))
    for each, rounds in found.items():
        report.row(
            each=each,
            times=sum(len(times) for _, times in rounds),
            p50_ms=rounded_ms(median(median(times) for _, times in rounds)),
            p99_ms=rounded_ms(median(percentile(times, 99) for _, times in rounds)),
            **cpu([load for load, _ in rounds]),
            aim=AIM if each == "transaction" else "",
        )


def cpu(loads: list[Load]) -> dict[str, float]:
    def mid(name: str) -> float:
        return rounded_ms(median(getattr(load, name) / len(load.latencies) for load in loads))

    return {
        "brokers_cpu_ms": mid("brokers_cpu_seconds"),
        "client_cpu_ms": mid("client_cpu_seconds"),
        "waited_ms": mid("waited_seconds"),
    }


async def measure(
    brokers: Brokers, client: Client, topic: str, each: str, seconds: float
) -> tuple[Load, list[float]]:
    times: list[float] = []
    options: dict[str, Any] = {"preset": "low_latency"}
    if each == "transaction":
        options = {**options, "transactions": True}
    async with client.producer(**options) as producer, open_reader(client, topic) as wait_read:

        async def act(_worker: int) -> int:
            await trio.sleep(PAUSE_SECONDS)
            if each == "transaction":
                async with producer.transaction() as tx:
                    await tx.send(topic, VALUE)
                    began = trio.current_time()
            else:
                began = trio.current_time()
                await producer.send(topic, VALUE)
            times.append(max(0.0, await wait_read() - began))
            return len(VALUE)

        load = await closed_loop(brokers, act, in_flight=1, seconds=seconds)
    return load, times


@asynccontextmanager
async def open_reader(client: Client, topic: str) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """Yields what waits for the next record, and says when it was handed out."""
    send, receive = trio.open_memory_channel[float](1)
    async with client.consumer(topic, start="latest") as consumer, trio.open_nursery() as nursery:

        async def read() -> None:
            async for _ in consumer:
                await send.send(trio.current_time())

        nursery.start_soon(read)
        await trio.sleep(1.0)  # until it knows where the log ends
        yield receive.receive
        nursery.cancel_scope.cancel()
