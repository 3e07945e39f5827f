"""How long transactions cannot be decided after their coordinator was killed.

A gap is the time from the kill to the end of the first commit that has begun after it: of groups,
as the measure; of transactions that commit offsets only, which need the coordinator and nothing
else; of transactions with a record, which also need the leader of its partition. Only those whose
coordinator was killed count. Groups and transaction ids of one name have one coordinator.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.broker_parts.cluster import NODES, WAIT_SECONDS_MAX, open_brokers, open_client
from benchmarks.broker_parts.topics import Case, make_topic
from benchmarks.transaction_parts.raw_ids import TIMEOUT_SECONDS
from raftmq.client.client import Client
from raftmq.errors import RaftmqError
from raftmq.wire.messages.groups import FindCoordinator

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

    Act: TypeAlias = Callable[[], Awaitable[object]]

KILLS = 10
NAMES = 12  # each of a group, of a producer that commits offsets, and of one that sends
PARTITIONS = 6
PAUSE_SECONDS = 0.01
CALM_SECONDS = 3.0
LOOK_SECONDS = 0.01
TRANSACTION_MS = 10_000


class Worker:
    """Attributes:
    name: of the group, or of the transaction id.
    newest: when its newest commit that succeeded began, and when it ended.
    """

    def __init__(self, kind: str, name: str, act: Act, errors: Counter[str]) -> None:
        self.kind, self.name, self._act, self._errors = kind, name, act, errors
        self.newest = (0.0, 0.0)

    async def run(self) -> None:
        while True:
            began = trio.current_time()
            try:
                await self._act()
                self.newest = (began, trio.current_time())
            except RaftmqError as error:
                self._errors[type(error).__name__] += 1
            await trio.sleep(PAUSE_SECONDS)

    async def wait_gap(self, killed_at: float) -> float:
        while self.newest[0] <= killed_at:  # noqa: ASYNC110  # rarely, so that the load is left alone
            await trio.sleep(LOOK_SECONDS)
        return self.newest[1] - killed_at


async def bench_takeover(report: Report, options: argparse.Namespace) -> None:
    gaps: dict[str, list[float]] = {}
    errors: Counter[str] = Counter()
    async with open_brokers(options.root) as brokers, open_client(brokers) as cluster:
        topic = await make_topic(cluster, partitions=PARTITIONS, durability="fsync")
        async with Client(brokers.addresses()) as client, trio.open_nursery() as nursery:
            workers = await start(client, topic, nursery, errors)
            for number in range(max(2, int(KILLS * options.scale))):
                await brokers.wait_whole(topic)
                await trio.sleep(CALM_SECONDS)
                victim = NODES[number % len(NODES)]
                hit = await of_coordinator(cluster, workers, victim)
                brokers.kill(victim)
                killed_at = trio.current_time()
                with trio.fail_after(WAIT_SECONDS_MAX):
                    for worker in hit:
                        gap = await worker.wait_gap(killed_at)
                        gaps.setdefault(worker.kind, []).append(gap)
                await brokers.start([victim])
            nursery.cancel_scope.cancel()
    for kind, found in gaps.items():
        report.row(
            commits=kind,
            gaps=len(found),
            p50_ms=round(median(found) * 1e3),
            max_ms=round(max(found) * 1e3),
            aim="" if kind == "group" else "as of a group",
        )
    print(f"failed commits: {dict(errors)}")  # noqa: T201  # what the gaps looked like


async def start(
    client: Client, topic: str, nursery: trio.Nursery, errors: Counter[str]
) -> list[Worker]:
    workers = []
    for number in range(NAMES):
        options: dict[str, Any] = {"transaction_timeout_ms": TRANSACTION_MS, "linger_ms": 0}
        offsets, sends = [
            await nursery.start(hold, client.producer(transaction_id=f"{kind}-{number}", **options))
            for kind in ("offsets", "sends")
        ]
        acts: dict[str, tuple[str, Act]] = {
            "group": (f"group-{number}", partial(commit_group, client, topic, f"group-{number}")),
            "transaction, offsets only": (
                f"offsets-{number}",
                partial(commit_offsets, offsets, topic, f"moved-{number}"),
            ),
            "transaction, one record": (f"sends-{number}", partial(send_one, sends, topic)),
        }
        workers += [Worker(kind, name, act, errors) for kind, (name, act) in acts.items()]
    for worker in workers:
        nursery.start_soon(worker.run)
    return workers


async def hold(producer: Any, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
    """Open until it is cancelled."""
    async with producer:
        task_status.started(producer)
        await trio.sleep_forever()


async def commit_group(client: Client, topic: str, group: str) -> None:
    await client.admin.alter_group_offsets(group, {(topic, 0): 1})


async def commit_offsets(producer: Any, topic: str, group: str) -> None:
    async with producer.transaction() as tx:
        tx.commit_offsets({(topic, 0): 1}, group=group)


async def send_one(producer: Any, topic: str) -> None:
    async with producer.transaction() as tx:
        await tx.send(topic, Case.record_bytes * b"x")


async def of_coordinator(cluster: Cluster, workers: list[Worker], broker: int) -> list[Worker]:
    names = tuple(worker.name for worker in workers)
    deadline = trio.current_time() + TIMEOUT_SECONDS
    asked = next(node for node in NODES if node != broker)
    answer = await cluster.ask(asked, FindCoordinator(names), deadline=deadline)
    owners = {one.group: one.broker_id for one in answer.body.coordinators}
    return [worker for worker in workers if owners[worker.name] == broker]
