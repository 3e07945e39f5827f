"""Two leaders in turn, one follower far behind, and a network and disks that are no help.

Owns the events of one seeded run of both ends of a snapshot transfer over real snapshot files on
simulated disks. Connections keep the order of their messages, but break, lose what is on its way
or deliver it late, after messages of the next connection. Checks the bounds on memory and open
files at every step; what must come out in the end is the test's to say.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from raftmq.errors import RemoteProtocolError, StorageError
from raftmq.metadata.raft.snapshot.transfer import (
    WINDOW_CHUNKS,
    Discard,
    FetchChunk,
    Finish,
    Install,
    SendChunk,
    SendGone,
    SnapshotId,
    SnapshotReceiver,
    SnapshotSender,
    WriteChunk,
)
from tests.unit.metadata.raft.snapshot_files import disk, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.raft.snapshot.store import SnapshotInfo, SnapshotReader
    from raftmq.metadata.raft.snapshot.transfer import CloseReader, ReceiverEffect

FOLLOWER = 9
CHUNK_BYTES = 64
TICK_SECONDS = 0.25
FAULTS_END = 30.0


def content(index: int, salt: int) -> list[bytes]:
    """What a snapshot of this index holds; nodes with the same salt make equal pictures."""
    random = Random(index * 10 + salt)
    return [random.randbytes(random.randrange(1, 300)) for _ in range(random.randrange(1, 9))]


class Leader:
    """A node that hands out snapshots; whether it leads at the moment is the world's."""

    def __init__(self, world: World, node_id: int, salt: int) -> None:
        self.world, self.node_id, self.salt = world, node_id, salt
        self.store = opened(disk(node_id))
        self.sender = SnapshotSender(chunk_bytes=CHUNK_BYTES)
        self.readers: dict[SnapshotId, SnapshotReader] = {}

    def take_snapshot(self, index: int) -> None:
        info = self.store.write(index=index, term=1, slices=content(index, self.salt))
        reader = self.store.open_reader(info)
        assert reader
        self.readers[info.id] = reader
        self.world.salts[info.id] = self.salt
        self.close(self.sender.on_newest(info.id, self.world.now))

    def close(self, effects: list[CloseReader]) -> None:
        for effect in effects:
            del self.readers[effect.snapshot]
        assert len(self.readers) <= 2, "the newest, and the one that the follower reads"

    def on_fetch(self, snapshot: SnapshotId, offset: int) -> None:
        match self.sender.on_fetch(FOLLOWER, snapshot, offset, self.world.now):
            case SendChunk(_, snapshot, offset, length):
                data = self.readers[snapshot].read(offset, length)
                self.world.send(self.node_id, partial(self.world.on_chunk, snapshot, offset, data))
            case SendGone(_, snapshot):
                self.world.send(self.node_id, partial(self.world.on_gone, self.node_id, snapshot))


class World:
    """Attributes:
    installed: what the follower became, in order.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.now = Random(seed), 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = 0
        self.salts: dict[SnapshotId, int] = {}
        same_pictures = self.random.random() < 0.6
        self.leaders = [
            Leader(self, node_id, 0 if same_pictures else node_id) for node_id in (0, 1)
        ]
        self.last_index = 10
        for leader in self.leaders:
            leader.take_snapshot(self.last_index)
        self.term, self.leading = 1, self.leaders[0]
        self.line_free_at = dict.fromkeys((0, 1), 0.0)
        self.line_broken = dict.fromkeys((0, 1), 0)  # counts connections
        self.files = disk(seed)
        self.store = opened(self.files)
        self.receiver = SnapshotReceiver(chunk_bytes=CHUNK_BYTES)
        self.jobs: deque[ReceiverEffect] = deque()
        self.infos: dict[SnapshotId, SnapshotInfo] = {}
        self.installed: list[SnapshotId] = []

    @property
    def has_faults(self) -> bool:
        return self.now < FAULTS_END

    @property
    def offered(self) -> SnapshotId:
        """What the leader has for the follower."""
        snapshot = self.leading.sender.offer(FOLLOWER, self.now)
        assert snapshot
        return snapshot

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.counter += 1
        heapq.heappush(self.events, (self.now + delay, self.counter, action))

    def run(self, seconds: float) -> None:
        self.at(0, self.tick)
        while self.events and self.events[0][0] <= seconds:
            self.now, _, action = heapq.heappop(self.events)
            action()
            written_soon = sum(isinstance(job, WriteChunk) for job in self.jobs)
            assert written_soon <= WINDOW_CHUNKS, "more chunks in memory than the window allows"

    def send(self, line: int, deliver: Callable[[], None]) -> None:
        """Behind everything that was sent on this connection; lost or late if it breaks."""
        connection = self.line_broken[line]
        delay = self.random.uniform(0.001, 0.2)
        arrival = self.line_free_at[line] = max(self.line_free_at[line], self.now + delay)
        self.at(arrival - self.now, partial(self.arrive, line, connection, deliver))

    def arrive(self, line: int, connection: int, deliver: Callable[[], None]) -> None:
        if connection == self.line_broken[line]:
            deliver()
        elif self.random.random() < 0.3:
            self.at(self.random.uniform(0, 3), deliver)

    def tick(self) -> None:
        if self.has_faults:
            self.trouble()
        for leader in self.leaders:
            leader.close(leader.sender.on_tick(self.now))
        offer = partial(self.on_offer, self.term, self.leading.node_id, self.offered)
        self.send(self.leading.node_id, offer)
        self.carry_out(self.receiver.on_tick(self.now))
        self.at(TICK_SECONDS, self.tick)

    def trouble(self) -> None:
        chance = self.random.random
        if chance() < 0.05:
            self.term, self.leading = self.term + 1, self.random.choice(self.leaders)
        if chance() < 0.03:
            self.last_index += self.random.randrange(1, 5)
            self.random.choice(self.leaders).take_snapshot(self.last_index)
        if chance() < 0.1:
            line = self.random.randrange(2)
            self.line_broken[line] += 1
            self.line_free_at[line] = self.now
        if chance() < 0.02:
            self.files.fail(self.random.choice(("write", "sync", "create")), "*.incoming")

    # The follower

    def on_offer(self, term: int, leader: int, snapshot: SnapshotId) -> None:
        self.carry_out(self.receiver.on_offer(term, leader, snapshot, self.now))

    def on_chunk(self, snapshot: SnapshotId, offset: int, data: bytes) -> None:
        self.carry_out(self.receiver.on_chunk(snapshot, offset, data, self.now))

    def on_gone(self, leader: int, snapshot: SnapshotId) -> None:
        self.receiver.on_gone(leader, snapshot)

    def carry_out(self, effects: list[ReceiverEffect]) -> None:
        for effect in effects:
            if isinstance(effect, FetchChunk):
                leader = self.leaders[effect.leader]
                ask = partial(leader.on_fetch, effect.snapshot, effect.offset)
                self.send(effect.leader, ask)
            else:
                self.jobs.append(effect)
                if len(self.jobs) == 1:
                    self.at(self.random.uniform(0, 0.3), self.work)

    def work(self) -> None:
        """The oldest job is done; then the next one begins."""
        job = self.jobs.popleft()
        try:
            effects = self.do(job)
        except (StorageError, RemoteProtocolError):
            effects = self.receiver.on_failed(job.snapshot, self.now)
        if self.jobs:
            self.at(self.random.uniform(0, 0.3), self.work)
        self.carry_out(effects)

    def do(self, job: ReceiverEffect) -> list[ReceiverEffect]:
        match job:
            case WriteChunk(snapshot, offset, data):
                self.store.incoming(snapshot).write(offset, data)
                return self.receiver.on_written(snapshot, self.now)
            case Finish(snapshot):
                self.infos[snapshot] = self.store.incoming(snapshot).finish()
                return self.receiver.on_verified(snapshot)
            case Install(snapshot):
                self.install(snapshot)
            case Discard():
                self.store.discard_incoming()
        return []

    def install(self, snapshot: SnapshotId) -> None:
        assert self.infos[snapshot].id == snapshot
        slices = list(self.store.read(self.infos[snapshot]))
        assert slices == content(snapshot.index, self.salts[snapshot])
        self.installed.append(snapshot)
        self.receiver.on_installed(snapshot)
