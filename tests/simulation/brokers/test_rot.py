"""Bits that flip on leaders, below their recovery points, while whole brokers are at work.

A2.3, G6, R7. Another replica in sync has them right. A reader, a program through the SDK or a
follower that begins anew, makes the leader check its disk; no reader gets an error.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.inspect import list_segments, read_recovery_point
from raftmq.partition.storage.segment import BatchStart, walk
from tests.simulation.brokers.examination import replicas_of
from tests.simulation.brokers.plan import TopicPlan
from tests.simulation.brokers.sdk_clients import SdkProgram
from tests.simulation.brokers.test_full_disks import TEETH, Loader
from tests.simulation.brokers.world import World
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.ledger import Spot

CHECKPOINT_SECONDS = 6.0
FOUND_SECONDS_MAX = 30.0
TOPIC = TopicPlan(
    partition_count=1,
    replication_factor=3,
    configs={
        "durability": "fsync",
        "min.insync.replicas": "2",
        "segment.bytes": "4000",
        "index.interval.bytes": "300",
        "record.format": "columns",
    },
)


class RottingDisks:
    """`by_follower`: who reads what is rotten; else a consumer does, from the beginning."""

    flips = 3

    def __init__(self, seed: int, *, by_follower: bool) -> None:
        self._by_follower, self._chance = by_follower, Random(f"{seed}/rot")
        world = self.world = World(seed, scenario=self._inject)
        world.tasks, world.groups = [], []
        world.plan = world.plan._replace(topics=(TOPIC,), lag_seconds=10.0, ends_dark=True)

    @property
    def found(self) -> list[str]:
        """What brokers have logged."""
        return [line for line in self.world.lines if " rot found: " in line]

    async def _inject(self) -> None:
        await self.world.wait_whole("before anything rots")
        loader = Loader(self.world)
        async with trio.open_nursery() as clients:
            clients.start_soon(loader.run)
            for number in range(self.flips):
                await trio.sleep(CHECKPOINT_SECONDS)
                await self.world.wait_whole("before anything rots", is_busy=True)
                await self._strike(number)
            self.world.repair()
            await self.world.wait_whole("after the repairs", is_busy=True)
            await self.world.probe()
            self.world.is_closing = True

    async def _strike(self, number: int) -> None:
        [spot] = self.world.spots()
        state = self.world.state_of(spot)
        assert state is not None
        hosts = {host.node_id: host for host in self.world.hosts}
        victim = hosts[state.leader]
        self._flip(victim, spot)
        if self._by_follower:
            other = hosts[next(each for each in state.replicas if each != state.leader)]
            self.world.trace(f"{other.name} begins anew")
            other.crash(power_lost=True)
            await other.wait_dead()
            other.lose_disk()
            other.start()
        else:
            await self._read_all(number)
        with trio.fail_after(FOUND_SECONDS_MAX):
            while len(self.found) <= number:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await self.world.wait_whole("after something has rotted", is_busy=True)
        demand(len(self.found) == number + 1, f"found more than once: {self.found}")

    def _flip(self, victim: BrokerHost, spot: Spot, *, part: int = 0, parts: int = 1) -> int:
        """A bit of one batch: of its records, its length or its checksum. The batch lies in that
        part of the log. Returns its offset.
        """
        log = replicas_of(self.world, spot)[victim.name].log
        point = read_recovery_point(victim.disk, log.folder) or 0
        batches = [
            (segment.path, position, header)
            for segment in list_segments(victim.disk, log.folder)
            for position, header in walk(
                victim.disk.open(segment.path), BatchStart(segment.base_offset, 0), segment.size
            )
            if header.end_offset <= point
        ]
        count = len(batches)
        batches = batches[part * count // parts : (part + 1) * count // parts]
        path, position, header = self._chance.choice(batches)
        byte = self._chance.choice((11, 18, header.size - 1))
        self.world.trace(f"rot at {path} {position}+{byte}, offset {header.base_offset} of {point}")
        victim.disk.flip_bit(path, position + byte, self._chance.randrange(8))
        return header.base_offset

    async def _read_all(self, number: int) -> None:
        [spot] = self.world.spots()
        end = max(replica.high_watermark for replica in replicas_of(self.world, spot).values())
        async with (
            SdkProgram(self.world, f"reader{number}")._client() as client,
            client.consumer(spot.topic, start="earliest", fetch_max_wait_ms=100) as consumer,
        ):
            offset = 0
            with trio.fail_after(FOUND_SECONDS_MAX):
                async for batch in consumer.batches():
                    demand(batch.offsets[0] == offset, f"{batch.offsets[0]} after {offset}")
                    offset = batch.end_offset
                    if offset >= end:
                        return


class EachRotten(RottingDisks):
    """Every replica rots, each one at another place. `order`: of the places, beginning with the
    leader's. `at_once`: each broker has met its own; else a consumer does, from leader to leader.
    """

    flips = 1

    def __init__(self, seed: int, order: tuple[int, ...], *, at_once: bool) -> None:
        super().__init__(seed, by_follower=False)
        self._order, self._at_once = order, at_once
        configs = {**TOPIC.configs, "min.insync.replicas": "1"}
        topic = TOPIC._replace(replication_factor=len(order), configs=configs)
        self.world.plan = self.world.plan._replace(topics=(topic,))

    async def _strike(self, number: int) -> None:
        [spot] = self.world.spots()
        hosts = {host.node_id: host for host in self.world.hosts}
        for node_id, part in zip(self._leader_first(spot), self._order, strict=True):
            offset = self._flip(hosts[node_id], spot, part=part, parts=len(self._order))
            if self._at_once:
                log = replicas_of(self.world, spot)[hosts[node_id].name].log
                log.doubt(CorruptRecord("as a reader says", offset=offset))
        for again in range(2 * len(self._order)):
            await self._read_all(number + again)
            await self.world.wait_whole("after each replica has rotted", is_busy=True)
        demand(len(self.found) == len(self._order), f"found by readers: {self.found}")

    def _leader_first(self, spot: Spot) -> list[int]:
        state = self.world.state_of(spot)
        assert state is not None
        return sorted(state.replicas, key=lambda each: each != state.leader)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_replicas_that_rot_at_different_places_mend_each_other(
    order: tuple[int, ...], at_once: bool
) -> None:
    """A2.3, R7: of each record some replica has a sound copy. It is never given up."""
    EachRotten(1, order, at_once=at_once).world.play()


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0)])
def test_three_replicas_that_rot_at_different_places_mend_each_other(
    order: tuple[int, ...],
) -> None:
    """A2.3, R7: the repairs of all begin at the same time."""
    EachRotten(1, order, at_once=True).world.play()


@pytest.mark.parametrize("by_follower", [False, True])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=TEETH)])
def test_what_rots_on_a_leader_is_found_and_comes_back_from_another(
    seed: int, by_follower: bool
) -> None:
    """Each flip is found once, and told; in the end all logs are alike."""
    RottingDisks(seed, by_follower=by_follower).world.play()
