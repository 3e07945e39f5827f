"""A voter's directory and its start: what survives, what is refused, and what the body is told."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    CorruptJournal,
    DirectoryInUse,
    InvalidConfig,
    StorageError,
    Unreachable,
)
from raftmq.metadata.commands import CommandId, ProducerIdBlock
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.journal.segments import segment_numbers, segment_path
from tests.simulation.disk import SimulatedFiles
from tests.simulation.raft_cluster import DIRECTORY, RaftCluster, open_cluster
from tests.unit.metadata.quorum_harness import BROKER, allocation, registration
from tests.unit.metadata.raft.talk import EAGER, fill

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

JOURNAL = DIRECTORY / "journal"
WAY_OUT = "move .* away"


# What survives


@pytest.mark.parametrize("limits", [QuorumLimits(), EAGER], ids=["journal", "snapshot"])
async def test_a_restart_keeps_everything(limits: QuorumLimits, autojump_clock: MockClock) -> None:
    """The power of all three fails at once: images, terms and the memory of ids are back."""
    async with open_cluster(1, 2, 3, limits=limits) as cluster:
        epoch = await fill(cluster, 25)
        before = (await cluster.leader()).leadership.term
        for node_id in (1, 2, 3):
            cluster.crash(node_id, power_lost=True)
        await cluster.start(3, 1, 2)
        leader = await cluster.leader()
        assert leader.leadership.term > before
        assert (await leader.read_barrier()).next_producer_id == 250
        again = await leader.propose(allocation(epoch), command_id=CommandId(BROKER, epoch, 24))
        assert again == ProducerIdBlock(240, 10)


async def test_one_after_the_other(autojump_clock: MockClock) -> None:
    """Each voter is restarted in turn: the quorum goes on, and nobody forgets who votes."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        epoch = await fill(cluster, 15)
        for node_id in (1, 2, 3):
            cluster.crash(node_id)
            await cluster.leader()
            await cluster.start(node_id)
            await cluster.until(lambda: all(n.leadership.leader_id for n in cluster.nodes.values()))
        leader = await cluster.leader()
        assert await leader.propose(allocation(epoch)) == ProducerIdBlock(150, 10)
        await all_established(cluster, await cluster.leader_id())


async def test_killed_between_snapshot_and_journal(autojump_clock: MockClock) -> None:
    """A follower has renamed a fetched snapshot and dies before its journal says so."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        lagging = await left_behind(cluster)
        disk, photographs = cluster.disk(lagging), list[SimulatedFiles]()

        def interrupt(number: int, moment: str) -> None:
            if moment == "after" and ".snapshot.incoming to" in disk.trace[number - 1]:
                photographs.append(disk.photograph(Random(0), power_lost=False))

        disk.interrupt = interrupt
        await cluster.start(lagging)
        await cluster.until(lambda: len(photographs) > 0)
        cluster.crash(lagging)
        cluster.disks[lagging] = photographs[0]
        leader = await cluster.leader()
        await cluster.start(lagging)
        image = await cluster.nodes[lagging].wait_changed(leader.image.version - 1)
        assert image.next_producer_id == leader.image.next_producer_id
        await leader.propose(registration(incarnation=2))


async def test_a_new_disk_is_filled_by_the_others(autojump_clock: MockClock) -> None:
    """An empty directory under an old id: blank at first, then established with everything."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 30)
        victim = await cluster.leader_id()
        cluster.crash(victim)
        del cluster.disks[victim]
        leader = await cluster.leader()
        await cluster.start(victim, is_replacement=True)
        await cluster.nodes[victim].wait_changed(leader.image.version - 1)
        await all_established(cluster, victim)


# What is refused


async def test_a_damaged_journal(autojump_clock: MockClock) -> None:
    """A bit of the log rots: the file, the byte and the way out are named, at every start."""
    async with open_cluster(1, 2, 3) as cluster:
        disk = await crashed(cluster, 1)
        path = last_segment(disk)
        disk.flip_bit(path, 60, 3)
        for _ in range(2):
            await refused(cluster, 1, f"{path.name}.*{WAY_OUT}")


async def test_a_damaged_snapshot(autojump_clock: MockClock) -> None:
    """A bit of the snapshot rots: nothing older takes its place."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        disk = await crashed(cluster, 1)
        path = snapshot_of(disk)
        disk.flip_bit(path, disk.size(path) // 2, 3)
        for _ in range(2):
            await refused(cluster, 1, f"{path.name}.*{WAY_OUT}")


async def test_a_snapshot_is_missing(autojump_clock: MockClock) -> None:
    """The journal begins behind a snapshot that somebody deleted."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        disk = await crashed(cluster, 1)
        disk.remove(snapshot_of(disk))
        for _ in range(2):
            await refused(cluster, 1, f"the journal begins behind entry .* is gone.*{WAY_OUT}")


async def test_the_journal_is_missing(autojump_clock: MockClock) -> None:
    """Votes and entries are gone, a snapshot is there: no new voter, and none that can go on."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        disk = await crashed(cluster, 1)
        for path in disk.paths(JOURNAL):
            disk.remove(path)
        for _ in range(2):
            await refused(cluster, 1, f"the journal beside it is gone.*{WAY_OUT}")
            assert disk.paths(JOURNAL) == []


@pytest.mark.parametrize(
    ("change", "told"), [({"cluster_id": "other"}, "'other'"), ({"node_id": 2}, "node 2")]
)
async def test_a_directory_of_somebody_else(
    change: dict[str, object], told: str, autojump_clock: MockClock
) -> None:
    """Another cluster's or another node's directory is named as such, and left as it is."""
    async with open_cluster(1, 2, 3) as cluster:
        disk = await crashed(cluster, 1)
        before = content_of(disk)
        with pytest.raises(CorruptJournal, match=told):
            async with cluster.open(1, **change):
                raise AssertionError("must not open")
        assert content_of(disk) == before


async def test_a_snapshot_of_another_cluster(autojump_clock: MockClock) -> None:
    """A snapshot is there, too: it is refused before the journal is looked at."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await crashed(cluster, 1)
        with pytest.raises(CorruptJournal, match="other"):
            async with cluster.open(1, cluster_id="other"):
                raise AssertionError("must not open")


async def test_a_wrong_id_leaves_no_trace(autojump_clock: MockClock) -> None:
    """Node 9 is none of the voters: nothing is written, so the corrected start goes through."""
    async with open_cluster() as cluster:
        disk = cluster.disk(1)
        with pytest.raises(InvalidConfig, match=r"node_id = 9: not one of the voters \[1, 2, 3\]"):
            async with cluster.open(1, node_id=9):
                raise AssertionError("must not open")
        assert disk.trace == []
        async with cluster.open(1):
            pass


async def test_a_directory_of_something_else(autojump_clock: MockClock) -> None:
    """A photograph lies there: it is named, nothing is written; once it is gone, all is well."""
    async with open_cluster() as cluster:
        disk, photograph = cluster.disk(1), DIRECTORY / "photo.jpg"
        disk.make_directory(DIRECTORY)
        disk.open(photograph, create=True)
        for _ in range(2):
            with pytest.raises(InvalidConfig, match=r"/quorum: holds 'photo\.jpg'"):
                async with cluster.open(1):
                    raise AssertionError("must not open")
            assert disk.names(DIRECTORY) == ["photo.jpg"]
        disk.remove(photograph)
        async with cluster.open(1):
            pass


async def test_the_directory_of_an_observer(autojump_clock: MockClock) -> None:
    """Its snapshot has no journal, as that of a voter must have: the message says so."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 40)
        leader = await cluster.leader()
        async with cluster.observe(9) as observer:
            await observer.wait_changed(leader.image.version - 1)
        cluster.crash(1)
        cluster.disks[1] = cluster.disk(9)
        await refused(cluster, 1, f"or an observer has been here.*{WAY_OUT}")


async def test_a_directory_in_use(autojump_clock: MockClock) -> None:
    """A second process is told so; once the first one has ended, it may have the directory."""
    async with open_cluster() as cluster:
        async with cluster.open(1):
            with pytest.raises(DirectoryInUse, match=str(DIRECTORY)) as kept:
                async with cluster.open(1):
                    raise AssertionError("must not open")
        async with cluster.open(1):
            assert kept.value.definite


async def test_a_failed_start_lets_go_of_the_directory(autojump_clock: MockClock) -> None:
    """The error is kept, with all its frames: a second attempt finds the directory free."""
    async with open_cluster() as cluster:
        cluster.disk(1).fail("sync", "*.journal*")
        with pytest.raises(StorageError) as kept:
            async with cluster.open(1):
                raise AssertionError("must not open")
        async with cluster.open(1) as node:
            assert node.image.version == 0
        assert kept.value.__traceback__


async def test_an_older_copy_must_stop(autojump_clock: MockClock) -> None:
    """A backup is started in place of the directory that the others know: it ends at once."""
    async with open_cluster(1, 2, 3) as cluster:
        await fill(cluster, 3)
        backup = cluster.disk(1).photograph(cluster.disk(1).random, power_lost=False)
        cluster.crash(1)
        await cluster.start(1)
        await cluster.until(lambda: cluster.nodes[1].leadership.leader_id is not None)
        cluster.crash(1)
        cluster.disks[1] = backup
        with trio.fail_after(30), pytest.raises(CorruptJournal, match="older copy"):
            async with cluster.open(1):
                await trio.sleep_forever()
        with pytest.raises(CorruptJournal, match="in an earlier run"):
            async with cluster.open(1):
                pass


async def test_an_older_copy_from_this_very_run_must_stop(autojump_clock: MockClock) -> None:
    """It was taken after the last start, and the leader that it confirmed to still leads."""
    async with open_cluster(1, 2, 3) as cluster:
        leader = await cluster.leader()
        leader_id = leader.leadership.leader_id
        node_id = next(node for node in (1, 2, 3) if node != leader_id)
        await fill(cluster, 3)
        copy = cluster.disk(node_id).photograph(cluster.disk(node_id).random, power_lost=False)
        await fill(cluster, 3)
        cluster.crash(node_id)
        cluster.disks[node_id] = copy
        with trio.fail_after(30), pytest.raises(CorruptJournal, match="had confirmed"):
            async with cluster.open(node_id):
                await trio.sleep_forever()


# What the body is told


async def test_the_body_is_cancelled_when_the_disk_fails(autojump_clock: MockClock) -> None:
    """A sync fails: the body ends, its caller sees the StorageError itself, others go on."""
    async with open_cluster(2, 3) as cluster:
        with pytest.raises(StorageError, match=r"fdatasync.*journal") as error:
            await run_until_the_disk_fails(cluster)
        assert isinstance(error.value.__cause__, OSError)
        await (await cluster.leader()).propose(registration())


async def test_what_the_body_raises_is_seen_as_it_is(autojump_clock: MockClock) -> None:
    """An error of the caller's own comes out unwrapped, with its cause; the directory is free."""
    cause, mine = KeyError("why"), ValueError("mine")
    async with open_cluster() as cluster:
        with pytest.raises(ValueError, match="mine") as error:
            async with cluster.open(1):
                raise mine from cause
        assert error.value is mine
        assert error.value.__cause__ is cause
        assert error.value.__context__ is None, "not the group that it came in"
        async with cluster.open(1):
            pass


async def test_two_errors_come_in_a_group(autojump_clock: MockClock) -> None:
    """The disk fails and the body fails, too, while it is cancelled: none of them is lost."""
    async with open_cluster(2, 3) as cluster:
        with pytest.raises(ExceptionGroup) as error:
            await run_until_the_disk_fails(cluster, last_words=ValueError("mine"))
        assert {type(e) for e in error.value.exceptions} == {StorageError, ValueError}


async def test_a_cancelled_body_is_just_cancelled(autojump_clock: MockClock) -> None:
    """The caller's own timeout ends everything, and is no error."""
    async with open_cluster() as cluster:
        with trio.move_on_after(3) as scope:
            async with cluster.open(1):
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_an_address_that_is_taken(autojump_clock: MockClock) -> None:
    """It cannot listen: the network's own error, and the directory is free again."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        there = cluster.network.node("node-1")
        await nursery.start(there.serve, trio.aclose_forcefully, cluster.voters[1])
        with pytest.raises(Unreachable, match="Address already in use"):
            async with cluster.open(1):
                raise AssertionError("must not open")
        nursery.cancel_scope.cancel()
    async with cluster.open(1):
        pass


# What the tests do


async def run_until_the_disk_fails(
    cluster: RaftCluster, last_words: Exception | None = None
) -> None:
    """Voter 1, in the way that a broker runs it."""
    async with cluster.open(1) as cluster.nodes[1]:
        leader = await cluster.leader()
        cluster.disk(1).fail("sync", "*.journal")
        try:
            await leader.propose(registration())
            await trio.sleep_forever()
        finally:
            del cluster.nodes[1]
            if last_words:
                raise last_words


async def crashed(cluster: RaftCluster, node_id: int) -> SimulatedFiles:
    """The disk of a voter that has followed 30 commands and was switched off."""
    await fill(cluster, 30)
    leader = await cluster.leader()
    await cluster.nodes[node_id].wait_changed(leader.image.version - 1)
    await trio.sleep(1)
    cluster.crash(node_id)
    return cluster.disk(node_id)


async def left_behind(cluster: RaftCluster) -> int:
    """A follower that is off, while the others have gone on and cut their logs."""
    await fill(cluster, 5)
    lagging = await cluster.follower_id()
    cluster.crash(lagging)
    await fill(cluster, 30)
    return lagging


async def all_established(cluster: RaftCluster, node_id: int) -> None:
    """At last, in the eyes of this voter."""
    with trio.fail_after(30):
        while True:
            standings = {voter.standing for voter in (await cluster.status(node_id)).voters}
            if standings == {"established"}:
                return
            await trio.sleep(0.1)


async def refused(cluster: RaftCluster, node_id: int, told: str) -> None:
    with pytest.raises(CorruptJournal, match=told):
        async with cluster.open(node_id):
            raise AssertionError("must not open")


def last_segment(disk: SimulatedFiles) -> Path:
    return segment_path(JOURNAL, segment_numbers(disk.names(JOURNAL))[-1])


def snapshot_of(disk: SimulatedFiles) -> Path:
    (path,) = [path for path in disk.paths(DIRECTORY) if path.suffix == ".snapshot"]
    return path


def content_of(disk: SimulatedFiles) -> dict[Path, bytes]:
    return {path: disk.open(path).read(0, disk.size(path)) for path in disk.paths(DIRECTORY)}
