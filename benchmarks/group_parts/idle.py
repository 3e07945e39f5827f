"""What 1,000 members of one group cost that have nothing to do: coordinator, and clients.

Once as good as none of them has a partition, which shows what membership costs; once each has one,
for which it asks the leader twice a second, with the defaults. Compared with the same brokers and
processes before the members joined.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.topics import create, write_first
from benchmarks.group_parts.waiting import wait_stable
from benchmarks.group_parts.workers import open_workers

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.process import Usage
    from benchmarks.group_parts.workers import Worker, Workers
    from benchmarks.report import Report

MEMBERS, PROCESSES = 1_000, 4
MEMBERS_MIN = 40
FEW_PARTITIONS = 12
REST_SECONDS, IDLE_SECONDS = 4.0, 10.0
IDLE_SECONDS_MIN = 6.0  # two heartbeats of each member
GROUP = "idle"


class Cost(NamedTuple):
    """Of some processes: memory of all together, and CPU, in percent of a core."""

    resident_mib: float
    cpu_percent: float


class Costs(NamedTuple):
    """`waited_percent`: how long a client process waited for a core, the mean. Where that is not
    little, members do less than they should, and cost less than they would.
    """

    brokers: dict[int, Cost]
    clients: Cost
    waited_percent: float


async def bench_members(report: Report, root: Path, scale: float) -> None:
    members = max(MEMBERS_MIN, int(MEMBERS * min(1.0, scale)))
    seconds = max(IDLE_SECONDS_MIN, IDLE_SECONDS * min(1.0, scale))
    for partitions in (FEW_PARTITIONS, members):
        async with open_brokers(root) as brokers, open_workers(brokers.addresses()) as workers:
            await _measure(report, brokers, workers, members, partitions, seconds)


async def _measure(
    report: Report,
    brokers: Brokers,
    workers: Workers,
    members: int,
    partitions: int,
    seconds: float,
) -> None:
    async with open_client(brokers) as client:
        topic = await create(client, partitions=partitions, durability="page_cache")
        await write_first(client, topic, partitions=partitions)
    hosts = [await workers.start() for _ in range(PROCESSES)]
    before = await _costs(brokers, hosts, seconds)
    begin = time.monotonic()
    async with trio.open_nursery() as nursery:
        for number, host in enumerate(hosts):
            names = [f"{number}-{member}" for member in range(number, members, PROCESSES)]
            join = partial(host.ask, "join", names=names, topic=topic, reads=True)
            nursery.start_soon(partial(join, options={"group": GROUP}))
    coordinator = (await wait_stable(brokers, {GROUP: members}))[GROUP]
    joined_seconds = time.monotonic() - begin
    after = await _costs(brokers, hosts, seconds)
    others = [node for node in after.brokers if node != coordinator]
    for who, pairs in (
        ("coordinator", [(before.brokers[coordinator], after.brokers[coordinator])]),
        ("another broker", [(before.brokers[node], after.brokers[node]) for node in others]),
        ("4 client processes", [(before.clients, after.clients)]),
    ):
        _add_row(report, members, partitions, who, pairs)
    report.row(
        members=members,
        partitions=partitions,
        joined_s=round(joined_seconds, 1),
        clients_waited_percent=round(after.waited_percent),
    )


def _add_row(
    report: Report, members: int, partitions: int, who: str, pairs: list[tuple[Cost, Cost]]
) -> None:
    """The mean, where there are several."""
    resident = [sum(one[at].resident_mib for one in pairs) / len(pairs) for at in (0, 1)]
    percent = [sum(one[at].cpu_percent for one in pairs) / len(pairs) for at in (0, 1)]
    report.row(
        members=members,
        partitions=partitions,
        of=who,
        mib_before=round(resident[0]),
        mib=round(resident[1]),
        kib_per_member=round((resident[1] - resident[0]) * 1024 / members, 1),
        cpu_percent_before=round(percent[0], 1),
        cpu_percent=round(percent[1], 1),
        cpu_us_s_per_member=round((percent[1] - percent[0]) / 100 / members * 1e6),
    )


async def _costs(brokers: Brokers, hosts: list[Worker], seconds: float) -> Costs:
    """After a rest."""
    await trio.sleep(REST_SECONDS)
    begin, before = time.monotonic(), (brokers.usage(), [host.usage() for host in hosts])
    waited = sum(host.usage().waited_seconds for host in hosts)
    await trio.sleep(seconds)
    passed, after = time.monotonic() - begin, (brokers.usage(), [host.usage() for host in hosts])
    waited = sum(host.usage().waited_seconds for host in hosts) - waited
    by_broker = {node: _cost([before[0][node]], [after[0][node]], passed) for node in after[0]}
    clients = _cost(before[1], after[1], passed)
    return Costs(by_broker, clients, waited / passed / len(hosts) * 100)


def _cost(before: list[Usage], after: list[Usage], seconds: float) -> Cost:
    cpu_seconds = sum(one.cpu_seconds for one in after) - sum(one.cpu_seconds for one in before)
    return Cost(sum(one.resident_mib for one in after), cpu_seconds / seconds * 100)
