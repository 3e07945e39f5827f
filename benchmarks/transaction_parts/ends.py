"""What decisions of transactions cost a broker that has no part in them, and when it knows them.

Three brokers are voters, a fourth one follows their quorum, leads nothing and coordinates nothing.
Commits of so many ids come at a steady rate, each of three partitions, in which nothing was
written: what is paid for is the decision, and that it is settled and forgotten. Snapshots of the
quorum are taken meanwhile. The fourth broker is asked the cheapest thing there is, over and over:
each answer names the version of its metadata, as the answers to commits name theirs.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import trio

from benchmarks.broker_parts.cluster import NODES, OBSERVER, open_brokers, open_client
from benchmarks.broker_parts.load import FIRST_AFTER_NS, scaled
from benchmarks.broker_parts.timer import open_timer
from benchmarks.broker_parts.topics import make_topic
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from benchmarks.transaction_parts.raw_ids import TIMEOUT_SECONDS, RawId, for_all
from benchmarks.transaction_parts.snapshot_broker import SNAPSHOT_ENTRIES
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.groups import FindCoordinator

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.process import Usage
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.groups import FindCoordinatorReply

ENTRY = ("-m", "benchmarks.transaction_parts.snapshot_broker")
RATES = (500, 1_500)
IDS = 600  # with one end under way each
PARTITIONS = 12
PARTITIONS_OF_END = 3
SECONDS, REST_SECONDS = 20.0, 5.0
BALANCED_SECONDS = 5.0  # until the observer has its share of the coordinators
LOOK_SECONDS = 0.005  # between questions to the observer
AIMS = {500: "observer: 5 % of a core more than at rest, lag p99 500 ms"}


class Told(NamedTuple):
    """A version of the metadata, and when an answer has named it."""

    version: int
    at: float


class Done(NamedTuple):
    seconds: float
    latencies: list[float]  # from when an end was due
    lateness: list[float]  # from when it was due until it was sent
    answered: list[Told]


async def bench_ends(report: Report, options: argparse.Namespace) -> None:
    seconds = scaled(SECONDS, options.scale)
    async with open_brokers(options.root, ENTRY) as brokers, open_client(brokers) as cluster:
        topic = await make_topic(cluster, partitions=PARTITIONS, durability="fsync")
        topic_id = (await brokers.describe((topic,))).topics[0].topic_id
        await brokers.start([OBSERVER])
        await brokers.wait_members()
        await trio.sleep(BALANCED_SECONDS)
        await cluster.refresh(None, deadline=trio.current_time() + TIMEOUT_SECONDS)
        ids = await ids_of_voters(cluster)
        await for_all(ids, RawId.open)
        for _ in range(options.rounds):
            for rate in RATES:
                await measure(report, brokers, cluster, ids, topic_id, rate, seconds)


async def ids_of_voters(cluster: Cluster) -> list[RawId]:
    """Ids that the observer does not coordinate: it has its share of the slots."""
    names = tuple(f"id-{number}" for number in range(IDS * 3 // 2))
    deadline = trio.current_time() + TIMEOUT_SECONDS
    answer = await cluster.ask(NODES[0], FindCoordinator(names), deadline=deadline)
    found: FindCoordinatorReply = answer.body
    return [RawId(cluster, one.group) for one in found.coordinators if one.broker_id in NODES][:IDS]


async def measure(
    report: Report,
    brokers: Brokers,
    cluster: Cluster,
    ids: list[RawId],
    topic_id: bytes,
    rate: int,
    seconds: float,
) -> None:
    """One row: the observer at rest, with the questions, then under this load."""
    async with open_watch(cluster) as seen:
        await trio.sleep(REST_SECONDS)  # what was decided before is settled and forgotten
        at_rest = await cost(brokers, REST_SECONDS)
        before, began = brokers.usage(), time.monotonic()
        snapshots = count_snapshots(brokers)
        done = await load(ids, topic_id, rate, seconds)
        passed, after = time.monotonic() - began, brokers.usage()
        await trio.sleep(REST_SECONDS)
    lags = [lag for one in done.answered if (lag := lag_of(one, seen)) is not None]
    ends = len(done.latencies)
    voters = sum(cpu_between(before[node], after[node]) for node in NODES)
    observer = cpu_between(before[OBSERVER], after[OBSERVER]) / passed
    report.row(
        asked_s=rate,
        ends_s=round(ends / done.seconds),
        p50_ms=rounded_ms(median(done.latencies)),
        p99_ms=rounded_ms(percentile(done.latencies, 99)),
        late_p99_ms=rounded_ms(percentile(done.lateness, 99)),
        lag_p50_ms=rounded_ms(median(lags)),
        lag_p99_ms=rounded_ms(percentile(lags, 99)),
        observer_percent=round(observer * 100, 1),
        at_rest_percent=round(at_rest * 100, 1),
        observer_us_per_end=round((observer - at_rest) * passed / ends * 1e6, 1),
        voters_cpu_ms_per_end=rounded_ms(voters / ends),
        observer_waited_percent=round(waited(before, after) / passed * 100),
        snapshots=count_snapshots(brokers) - snapshots,
        aim=AIMS.get(rate, ""),
    )


async def cost(brokers: Brokers, seconds: float) -> float:
    """Of the observer, in cores."""
    before, began = brokers.usage()[OBSERVER], time.monotonic()
    await trio.sleep(seconds)
    return cpu_between(before, brokers.usage()[OBSERVER]) / (time.monotonic() - began)


def cpu_between(before: Usage, after: Usage) -> float:
    return after.cpu_seconds - before.cpu_seconds


def waited(before: dict[int, Usage], after: dict[int, Usage]) -> float:
    return max(0.0, after[OBSERVER].waited_seconds - before[OBSERVER].waited_seconds)


def count_snapshots(brokers: Brokers) -> int:
    """How many a voter can have taken so far, by the newest one."""
    found = (brokers.root / f"broker-{NODES[0]}").rglob("snapshot-*.snapshot")
    return max((int(path.name.split("-")[1]) for path in found), default=0) // SNAPSHOT_ENTRIES


async def load(ids: list[RawId], topic_id: bytes, rate: int, seconds: float) -> Done:
    """Each end on its time; one of an id that still has an end under way waits for it."""
    done = Done(seconds, [], [], [])
    period_ns, total = round(1e9 / rate), round(rate * seconds)
    first_ns = time.monotonic_ns() + FIRST_AFTER_NS

    async def end(number: int) -> None:
        due = (first_ns + number * period_ns) / 1e9
        one = ids[number % len(ids)]
        partitions = tuple(
            TopicPartition(topic_id, (number + place) % PARTITIONS)
            for place in range(PARTITIONS_OF_END)
        )
        async with one.is_free:
            done.lateness.append(time.monotonic() - due)
            answer = await one.commit(partitions)
        done.latencies.append(time.monotonic() - due)
        done.answered.append(Told(answer.metadata_version, time.monotonic()))

    async with trio.open_nursery() as nursery:
        number = 0
        with open_timer(first_ns=first_ns, period_ns=period_ns) as timer:
            while number < total:
                for _ in range(min(await timer.wait(), total - number)):
                    nursery.start_soon(end, number)
                    number += 1
    passed = time.monotonic() - first_ns / 1e9
    return done._replace(seconds=passed)


@asynccontextmanager
async def open_watch(cluster: Cluster) -> AsyncIterator[list[Told]]:
    """What the observer tells from now on: its versions rise."""
    seen: list[Told] = []

    async def watch() -> None:
        while True:
            deadline = trio.current_time() + TIMEOUT_SECONDS
            answer = await cluster.ask(OBSERVER, FindCoordinator(()), deadline=deadline)
            seen.append(Told(answer.metadata_version, time.monotonic()))
            await trio.sleep(LOOK_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield seen
        nursery.cancel_scope.cancel()


def lag_of(one: Told, seen: list[Told]) -> float | None:
    """Seconds from the answer until the observer has named its version, or a later one."""
    place = bisect_left(seen, one.version, key=lambda told: told.version)
    return max(0.0, seen[place].at - one.at) if place < len(seen) else None
