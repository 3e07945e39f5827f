"""Transactions of one record each, one after the other, beside plain records one after the other.

Of one producer and of 100, in turns; which is first changes with each round. The commit is timed
apart from the whole: from the acknowledgement of the record until the block is left.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import closed_loop, scaled
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from raftmq.client.client import Client

if TYPE_CHECKING:
    import argparse

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.load import Load
    from benchmarks.report import Report
    from raftmq.client.producer.producer import Producer

SECONDS = 5.0
CASE = Case(durability="fsync", is_single=True)
VALUE = os.urandom(CASE.record_bytes)
AIMS = {1: "50/s; commit p50 8, p99 30 ms", 100: "600/s"}


class Kind(NamedTuple):
    producers: int
    has_transactions: bool


KINDS = [Kind(count, has) for count in AIMS for has in (False, True)]


class Round(NamedTuple):
    load: Load
    commits: list[float]  # seconds, of each


async def bench_alone(report: Report, options: argparse.Namespace) -> None:
    async with open_brokers(options.root) as brokers, Client(brokers.addresses()) as client:
        found: dict[Kind, list[Round]] = {kind: [] for kind in KINDS}
        async with open_client(brokers) as cluster, topic_for(cluster, CASE) as topic:
            for number in range(options.rounds):
                for kind in sorted(KINDS, reverse=bool(number % 2)):
                    seconds = scaled(SECONDS, options.scale)
                    found[kind].append(await measure(brokers, client, topic, kind, seconds))
        for kind, rounds in found.items():
            report.row(
                producers=kind.producers,
                each="transaction" if kind.has_transactions else "record",
                **figures(rounds),
                aim=AIMS[kind.producers] if kind.has_transactions else "",
            )


async def measure(
    brokers: Brokers, client: Client, topic: str, kind: Kind, seconds: float
) -> Round:
    commits: list[float] = []
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"preset": "low_latency"}
        if kind.has_transactions:
            options = {**options, "transactions": True}
        producers = [
            await stack.enter_async_context(client.producer(**options))
            for _ in range(kind.producers)
        ]

        async def act(worker: int) -> int:
            if kind.has_transactions:
                commits.append(await transact(producers[worker], topic))
            else:
                await producers[worker].send(topic, VALUE)
            return len(VALUE)

        load = await closed_loop(brokers, act, in_flight=kind.producers, seconds=seconds)
    return Round(load, commits)


async def transact(producer: Producer[Any, Any], topic: str) -> float:
    """Seconds of the commit."""
    async with producer.transaction() as tx:
        await tx.send(topic, VALUE)
        acknowledged = trio.current_time()
    return trio.current_time() - acknowledged


def figures(rounds: list[Round]) -> dict[str, Any]:
    """Medians of the rounds. `waited`: for a core, of brokers and client together, each time."""

    def mid(values: list[float]) -> float:
        return rounded_ms(median(values))

    loads = [one.load for one in rounds]
    commits = [one.commits or [0.0] for one in rounds]
    return {
        "per_s": round(median(load.requests_per_second for load in loads)),
        "p50_ms": mid([median(load.latencies) for load in loads]),
        "p99_ms": mid([percentile(load.latencies, 99) for load in loads]),
        "commit_p50_ms": mid([median(each) for each in commits]),
        "commit_p99_ms": mid([percentile(each, 99) for each in commits]),
        "brokers_cpu_ms": mid([load.brokers_cpu_seconds / len(load.latencies) for load in loads]),
        "client_cpu_ms": mid([load.client_cpu_seconds / len(load.latencies) for load in loads]),
        "waited_ms": mid([load.waited_seconds / len(load.latencies) for load in loads]),
    }
