"""Snapshots of running voters: taken, fetched and installed, whatever disks and leaders do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.snapshot.snapshotter import RETRY_SECONDS
from tests.simulation.deterministic import run_inline
from tests.simulation.raft_cluster import DIRECTORY, RaftCluster, open_cluster
from tests.unit.metadata.quorum_harness import coordinate, large_commit, registration
from tests.unit.metadata.raft.gate import SNAPSHOT_READ, SNAPSHOT_WRITE, Gate
from tests.unit.metadata.raft.talk import EAGER, allocate, registered

if TYPE_CHECKING:
    from trio.testing import MockClock

CALM = QuorumLimits(snapshot_entries=1_000_000)


# Taking


async def test_after_so_many_entries(autojump_clock: MockClock) -> None:
    """Each voter writes its own, one of them is kept, and the log begins behind it."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch = await registered(cluster)
        await allocate(cluster, epoch, 25)
        await level(cluster)
        for node_id, quorum in cluster.nodes.items():
            (index,) = snapshot_indexes(cluster, node_id)
            assert quorum._node.journal.first_index == index
            assert index + 10 >= quorum._node.last_applied


async def test_after_so_many_bytes(autojump_clock: MockClock) -> None:
    """Few entries, but large ones."""
    limits = QuorumLimits(snapshot_bytes=10_000)
    async with open_cluster(1, 2, 3, limits=limits) as cluster:
        leader_id = await cluster.leader_id()
        await trio.sleep(1)
        assert snapshot_indexes(cluster, leader_id) == []
        for _ in range(3):
            await cluster.nodes[leader_id].propose(registration(boot_id="x" * 5000))
        await level(cluster)
        assert len(snapshot_indexes(cluster, leader_id)) == 1


async def test_some_of_the_log_stays_for_the_slow(autojump_clock: MockClock) -> None:
    """A follower that is a little behind gets entries, not a snapshot."""
    limits = QuorumLimits(snapshot_entries=10, trailing_entries=100)
    async with open_cluster(1, 2, 3, limits=limits) as cluster:
        epoch = await registered(cluster)
        lagging = await cluster.follower_id()
        cluster.crash(lagging)
        await allocate(cluster, epoch, 30)
        cluster.limits = CALM
        await cluster.start(lagging)
        await level(cluster)
        assert snapshot_indexes(cluster, lagging) == []


async def test_a_full_disk(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """There is no room for the second snapshot: logged, the first one stays, the voter goes on."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch = await registered(cluster)
        await allocate(cluster, epoch, 12)
        await level(cluster)
        leader_id = await cluster.leader_id()
        disk, before = cluster.disk(leader_id), snapshot_indexes(cluster, leader_id)
        disk.fail("write", "*.part", error=errno.ENOSPC)
        await allocate(cluster, epoch, 12)
        await trio.sleep(1)
        assert snapshot_indexes(cluster, leader_id) == before
        assert not [name for name in disk.names(DIRECTORY) if name.endswith(".part")]
        assert f"node={leader_id} event=snapshot_failed" in caplog.text
        assert "No space left" in caplog.text
        assert await cluster.leader_id() == leader_id
        await trio.sleep(RETRY_SECONDS)
        (after,) = snapshot_indexes(cluster, leader_id)
        assert after > before[0]


async def test_a_slow_write_holds_up_nobody(autojump_clock: MockClock) -> None:
    """A snapshot takes half a minute: commands go through, and it shows its own moment."""
    async with open_cluster(limits=EAGER) as cluster:
        gates = await start_with_gates(cluster)
        epoch = await registered(cluster)
        leader_id = await cluster.leader_id()
        gates[leader_id].close(SNAPSHOT_WRITE)
        await allocate(cluster, epoch, 12)
        await trio.sleep(3)
        await allocate(cluster, epoch, 40)
        assert await cluster.leader_id() == leader_id
        assert snapshot_indexes(cluster, leader_id) == []
        gates[leader_id].open(SNAPSHOT_WRITE)
        await level(cluster)
        assert gates[leader_id].begun[SNAPSHOT_WRITE] == 2, "one at a time"
        (index,) = snapshot_indexes(cluster, leader_id)
        assert index > 50


# Fetching


async def test_who_is_far_behind_fetches_one(autojump_clock: MockClock) -> None:
    """The log of the others begins later: a snapshot comes first, then the entries behind it."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch, lagging = await left_behind(cluster)
        await cluster.start(lagging)
        await level(cluster)
        assert len(snapshot_indexes(cluster, lagging)) == 1
        await allocate(cluster, epoch, 3)
        await level(cluster)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
async def test_a_fetch_that_fails(
    operation: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the one who fetches refuses once: logged, nothing left over, fetched again."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        _, lagging = await left_behind(cluster)
        cluster.disk(lagging).fail(operation, "*.incoming", error=errno.ENOSPC)
        await cluster.start(lagging)
        await level(cluster)
        assert f"node={lagging} event=fetch_failed" in caplog.text
        names = cluster.disk(lagging).names(DIRECTORY)
        assert not [name for name in names if name.endswith(".incoming")]


async def test_a_snapshot_that_cannot_be_read_back(autojump_clock: MockClock) -> None:
    """It is in its place, and the next start would begin with it: the voter stops, as it would
    then; a disk that works again lets it go on from there."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        _, lagging = await left_behind(cluster)
        cluster.disk(lagging).fail("read", "*.snapshot")
        with pytest.raises(StorageError), trio.fail_after(60):
            async with cluster.open(lagging):
                await trio.sleep_forever()
        assert len(snapshot_indexes(cluster, lagging)) == 1
        await cluster.start(lagging)
        await level(cluster)


async def test_a_snapshot_that_arrives_damaged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's copy has rotted: it is never installed; its next snapshot is."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch, lagging = await left_behind(cluster)
        leader_id = await cluster.leader_id()
        disk = cluster.disk(leader_id)
        (path,) = [path for path in disk.paths(DIRECTORY) if path.suffix == ".snapshot"]
        disk.flip_bit(path, disk.size(path) // 2, 1)
        await cluster.start(lagging)
        await trio.sleep(3)
        assert "arrived damaged" in caplog.text
        assert cluster.nodes[lagging].image.version < 10
        assert await cluster.leader_id() == leader_id
        await allocate(cluster, epoch, 15)
        await level(cluster)


async def test_the_leader_dies_during_a_fetch(autojump_clock: MockClock) -> None:
    """Some chunks have arrived: the next leader is asked for the rest, or for its own snapshot."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        _, lagging = await left_behind(cluster, large=True)
        old_id, disk = await cluster.leader_id(), cluster.disk(lagging)
        await cluster.start(lagging)
        await cluster.until(lambda: any(".incoming 1048576+" in line for line in disk.trace))
        assert cluster.nodes[lagging].image.version < 10
        cluster.crash(old_id)
        assert await cluster.leader_id() not in (old_id, lagging)
        await level(cluster)


async def test_a_fetch_goes_on_after_a_cut(autojump_clock: MockClock) -> None:
    """The connection is gone for a while: no byte is fetched twice."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        _, lagging = await left_behind(cluster, large=True)
        disk = cluster.disk(lagging)
        await cluster.start(lagging)
        await cluster.until(lambda: any(".incoming 0+" in line for line in disk.trace))
        cluster.isolate(lagging)
        await trio.sleep(8)
        assert cluster.nodes[lagging].image.version < 10
        cluster.heal()
        await level(cluster)
        writes = [line for line in disk.trace if " write " in line and ".incoming" in line]
        assert len(writes) == len({line.split()[-1] for line in writes})


async def test_the_newer_one_comes_from_outside(autojump_clock: MockClock) -> None:
    """A voter writes a snapshot of what it has, slowly; one that it fetched is there before."""
    async with open_cluster(1, 2, 3, limits=CALM) as cluster:
        epoch = await registered(cluster)
        await allocate(cluster, epoch, 15)
        await level(cluster)
        lagging = await cluster.follower_id()
        cluster.crash(lagging)
        cluster.limits = EAGER
        for node_id in list(cluster.nodes):
            cluster.crash(node_id)
            await cluster.start(node_id)
        await allocate(cluster, epoch, 40)
        gate = Gate()
        gate.close(SNAPSHOT_WRITE)
        gate.close(SNAPSHOT_READ)
        cluster.run_sync = gate
        await cluster.start(lagging)
        await cluster.until(lambda: gate.begun[SNAPSHOT_READ] == 1)
        assert gate.begun[SNAPSHOT_WRITE] == 1
        gate.open(SNAPSHOT_WRITE)
        await trio.sleep(0.5)
        gate.open(SNAPSHOT_READ)
        await level(cluster)
        assert len(snapshot_indexes(cluster, lagging)) == 1


# What the tests do


async def start_with_gates(cluster: RaftCluster) -> dict[int, Gate]:
    gates = {node_id: Gate() for node_id in (1, 2, 3)}
    for node_id, gate in gates.items():
        cluster.run_sync = gate
        await cluster.start(node_id)
    cluster.run_sync = run_inline
    return gates


async def left_behind(cluster: RaftCluster, *, large: bool = False) -> tuple[int, int]:
    """An epoch, and a voter that is off, while the others have gone on and cut their logs.

    With `large`, a snapshot takes three chunks.
    """
    epoch = await registered(cluster)
    lagging = await cluster.follower_id()
    cluster.crash(lagging)
    if large:
        groups = ("g1", "g2", "g3")
        await coordinate(cluster, epoch, *groups)
        for group in groups:
            await (await cluster.leader()).propose(large_commit(group, size=900_000))
    await allocate(cluster, epoch, 30)
    await level(cluster)
    return epoch, lagging


async def level(cluster: RaftCluster) -> None:
    """All that run show the same image, and their disks have come to rest."""
    await cluster.level()
    await trio.sleep(1)
    images = [node.image._replace(changes=()) for node in cluster.nodes.values()]
    assert images == images[:1] * len(images)


def snapshot_indexes(cluster: RaftCluster, node_id: int) -> list[int]:
    names = cluster.disk(node_id).names(DIRECTORY)
    return [int(name.split("-")[1]) for name in names if name.endswith(".snapshot")]
