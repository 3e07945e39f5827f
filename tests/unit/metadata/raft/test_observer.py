"""A broker without a vote sees what the voters see, whichever of them it can reach."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import CorruptJournal, DirectoryInUse, InvalidConfig, NotController
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    Role,
)
from raftmq.metadata.raft.net.transport import GUESTS_MAX
from raftmq.metadata.raft.observer import APPLIED_AT_ONCE
from tests.simulation.raft_cluster import DIRECTORY, RaftCluster, open_cluster
from tests.unit.metadata.quorum_harness import allocation, registration
from tests.unit.metadata.raft.talk import EAGER, fill
from tests.unit.metadata.raft.voters import Stranger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.metadata.quorum import Leadership, MetadataQuorum
    from raftmq.metadata.raft.observer import ObserverQuorum
    from raftmq.model import Address

    AnyObserver = ObserverQuorum[Address]

NODES = ["node-1", "node-2", "node-3"]


# What it sees


async def test_it_sees_what_the_voters_see(autojump_clock: MockClock) -> None:
    """It joins late, catches up and follows: same images, complete deltas, the commit index."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await fill(cluster, 5)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
            seen = observer.image.version
            await (await cluster.leader()).propose(allocation(epoch))
            await caught_up(cluster, observer)
            assert observer.delta_since(seen).is_complete
            assert observer.commit_index >= observer.image.version


async def test_many_entries_at_once(autojump_clock: MockClock) -> None:
    """More entries than are applied in one go: all of them arrive, and others get their turn."""
    async with open_cluster(1, 2, 3) as cluster, trio.open_nursery() as nursery:
        epoch = await fill(cluster, 0)
        leader = await cluster.leader()
        async with trio.open_nursery() as proposing:
            for _ in range(1100):
                proposing.start_soon(leader.propose, allocation(epoch))
        await cluster.level()
        async with cluster.observe() as observer:
            seen = [0]
            nursery.start_soon(watch_versions, observer, seen)
            await caught_up(cluster, observer)
            assert observer.image.next_producer_id == 11_000
            await trio.testing.wait_all_tasks_blocked()
        # Twice: whoever is woken may run after the next go.
        assert max(after - before for before, after in pairwise(seen)) <= 2 * APPLIED_AT_ONCE
        nursery.cancel_scope.cancel()


async def watch_versions(observer: AnyObserver, seen: list[int]) -> None:
    while True:
        seen.append((await observer.wait_changed(seen[-1])).version)


async def test_it_neither_proposes_nor_confirms(autojump_clock: MockClock) -> None:
    """Proposals and barriers are refused, with the leader's id for whoever wants to go there."""
    async with open_cluster(1, 2, 3) as cluster, cluster.observe() as observer:
        leader_id = await cluster.leader_id()
        await told(observer, lambda leadership: leadership.leader_id == leader_id)
        for attempt in (observer.propose(registration()), observer.read_barrier()):
            with pytest.raises(NotController, match="no vote") as error:
                await attempt
            assert error.value.leader_id == leader_id


async def test_it_is_told_who_leads(autojump_clock: MockClock) -> None:
    """The leader dies: the observer hears of the next one within seconds, and of a higher term."""
    async with open_cluster(1, 2, 3) as cluster, cluster.observe() as observer:
        old_id = await cluster.leader_id()
        before = await told(observer, lambda leadership: leadership.leader_id == old_id)
        cluster.crash(old_id)
        new_id = await cluster.leader_id()
        with trio.fail_after(2):
            after = await told(observer, lambda leadership: leadership.leader_id == new_id)
        assert after.term > before.term
        assert not after.is_leader


async def test_waiting_for_a_change_can_be_cancelled(autojump_clock: MockClock) -> None:
    """Nothing changes for a while: both waits go on, and end with their caller."""
    async with open_cluster(1, 2, 3) as cluster, cluster.observe() as observer:
        await fill(cluster, 0)
        await caught_up(cluster, observer)
        now = await told(observer, lambda leadership: leadership.leader_id is not None)
        with trio.move_on_after(12) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(observer.wait_changed, observer.image.version)
                nursery.start_soon(observer.wait_leadership_changed, now)
        assert scope.cancelled_caught


# Snapshots


async def test_behind_the_log_it_gets_a_snapshot(autojump_clock: MockClock) -> None:
    """The entries are gone: it loads a snapshot, goes on behind it, and restarts with it."""
    limits = QuorumLimits(snapshot_entries=30, trailing_entries=0)
    async with open_cluster(1, 2, 3, limits=limits) as cluster:
        epoch = await fill(cluster, 40)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
        assert len(snapshots_of(cluster)) == 1
        for node_id in (1, 2, 3):
            cluster.isolate(node_id)
        async with cluster.observe() as observer:
            assert observer.image.version > 10
            assert observer.image.brokers
            cluster.heal()
            await (await cluster.leader()).propose(allocation(epoch))
            await caught_up(cluster, observer)
        fetches = [line for line in cluster.disk(9).trace if " create " in line]
        assert len([line for line in fetches if ".incoming" in line]) == 1


async def test_a_full_disk_only_delays_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot cannot be written: that is logged, and tried again."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 40)
        cluster.disk(9).fail("write", "*.incoming")
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
        assert "event=fetch_failed" in caplog.text
        assert len(snapshots_of(cluster)) == 1


async def test_a_voter_dies_while_it_sends(autojump_clock: MockClock) -> None:
    """Whichever sends the snapshot is killed in the middle of it: another one has a snapshot."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 40)
        disk, victims = cluster.disk(9), [1, 2, 3]

        def interrupt(number: int, moment: str) -> None:
            if len(victims) == 3 and ".incoming" in disk.trace[number - 1]:
                victims.remove(cluster_victim := sender(cluster))
                cluster.crash(cluster_victim)

        disk.interrupt = interrupt
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
        assert len(victims) == 2


async def test_a_damaged_snapshot(autojump_clock: MockClock) -> None:
    """Its own copy has rotted: it does not start, and says what to do."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 40)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
        (path,) = snapshots_of(cluster)
        cluster.disk(9).flip_bit(DIRECTORY / path, 100, 1)
        with pytest.raises(CorruptJournal, match=r"move .* away"):
            async with cluster.observe():
                raise AssertionError("must not open")


# Voters that are no help


@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "power"])
async def test_voters_die_one_after_the_other(power_lost: bool, autojump_clock: MockClock) -> None:
    """Each voter is away once: the observer follows those who are there."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await fill(cluster, 1)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
            for node_id in (1, 2, 3):
                cluster.crash(node_id, power_lost=power_lost)
                await (await cluster.leader()).propose(allocation(epoch))
                await caught_up(cluster, observer)
                await cluster.start(node_id)
                await cluster.until(lambda: knows_leader(cluster))


async def test_a_voter_that_is_cut_off_is_left(autojump_clock: MockClock) -> None:
    """It can be reached, but hears no leader: the observer goes to one that does."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await fill(cluster, 1)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
            host = sender(cluster)
            for other in {1, 2, 3} - {host}:
                cluster.network.cut_both(f"node-{host}", f"node-{other}")
            await trio.sleep(3)
            new = await cluster.leader()
            await new.propose(allocation(epoch))
            with trio.fail_after(15):
                await observer.wait_changed(new.image.version - 1)


async def test_a_cut_is_noticed(autojump_clock: MockClock) -> None:
    """The observer itself is cut off for a while, and catches up within seconds."""
    async with open_cluster(1, 2, 3) as cluster:
        epoch = await fill(cluster, 1)
        async with cluster.observe() as observer:
            await caught_up(cluster, observer)
            cluster.network.isolate("node-9")
            leader = await cluster.leader()
            await leader.propose(allocation(epoch))
            await trio.sleep(8)
            assert observer.image.version < leader.image.version
            cluster.heal()
            with trio.fail_after(10):
                await observer.wait_changed(leader.image.version - 1)


async def test_a_refusal_is_logged_and_another_voter_is_asked(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three voters are full of guests: the third one serves."""
    async with open_cluster(1, 2, 3) as cluster, trio.open_nursery() as nursery:
        await fill(cluster, 1)
        for node_id in (1, 2):
            for number in range(GUESTS_MAX):
                nursery.start_soon(occupy, cluster, node_id, 100 + number)
        await trio.sleep(1)
        for seed in range(4):  # in other orders
            cluster.seed = seed
            async with cluster.observe() as observer:
                await caught_up(cluster, observer)
        nursery.cancel_scope.cancel()
    assert "refused by them: 64 guests are here already" in caplog.text


async def test_another_cluster(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """It belongs elsewhere: every voter says so, and it sees nothing of theirs."""
    async with open_cluster(1, 2, 3) as cluster:
        await fill(cluster, 1)
        async with cluster.observe(9, cluster_id="other") as observer:
            await trio.sleep(10)
            assert observer.image.version == 0
    assert caplog.text.count("problem=") == 3
    assert "this observer follows cluster 'other'" in caplog.text


async def test_the_directory_of_a_voter(autojump_clock: MockClock) -> None:
    """A copy of a voter's directory: its snapshot is not touched, and the voter can go on there."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 40)
        cluster.crash(1)
        disk = cluster.disks[9] = cluster.disk(1)
        before = disk.paths(DIRECTORY)
        with pytest.raises(InvalidConfig, match="holds the journal/ of a voter"):
            async with cluster.observe():
                raise AssertionError("must not open")
        assert disk.paths(DIRECTORY) == before
        await cluster.start(1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"node_id": 2}, r"node_id = 2: one of the voters \[1, 2, 3\]"),
        ({"voters": {}}, "voters: 0 of them"),
        ({"cluster_id": ""}, "cluster_id = ''"),
    ],
    ids=["voter", "nobody", "cluster"],
)
async def test_settings_that_cannot_be(
    changes: dict[str, object], told: str, autojump_clock: MockClock
) -> None:
    """An id that votes, nobody to follow, no cluster: refused before anything is written."""
    async with open_cluster() as cluster:
        with pytest.raises(InvalidConfig, match=told):
            async with cluster.observe(9, **changes):
                raise AssertionError("must not open")
        assert cluster.disk(9).trace == []


async def test_a_directory_of_something_else(autojump_clock: MockClock) -> None:
    """A broker keeps its logs there: said so, and nothing is added to them."""
    async with open_cluster() as cluster:
        disk = cluster.disk(9)
        disk.make_directory(DIRECTORY / "topics")
        with pytest.raises(InvalidConfig, match="holds 'topics', a broker keeps its logs there"):
            async with cluster.observe():
                raise AssertionError("must not open")
        assert disk.names(DIRECTORY) == ["topics"]


async def test_a_directory_in_use(autojump_clock: MockClock) -> None:
    """Two observers in one directory: the second one is told."""
    async with open_cluster() as cluster, cluster.observe():
        with pytest.raises(DirectoryInUse):
            async with cluster.observe():
                raise AssertionError("must not open")


async def test_what_the_body_raises_is_seen_as_it_is(autojump_clock: MockClock) -> None:
    """An error of the caller's own comes out unwrapped."""
    async with open_cluster() as cluster:
        with pytest.raises(ValueError, match="mine"):
            async with cluster.observe():
                raise ValueError("mine")


# What the tests do


async def caught_up(cluster: RaftCluster, observer: AnyObserver) -> None:
    leader = await cluster.leader()
    with trio.fail_after(60):
        image = await observer.wait_changed(leader.image.version - 1)
    assert image._replace(changes=()) == leader.image._replace(changes=())


async def told(node: MetadataQuorum, condition: Callable[[Leadership], bool]) -> Leadership:
    leadership = node.leadership
    with trio.fail_after(60):
        while not condition(leadership):
            leadership = await node.wait_leadership_changed(leadership)
    return leadership


def sender(cluster: RaftCluster) -> int:
    """Whom the observer is connected to."""
    (host,) = {
        name
        for *names, _ in cluster.network._living_connections()
        if "node-9" in names
        for name in names
        if name != "node-9"
    }
    return int(host.removeprefix("node-"))


def knows_leader(cluster: RaftCluster) -> bool:
    return all(node.leadership.leader_id for node in cluster.nodes.values())


def snapshots_of(cluster: RaftCluster) -> list[str]:
    return [name for name in cluster.disk(9).names(DIRECTORY) if "snapshot" in name]


async def occupy(cluster: RaftCluster, node_id: int, guest_id: int) -> None:
    """Be a guest that only keeps its place."""
    stream = await cluster.network.node(f"guest-{guest_id}").dial(cluster.voters[node_id])
    guest = Stranger(stream)
    await guest.say(NodeHello(PROTOCOL_VERSION, "c", Role.OBSERVER, guest_id))
    await guest.keep_alive()
