"""How long a group of 50 members needs to deal out 200 partitions anew.

Members live in four processes, and one more in a process of its own, which is killed. Each
partition holds one record, and the group has committed 0 of each: whoever gets one is handed that
record. The time of a crash counts from the end of the session, as the one that was killed knew it;
that of a leave from when the member's block began to end.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.topics import make_topic
from benchmarks.group_parts.ownership import Ownership
from benchmarks.group_parts.workers import open_workers
from raftmq.client.client import Client

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.group_parts.ownership import Moved
    from benchmarks.group_parts.workers import Worker, Workers
    from benchmarks.report import Report

PROCESSES = 4
MEMBERS, PARTITIONS = 50, 200
ROUNDS = 3
SESSION_MS = 6_000  # the least that brokers take; a longer one is only waited for
DEFAULT_HEARTBEAT_MS = 3_000
QUIET_SECONDS = 0.8  # without a change the rebalance is over, also one that takes two rounds
SETTLE_SECONDS_MAX = 60.0
CRASHED, LEAVING = "crashed", "member-0"


class Case(NamedTuple):
    assignor: str
    heartbeat_ms: int

    @property
    def group(self) -> str:
        return f"{self.assignor}-{self.heartbeat_ms}"


CASES = (
    Case("cooperative_sticky", DEFAULT_HEARTBEAT_MS),
    Case("range", DEFAULT_HEARTBEAT_MS),
    Case("cooperative_sticky", 500),
)


class Group:
    """The members of one group, and who reads what."""

    def __init__(self, case: Case, topic: str, members: int, partitions: int) -> None:
        self._case, self._topic = case, topic
        self.names = [f"member-{number}" for number in range(members - 1)]
        self.ownership = Ownership(partitions)
        self._changed = trio.Event()

    def on_event(self, event: dict[str, Any]) -> None:
        self.ownership.on_event(event)
        self._changed.set()

    async def join(self, worker: Worker, names: list[str]) -> None:
        options = {
            "group": self._case.group,
            "assignor": self._case.assignor,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": self._case.heartbeat_ms,
        }
        await worker.ask("join", names=names, topic=self._topic, reads=True, options=options)

    async def wait_settled(self, members: int) -> None:
        """So many read everything, and nothing has changed for a while."""
        with trio.fail_after(SETTLE_SECONDS_MAX):
            while True:
                self._changed = trio.Event()
                with trio.move_on_after(QUIET_SECONDS) as quiet:
                    await self._changed.wait()
                is_there = self.ownership.is_whole and len(self.ownership.members) == members
                if quiet.cancelled_caught and is_there:
                    return


async def bench_rebalance(report: Report, root: Path, scale: float) -> None:
    rounds = max(1, int(ROUNDS * scale))
    members = max(PROCESSES + 2, int(MEMBERS * min(1.0, scale * 4)))
    partitions = members * PARTITIONS // MEMBERS
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        topic = await make_topic(client, partitions=partitions, durability="page_cache")
        for case in CASES:
            await _commit_nothing(brokers, case.group, topic, partitions)
            group = Group(case, topic, members, partitions)
            async with open_workers(brokers.addresses()) as workers:
                found = await _measure(group, workers, members, rounds)
            for what, moved in found.items():
                _add_row(report, case, what, moved, members, partitions)


async def _commit_nothing(brokers: Brokers, group: str, topic: str, partitions: int) -> None:
    """New owners begin where the group has committed, as in real life."""
    async with Client(brokers.addresses()) as client:
        offsets = {(topic, partition): 0 for partition in range(partitions)}
        await client.admin.alter_group_offsets(group, offsets)


async def _measure(
    group: Group, workers: Workers, members: int, rounds: int
) -> dict[str, list[Moved]]:
    found: dict[str, list[Moved]] = {"crash": [], "leave": []}
    hosts = [await workers.start(group.on_event) for _ in range(PROCESSES)]
    victim = await workers.start(group.on_event)
    async with trio.open_nursery() as nursery:
        for number, host in enumerate(hosts):
            nursery.start_soon(group.join, host, group.names[number::PROCESSES])
        nursery.start_soon(group.join, victim, [CRASHED])
    await group.wait_settled(members)
    for number in range(rounds):
        if number:
            victim = await workers.start(group.on_event)
            await group.join(victim, [CRASHED])
            await group.join(hosts[0], [LEAVING])
            await group.wait_settled(members)
        found["crash"].append(await _crash(group, workers, victim, members))
        found["leave"].append(await _leave(group, hosts[0], members))
    return found


async def _crash(group: Group, workers: Workers, victim: Worker, members: int) -> Moved:
    session_end = (await victim.ask("session_end", name=CRASHED))["at"]
    await workers.kill(victim)
    group.ownership.drop(CRASHED, session_end)
    await group.wait_settled(members - 1)
    return group.ownership.moved_since(session_end)


async def _leave(group: Group, host: Worker, members: int) -> Moved:
    began_at = (await host.ask("leave", names=[LEAVING]))["at"]
    await group.wait_settled(members - 2)
    return group.ownership.moved_since(began_at)


def _add_row(
    report: Report, case: Case, what: str, moved: list[Moved], members: int, partitions: int
) -> None:
    seconds = [one.seconds for one in moved]
    pauses = [pause for one in moved for pause in one.pauses]
    report.row(
        assignor=case.assignor,
        after=what,
        heartbeat_ms=case.heartbeat_ms,
        members=members,
        partitions=partitions,
        rounds=len(moved),
        p50_s=round(median(seconds), 2),
        max_s=round(max(seconds), 2),
        moved=round(median(one.partitions for one in moved)),
        pause_p50_s=round(median(pauses), 2),
        pause_max_s=round(max(pauses), 2),
    )
