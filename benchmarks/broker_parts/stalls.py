"""What holds a broker's event loop or a record of an fsync topic for long, under a mixed load.

Records of an fsync topic at a steady rate are timed, beside bulk on a page_cache topic, and topics
that are made, filled, trimmed and deleted all the time. In each broker stalls are counted
(`stall_watch.py`), and beside them a thread of this process times the disk alone: small writes,
each synced. What the disk itself takes no broker can be quicker than.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import NODES, open_brokers, open_client
from benchmarks.broker_parts.latency import percentiles
from benchmarks.broker_parts.load import fill, scaled, scheduled_load
from benchmarks.broker_parts.stall_watch import Note, notes_path
from benchmarks.broker_parts.topics import (
    MIN_IN_SYNC,
    REPLICAS,
    TIMEOUT_SECONDS,
    Case,
    make_topic,
    write_first,
)
from benchmarks.quorum_parts.figures import percentile
from raftmq.client.administration.offsets import delete_records
from raftmq.client.administration.topics import create_topic, delete_topic, wait_leaders
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

WATCHED = ("-m", "benchmarks.broker_parts.stall_watch")
SECONDS = 600.0
PER_SECOND = 100
MEASURED = Case(durability="fsync", is_single=True)
BULK = Case()
BULK_BYTES_PER_SECOND = 30e6
BULK_BATCHES = 4  # of 64 KiB, in a request
BULK_CONFIGS = {"segment.bytes": str(32 << 20), "retention.bytes": str(64 << 20)}
PASSING_PARTITIONS, PASSING_BYTES = 6, 4 << 20
PASSING_CONFIGS = {"segment.bytes": str(1 << 20), "retention.bytes": str(2 << 20)}
PASSING_PAUSE_SECONDS = 0.5
PROBE_SECONDS, PROBE_BYTES = 0.05, 1100
LONG_MS, LONGER_MS = 5.0, 20.0


async def bench_stalls(report: Report, root: Path, scale: float) -> None:
    seconds, probed = scaled(SECONDS, scale), list[float]()
    async with open_brokers(root, WATCHED) as brokers, open_client(brokers) as client:
        stays = await make_topic(client, partitions=12, durability=MEASURED.durability)
        bulk = await make_configured(client, "bulk", BULK.partitions, BULK.durability, BULK_CONFIGS)
        passed = list[str]()
        begin = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_bulk, client, bulk)
            nursery.start_soon(pass_topics, client, passed)
            nursery.start_soon(probe, brokers.root / "probe", probed)
            load = await scheduled_load(
                client, brokers, stays, MEASURED, per_second=PER_SECOND, seconds=seconds
            )
            nursery.cancel_scope.cancel()
        end = time.monotonic()
        report.row(what="fsync record", requests_s=PER_SECOND, **percentiles(load.latencies))
        report.row(what="disk alone", requests_s=round(1 / PROBE_SECONDS), **percentiles(probed))
        report.row(seconds=round(end - begin), topics_made_and_deleted=len(passed))
        notes = [note for note in await stop_all(brokers) if begin <= note.at < end]
    add_rounds(report, notes)
    add_places(report, notes)


# -- the load ------------------------------------------------------------------------------


async def make_configured(
    client: Cluster, name: str, partitions: int, durability: str, configs: dict[str, str]
) -> str:
    common = {"durability": durability, "min.insync.replicas": str(MIN_IN_SYNC)}
    await create_topic(
        client,
        name,
        partition_count=partitions,
        replication_factor=REPLICAS,
        configs=common | configs,
        deadline=trio.current_time() + TIMEOUT_SECONDS,
    )
    await wait_leaders(client, name, deadline=trio.current_time() + TIMEOUT_SECONDS)
    await write_first(client, name, partitions=partitions)
    return name


async def write_bulk(client: Cluster, topic: str) -> None:
    """At a steady rate; what cannot be done in time is left out."""
    data = BULK.batch().data * BULK_BATCHES
    period = len(data) * BULK.partitions / BULK_BYTES_PER_SECOND

    async def write(partition: int) -> None:
        due = trio.current_time() + period * partition / BULK.partitions
        while True:
            await trio.sleep_until(due)
            await produce(client, topic, partition, data, timeout_seconds=TIMEOUT_SECONDS)
            due = max(due + period, trio.current_time())

    async with trio.open_nursery() as nursery:
        for partition in range(BULK.partitions):
            nursery.start_soon(write, partition)


async def pass_topics(client: Cluster, passed: list[str]) -> None:
    """One after the other, of both durabilities in turn: made, filled, trimmed, deleted."""
    while True:
        name, durability = f"passing-{len(passed)}", ("fsync", "page_cache")[len(passed) % 2]
        await make_configured(client, name, PASSING_PARTITIONS, durability, PASSING_CONFIGS)
        batch = Case().batch()
        batches = await fill(
            client,
            name,
            batch,
            partitions=PASSING_PARTITIONS,
            bytes_per_partition=PASSING_BYTES,
        )
        middle = batches * batch.records // 2
        deadline = trio.current_time() + TIMEOUT_SECONDS
        await delete_records(
            client, name, dict.fromkeys(range(PASSING_PARTITIONS), middle), deadline=deadline
        )
        await trio.sleep(PASSING_PAUSE_SECONDS)
        await delete_topic(client, name, deadline=deadline)
        passed.append(name)


async def probe(path: Path, times: list[float]) -> None:
    """Seconds of a small append with its sync, on the same disk."""
    data = os.urandom(PROBE_BYTES)
    with path.open("wb", buffering=0) as file:

        def append() -> float:
            begin = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            return time.perf_counter() - begin

        while True:
            times.append(await trio.to_thread.run_sync(append))
            await trio.sleep(PROBE_SECONDS)


# -- the brokers ---------------------------------------------------------------------------


async def stop_all(brokers: Brokers) -> list[Note]:
    """In order; what all of them have noted."""
    notes: list[Note] = []
    for node in NODES:
        await brokers.stop(node)
        lines = notes_path(brokers.root / f"broker-{node}.toml").read_text().splitlines()
        notes += [Note(**json.loads(line)) for line in lines]
    return notes


# -- the tables ----------------------------------------------------------------------------


def add_rounds(report: Report, notes: Iterable[Note]) -> None:
    """Rounds of flushing, of all brokers, by the thread that made them."""
    by_thread = defaultdict[str, list[float]](list)
    for note in notes:
        if note.kind == "round":
            by_thread[note.place].append(note.ms)
    for place, times in sorted(by_thread.items()):
        report.row(
            rounds_of=place,
            rounds=len(times),
            p50_ms=median(times),
            p99_ms=percentile(times, 99),
            max_ms=max(times),
        )


def add_places(report: Report, notes: Iterable[Note]) -> None:
    """Stalls of all brokers by what was held and by whom, the longest first."""
    by_place = defaultdict[tuple[str, str], list[Note]](list)
    for note in notes:
        if note.ms > LONG_MS:
            by_place[note.kind, place_of(note)].append(note)
    for (kind, place), found in sorted(
        by_place.items(), key=lambda item: max(note.ms for note in item[1]), reverse=True
    ):
        longest = max(found, key=lambda note: note.ms)
        report.row(
            held=kind,
            place=place,
            over_5_ms=len(found),
            over_20_ms=sum(note.ms > LONGER_MS for note in found),
            longest_ms=longest.ms,
            its_cpu_ms=longest.cpu_ms,
        )


def place_of(note: Note) -> str:
    task = note.place.removeprefix("raftmq.")
    return f"{task} in {note.where}" if note.where else task
