"""Programs on `raftmq.exactly_once`: members of one group that copy a topic, die, and begin anew.

Owns their lives, and what is judged of them: each committed record of the input has one result in
the end, and nothing else has.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from jepsen_like.workloads.keys import encode_value
from jepsen_like.workloads.mortal_network import MortalNetwork
from raftmq.errors import RaftmqError
from tests.simulation.brokers.examination import replicas_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.transactions.transaction import Transaction
    from tests.simulation.transacting.judge import View
    from tests.simulation.transacting.world import TransactionWorld

GROUP = "helping"
RESULTS = "results"  # topic
LIFE_SECONDS = (0.5, 2.0, 5.0)
FAILING_SHARE = 0.05  # of batches
BATCH_RECORDS = 20
PARTITION = 10**9  # of the input, times that, and the offset: the value of a result
SESSION_MS = 2_000


class FailedError(Exception):
    """A mistake of the program."""


class Helper:
    def __init__(self, world: TransactionWorld, bench: Bench, number: int, topic: str) -> None:
        self._world, self._bench, self._topic = world, bench, topic
        self._name = f"helper-{number}"
        self._random = Random(f"{world.seed}/{self._name}")

    async def run(self, stop: trio.Event) -> None:
        """One life after the other, until `stop` is set; the last one is left in peace."""
        while not stop.is_set():
            network = MortalNetwork(self._bench.new_network(self._name))
            with trio.CancelScope() as scope:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._end, stop, network, scope)
                        await self._live(network)
                        nursery.cancel_scope.cancel()
                except* RaftmqError as errors:
                    self._world.trace(f"{self._name} {errors.exceptions!r}")
                except* FailedError:
                    self._world.trace(f"{self._name} has failed")
            await trio.sleep(0.1)

    async def _end(self, stop: trio.Event, network: MortalNetwork, scope: trio.CancelScope) -> None:
        """It leaves, or its machine falls silent."""
        with trio.move_on_after(self._random.choice(LIFE_SECONDS)):
            await stop.wait()
        if self._world.is_repaired:
            await stop.wait()
        elif self._random.random() < 0.5:
            self._world.trace(f"{self._name} dies")
            network.is_dead = True
            scope.cancel()
            with trio.CancelScope(shield=True):
                await network.die()
        scope.cancel()

    async def _live(self, network: MortalNetwork) -> None:
        options: dict[str, Any] = {
            "group": GROUP,
            "delivery": "exactly_once",
            "start": "earliest",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": SESSION_MS // 4,
            "max_poll_records": BATCH_RECORDS,
        }
        async with (
            self._bench.new_client(self._name, network) as client,
            client.consumer(self._topic, **options) as consumer,
        ):
            await raftmq.exactly_once(
                client, consumer, self._transform, interval_ms=self._random.choice((1, 100))
            )

    async def _transform(self, batch: ConsumedBatch, tx: Transaction) -> None:
        if self._random.random() < FAILING_SHARE and not self._world.is_repaired:
            raise FailedError
        for offset in batch.offsets:
            value = encode_value(PARTITION * (1 + batch.partition) + offset)
            place = self._random.randrange(self._world.topics[RESULTS])
            await tx.enqueue(RESULTS, value, partition=place)


def behind(world: TransactionWorld, topic: str) -> str:
    """Which partition of the input the group has not read to its end."""
    image = world.newest_image()
    offsets = image.offsets.get(GROUP, {})
    for spot in (each for each in world.spots() if each.topic == topic):
        leaders = [one for one in replicas_of(world, spot).values() if one.leader is not None]
        # A marker above the high watermark: what it ends is not open any more, nor readable yet.
        if not leaders or leaders[0].last_stable_offset < leaders[0].log.log_end_offset:
            return f"{spot} is not led, or not decided to its end"
        known = offsets.get((world.topic_ids[topic, 0], spot.partition))
        end = leaders[0].last_stable_offset
        if (known.offset if known else 0) < end and _has_records(world, str(spot), known):
            return f"{spot} is read to {known} of {end}"
    return ""


def _has_records(world: TransactionWorld, key: str, known: Any) -> bool:
    start = known.offset if known else 0
    return any(offset >= start for offset, _ in world.views()[key].committed)


def judge_results(world: TransactionWorld, topic: str, views: dict[str, View]) -> None:
    """One for each committed record of the input."""
    found = Counter(
        value
        for key, view in views.items()
        if key.startswith(f"{RESULTS}-")
        for _, value in view.committed
    )
    wanted = {
        PARTITION * (1 + partition) + offset
        for partition in range(world.topics[topic])
        for offset, _ in views[f"{topic}-{partition}"].committed
    }
    twice = [value for value, count in found.items() if count > 1]
    demand(not twice, f"{topic}: two results of {sorted(twice)[:5]}")
    missing, more = sorted(wanted - set(found)), sorted(set(found) - wanted)
    demand(not missing, f"{topic}: no result of {missing[:5]}")
    demand(not more, f"{topic}: results of what is not committed: {more[:5]}")
