"""Offset commits through the quorum: how many a second, how long, how many share a command.

Members of one or several groups, in one process, commit every record, one commit of each under way;
alone, and while data flow from another process.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import fill, scaled
from benchmarks.broker_parts.topics import Batch, make_topic
from benchmarks.group_parts.waiting import wait_stable
from benchmarks.group_parts.workers import open_workers
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from raftmq.wire.batch.records import encode_batch

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.group_parts.workers import Worker
    from benchmarks.report import Report

SECONDS, WARM_UP_SECONDS = 5.0, 1.0
PARTITIONS = 64
RECORDS = 2_000  # of each partition: more than a member commits
FLOW_PARTITIONS, FLOW_MB_S = 12, 50.0


class Case(NamedTuple):
    """So many groups of so many members each."""

    groups: int
    members: int
    mb_s: float = 0.0


CASES = (
    Case(1, 1),
    Case(8, 1),
    Case(1, 64),
    Case(8, 8),
    Case(1, 1, FLOW_MB_S),
    Case(8, 8, FLOW_MB_S),
)


async def bench_commits(report: Report, root: Path, scale: float) -> None:
    seconds = scaled(SECONDS, scale)
    async with open_brokers(root) as brokers:
        topic, flow_topic = await _topics(brokers)
        async with open_workers(brokers.addresses()) as workers:
            flowing = await workers.start()
            for number, case in enumerate(CASES):
                host = await workers.start()
                await _join(brokers, host, topic, case, number)
                flow = partial(_flow, flowing, flow_topic, case, seconds)
                await _measure(report, brokers, host, case, seconds, flow)
                await workers.kill(host)


async def _topics(brokers: Brokers) -> tuple[str, str]:
    """What members read, and where data flow."""
    async with open_client(brokers) as client:
        topic = await make_topic(client, partitions=PARTITIONS, durability="page_cache")
        batch = Batch(bytes(encode_batch(values=[b"x" * 100] * RECORDS, timestamp=0)), RECORDS)
        await fill(client, topic, batch, partitions=PARTITIONS, bytes_per_partition=1)
        flow_topic = await make_topic(client, partitions=FLOW_PARTITIONS, durability="page_cache")
    return topic, flow_topic


async def _join(brokers: Brokers, host: Worker, topic: str, case: Case, number: int) -> None:
    names = {f"commits-{number}-{group}": case.members for group in range(case.groups)}
    async with trio.open_nursery() as nursery:
        for group, members in names.items():
            join = partial(
                host.ask,
                "join",
                names=[f"{group}-{member}" for member in range(members)],
                topic=topic,
                reads=False,
                options={"group": group},
            )
            nursery.start_soon(join)
    await wait_stable(brokers, names)


async def _measure(
    report: Report, brokers: Brokers, host: Worker, case: Case, seconds: float, flow: partial[Any]
) -> None:
    async with trio.open_nursery() as nursery:
        flowed: list[float] = []
        nursery.start_soon(flow, flowed)
        await host.ask("commit", seconds=WARM_UP_SECONDS)
        cpu = brokers.cpu_seconds()
        done = await host.ask("commit", seconds=seconds)
        cpu = brokers.cpu_seconds() - cpu
    latencies, count = done["latencies"], len(done["latencies"])
    report.row(
        groups=case.groups,
        members=case.groups * case.members,
        flow_mb_s=round(flowed[0], 1),
        commits_s=round(count / done["seconds"]),
        p50_ms=rounded_ms(median(latencies)),
        p99_ms=rounded_ms(percentile(latencies, 99)),
        commands_s=round(done["commands"] / done["seconds"]),
        commits_per_command=round(count / done["commands"], 1),
        client_cpu_us=round(done["cpu_seconds"] / count * 1e6),
        brokers_cpu_us=round(cpu / count * 1e6),
    )


async def _flow(
    worker: Worker, topic: str, case: Case, seconds: float, flowed: list[float]
) -> None:
    """As long as commits are measured, and a little longer."""
    if not case.mb_s:
        flowed.append(0.0)
        return
    done = await worker.ask(
        "flow",
        topic=topic,
        partitions=FLOW_PARTITIONS,
        megabytes_per_second=case.mb_s,
        seconds=seconds + WARM_UP_SECONDS,
    )
    flowed.append(done["mb_s"])
