"""Random readers of one leader against plain lists: what they get, and that no answer is late.

Two followers and a consumer lag, restart and begin new sessions, while records come, leaders change
and logs are cut. After every step all that the leader owes them is compared with what it answered.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.partition.leader import Diverged
from raftmq.partition.replica import Replica
from raftmq.partition.replica_environment import FetchedFromLeader
from raftmq.partition.tail import TailMemory
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.unit.broker.copying import alone, key_of
from tests.unit.broker.fetch_readers import (
    NUMBERS,
    Batch,
    Copy,
    LedPartitions,
    ModelConsumer,
    ModelFollower,
)
from tests.unit.partition.replica_world import TOPIC_ID, led_by
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.storage.log import PartitionLog
    from tests.unit.broker.copying import Copier

CONFIG = TopicConfig(segment_bytes=1 << 14, index_interval_bytes=256)
TAIL_BYTES_MAX = 5000  # a few appends of all partitions
ALARMS_MAX = 3  # of a session: two of a long poll and its lingering, one of a shorter poll


class Model(LedPartitions):
    """Attributes:
    is_led: by this broker, for each partition.
    """

    def __init__(self, leader: Copier, random: Random) -> None:
        super().__init__(leader, random)
        leader.disk.seconds = random.choice((0.0, 0.0, 0.003, 0.03))
        leader.directory.tails = TailMemory(TAIL_BYTES_MAX)
        self.is_led = [False for _ in NUMBERS]
        self.followers = ModelFollower(self, 2), ModelFollower(self, 3)
        self.readers = *self.followers, ModelConsumer(self, 0)
        self.batch_count = 0

    async def open(self) -> None:
        for number in NUMBERS:
            log = await self.leader.directory.open_log(TOPIC_ID.hex(), number, CONFIG)
            self.replicas.append(self.host(number, log, 0))
            await self.elect(number, 1)

    def host(self, number: int, log: PartitionLog, high_watermark: int) -> Replica:
        key, leader = key_of(number), self.leader
        replica = Replica(key, log, leader.directory, leader.around, high_watermark=high_watermark)
        replica.watchers[self.risen[number]] = None
        leader.hosted.replicas[key] = replica
        return replica

    # -- steps -----------------------------------------------------------------------------

    def batch(self, base_offset: int, leader_epoch: int) -> tuple[Batch, bytes]:
        """As it is stored, and as it is sent."""
        self.batch_count += 1
        count, size = self.random.choice((1, 1, 3, 20)), self.random.choice((1, 5, 100, 1200))
        encode = partial(
            encode_batch,
            values=[b"%d " % self.batch_count + b"x" * (size // count)] * count,
            timestamp=NOW_MS,
        )
        stored = encode(base_offset=base_offset, leader_epoch=leader_epoch)
        batch = Batch(base_offset, base_offset + count, leader_epoch, bytes(stored))
        return batch, bytes(encode())

    def produce(self) -> None:
        number, data = self.random.choice(NUMBERS), b""
        if self.is_led[number]:
            for _ in range(self.random.choice((1, 1, 2, 5))):
                batch, sent = self.batch(self.logs[number].end_offset, self.epochs[number])
                self.logs[number].batches.append(batch)
                data += sent
            self.replicas[number].append(memoryview(data), acks=1)

    async def elect(self, number: int, leader: int) -> None:
        self.epochs[number] += 1
        self.is_led[number] = leader == 1
        await self.replicas[number].take_up(led_by(leader, self.epochs[number], replicas=(1, 2, 3)))

    async def change_leader(self, number: int) -> None:
        """This broker in another epoch, or a follower, whose log it takes over."""
        elected = self.random.choice(self.followers)
        is_own = not self.is_led[number] or self.random.random() < 0.3
        await self.elect(number, 1 if is_own else elected.broker_id)
        if not is_own:
            theirs, epoch = elected.copies[number], self.epochs[number]
            theirs.leader_epoch, theirs.agrees = epoch, False
            for _ in range(self.random.randrange(3)):
                theirs.batches.append(self.batch(theirs.end_offset, epoch)[0])
            await self.follow(self.replicas[number], self.logs[number], theirs)

    async def follow(self, replica: Replica, own: Copy, theirs: Copy) -> None:
        shared = [batch for batch in theirs.batches if batch in own.batches]
        own.batches = [*theirs.batches]
        diverged = Diverged(shared[-1].leader_epoch, shared[-1].end_offset) if shared else None
        data = b"".join(batch.stored for batch in theirs.batches[len(shared) :])
        where = FetchedFromLeader(diverged=diverged or Diverged(0, 0))
        for fetched in (where, FetchedFromLeader(data, replica.high_watermark)):
            fetch = replica.next_fetch()
            assert fetch is not None
            await replica.on_fetched(fetch.token, fetched)

    async def let_go(self, number: int) -> None:
        """The partition is not hosted any more, until it is again."""
        await self.replicas[number].close()
        self.is_led[number] = False
        del self.leader.hosted.replicas[key_of(number)]

    async def step(self) -> None:
        random, followers = self.random, self.followers
        steps = [self.produce] * 4 + [reader.ask for reader in self.readers] * 6
        steps += [each.flush for each in followers] * 3 + [each.learn for each in followers] * 2
        if random.random() < 0.04:
            steps = [each.begin_anew for each in self.readers]
            steps += [each.restart for each in followers]
        if random.random() < 0.04 or not any(self.is_led):
            number = random.choice(NUMBERS)
            replica = self.replicas[number]
            if replica.is_closed:
                self.replicas[number] = self.host(number, replica.log, replica.high_watermark)
                await self.elect(number, 1)
            else:
                await random.choice((self.change_leader, self.change_leader, self.let_go))(number)
        self.leader.waiting.on_batch(random.random() < 0.5)  # as the server does around requests
        for step in random.choices(steps, k=random.choice((1, 2, 5))):
            step()
        self.leader.waiting.on_batch(False)

    # -- what has to be so -----------------------------------------------------------------

    def check(self) -> None:
        sessions: list[Any] = []
        for requests in (self.leader.replicating, self.leader.fetching):
            sessions += requests.sessions._sessions.values()
        alarms = [session for _, _, session in self.leader.waiting._alarms]
        assert max([alarms.count(session) for session in sessions], default=0) <= ALARMS_MAX
        assert self.leader.directory.tails.held_bytes <= TAIL_BYTES_MAX
        assert all(trio.current_time() < asked.deadline for asked in self.waiting), "late"
        for number, replica in enumerate(self.replicas):
            assert replica.log.log_end_offset == self.logs[number].end_offset
            held = [follower.copies[number].held_offset for follower in self.followers]
            assert replica.high_watermark <= min(replica.log.held_end_offset, *held)
        for reader in self.readers:
            if reader.asked is not None:
                for number in reader.named.keys() - reader.rests:
                    assert self.is_led[number]
                    reader.check(number, reader.asked)

    async def run(self, step_count: int) -> None:
        await self.open()
        for _ in range(step_count):
            await self.step()
            for seconds in (0, self.random.choice((0, 0, 0.001, 0.004, 0.01, 0.02, 0.2))):
                await trio.sleep(seconds)
                await wait_all_tasks_blocked()
                self.check()
        await trio.sleep(1)
        assert not self.waiting


@pytest.mark.parametrize("seed", range(12))
async def test_readers_get_what_the_log_has_and_in_time(
    seed: int, autojump_clock: MockClock
) -> None:
    """Whatever happens, in any order; the seed replays it."""
    async with alone() as leader:
        await Model(leader, Random(seed)).run(120)
