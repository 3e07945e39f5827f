"""How long partitions take no records after the broker that leads them was killed.

One producer a partition, acks=all, a record about every 5 ms. A gap is the time from the last
acknowledgement of a record sent before the kill to the first one of a record sent after it: on the
partitions that the broker led, and on those of the others, which wait until it is out of the ISR.
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import trio

from benchmarks.broker_parts.cluster import NODES, WAIT_SECONDS_MAX, open_brokers, open_client
from benchmarks.broker_parts.topics import Case, make_topic
from raftmq.errors import RaftmqError
from tests.producing import produce

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

KILLS = 20  # of either kind half
PARTITIONS = 6
PAUSE_SECONDS = 0.005
TIMEOUT_SECONDS = 0.25
CALM_SECONDS = 3.0  # before a kill, so that each is a story of its own
CALM_SECONDS_MIN = 1.0
LOOK_SECONDS = 0.01


class Acknowledged(NamedTuple):
    sent_at: float
    heard_at: float


class Producers:
    """Attributes:
    log: what was acknowledged, of each partition.
    errors: how often a call has failed, by name of the error: expected after a kill.
    """

    def __init__(self, client: Cluster, topic: str) -> None:
        self._client, self._topic = client, topic
        self._data = Case(is_single=True).batch().data
        self.log: dict[int, list[Acknowledged]] = {each: [] for each in range(PARTITIONS)}
        self.errors: Counter[str] = Counter()

    async def run(self, partition: int) -> None:
        while True:
            sent_at = trio.current_time()
            try:
                await produce(
                    self._client,
                    self._topic,
                    partition,
                    self._data,
                    timeout_seconds=TIMEOUT_SECONDS,
                )
                self.log[partition].append(Acknowledged(sent_at, trio.current_time()))
            except RaftmqError as error:
                self.errors[type(error).__name__] += 1
            await trio.sleep(PAUSE_SECONDS)

    async def wait_gaps(self, killed_at: float) -> dict[int, float]:
        """Once every partition takes records again: seconds, of each."""
        with trio.fail_after(WAIT_SECONDS_MAX):
            while not all(  # noqa: ASYNC110  # rarely, so that the load is left alone
                log[-1].sent_at > killed_at for log in self.log.values()
            ):
                await trio.sleep(LOOK_SECONDS)
        return {partition: gap(log, killed_at) for partition, log in self.log.items()}


def gap(log: list[Acknowledged], killed_at: float) -> float:
    last = max(one.heard_at for one in log if one.sent_at <= killed_at)
    return min(one.heard_at for one in log if one.sent_at > killed_at) - last


class Gaps(NamedTuple):
    """The longest of a kill, in seconds: of partitions that the broker led, and of the others.

    None: it led them all.
    """

    was_controller: bool
    led: float
    followed: float | None


async def bench_failover(report: Report, root: Path, scale: float) -> None:
    kills = max(4, int(KILLS * scale))
    calm_seconds = max(CALM_SECONDS_MIN, CALM_SECONDS * min(1.0, scale))
    found: list[Gaps] = []
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        topic = await make_topic(client, partitions=PARTITIONS, durability="fsync")
        producers = Producers(client, topic)
        async with trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(producers.run, partition)
            while len(found) < kills:
                gaps = await kill_once(brokers, topic, producers, found, calm_seconds=calm_seconds)
                found.append(gaps)
            nursery.cancel_scope.cancel()
    for was_controller in (False, True):
        of_kind = [one for one in found if one.was_controller == was_controller]
        add_rows(report, of_kind, was_controller=was_controller)
    print(f"failed calls: {dict(producers.errors)}")  # noqa: T201  # what the gaps looked like


async def kill_once(
    brokers: Brokers, topic: str, producers: Producers, found: list[Gaps], *, calm_seconds: float
) -> Gaps:
    """Of the kind that is rarer so far, if such a broker leads anything."""
    await brokers.wait_whole(topic)
    await trio.sleep(calm_seconds)
    reply = await brokers.describe((topic,))
    leaders = {one.partition: one.leader for one in reply.topics[0].partitions}
    controllers = sum(one.was_controller for one in found)
    wants_controller = 2 * controllers < len(found)
    victim = max(
        NODES,
        key=lambda node: (
            node in leaders.values(),
            (node == reply.controller_id) == wants_controller,
            list(leaders.values()).count(node),
        ),
    )
    brokers.kill(victim)
    gaps = await producers.wait_gaps(trio.current_time())
    await brokers.start([victim])
    return Gaps(
        was_controller=victim == reply.controller_id,
        led=max(gaps[each] for each, leader in leaders.items() if leader == victim),
        followed=max(
            (gaps[each] for each, leader in leaders.items() if leader != victim), default=None
        ),
    )


def add_rows(report: Report, gaps: list[Gaps], *, was_controller: bool) -> None:
    for what in ("led", "followed"):
        times = [time for one in gaps if (time := getattr(one, what)) is not None]
        report.row(
            killed="controller" if was_controller else "another broker",
            partitions=f"that it {what}",
            kills=len(times),
            p50_ms=round(median(times) * 1e3) if times else "",
            max_ms=round(max(times) * 1e3) if times else "",
        )
