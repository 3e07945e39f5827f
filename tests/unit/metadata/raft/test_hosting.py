"""What a voter answers to observers and visitors, by hand."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.raft.engine.replication import machine_entry
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    ObserverEntries,
    ObserverFetch,
    ObserverOffer,
    Refusal,
    Role,
    SnapshotChunk,
    SnapshotFetch,
    SnapshotGone,
    StatusReply,
    StatusRequest,
    VoteReply,
)
from raftmq.metadata.raft.net.observer_service import ANSWER_SECONDS
from tests.simulation.raft_cluster import RaftCluster, name_of, open_cluster
from tests.unit.metadata.quorum_harness import registration
from tests.unit.metadata.raft.talk import EAGER
from tests.unit.metadata.raft.voters import Stranger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.metadata.raft.net.messages import AnyMessage

GUEST = 9


@asynccontextmanager
async def open_guest(
    cluster: RaftCluster, voter: int, role: Role = Role.OBSERVER
) -> AsyncIterator[Stranger]:
    """Introduced, and heard of every second."""
    stream = await cluster.network.node(name_of(GUEST)).dial(cluster.voters[voter])
    guest = Stranger(stream)
    await guest.say(NodeHello(PROTOCOL_VERSION, "c", role, GUEST))
    assert isinstance(await guest.hear(), NodeHello)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, guest)
        yield guest
        nursery.cancel_scope.cancel()
    await stream.aclose()


async def keep_alive(guest: Stranger) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the test notices
        await guest.keep_alive()


async def ask(guest: Stranger, question: AnyMessage) -> AnyMessage | None:
    await guest.say(question)
    return await guest.hear()


async def entries_from(guest: Stranger, next_index: int) -> ObserverEntries:
    answer = await ask(guest, ObserverFetch(next_index))
    assert isinstance(answer, ObserverEntries)
    return answer


async def end_of(cluster: RaftCluster) -> int:
    """The entry that comes next, when all voters are enrolled and nothing is under way."""
    leader = await cluster.leader()
    await leader.propose(registration())
    await trio.sleep(1)
    return (await cluster.status(await cluster.leader_id())).applied_index + 1


# Entries


async def test_committed_entries_are_handed_out(autojump_clock: MockClock) -> None:
    """From the first one on, in order, with the commit index, the leader and its term."""
    async with open_cluster(1, 2, 3) as cluster:
        end = await end_of(cluster)
        leader = await cluster.leader()
        async with open_guest(cluster, await cluster.leader_id()) as guest:
            answer = await entries_from(guest, 2)
        assert [index for _, index, _ in answer.entries] == list(range(2, end))
        assert answer.commit_index >= end - 1
        assert (answer.term, answer.leader_id) == leader.leadership[:2]
        assert sum(entry.startswith(machine_entry(b"")) for entry, _, _ in answer.entries) == 1


async def test_without_news_the_answer_comes_late(autojump_clock: MockClock) -> None:
    """At first the leader is news; then there is nothing to tell for five seconds."""
    async with open_cluster(1, 2, 3) as cluster:
        end = await end_of(cluster)
        async with open_guest(cluster, await cluster.leader_id()) as guest:
            assert (await entries_from(guest, end)).leader_id == await cluster.leader_id()
            started = trio.current_time()
            answer = await entries_from(guest, end)
            assert answer.entries == ()
            assert answer.commit_index >= end - 1
            assert ANSWER_SECONDS <= trio.current_time() - started < ANSWER_SECONDS + 0.5


async def test_news_is_told_at_once(autojump_clock: MockClock) -> None:
    """Somebody waits for the next entry: it is told as soon as that is applied."""
    async with open_cluster(1, 2, 3) as cluster:
        end = await end_of(cluster)
        async with open_guest(cluster, await cluster.follower_id()) as guest:
            await entries_from(guest, end)
            await guest.say(ObserverFetch(end))
            await trio.sleep(1)
            await (await cluster.leader()).propose(registration(incarnation=2))
            with trio.fail_after(0.5):
                answer = await guest.hear()
        assert isinstance(answer, ObserverEntries)
        assert [index for _, index, _ in answer.entries] == [end]


async def test_a_change_of_leader_is_news(autojump_clock: MockClock) -> None:
    """The leader dies: first nobody leads, then somebody else does, each told when it is known."""
    async with open_cluster(1, 2, 3) as cluster:
        end, follower_id = await end_of(cluster), await cluster.follower_id()
        async with open_guest(cluster, follower_id) as guest:
            before = await entries_from(guest, end + 5)
            cluster.crash(await cluster.leader_id())
            with trio.fail_after(4):
                assert (await entries_from(guest, end + 5)).leader_id is None
                answer = before
                while answer.leader_id in (before.leader_id, None):
                    answer = await entries_from(guest, end + 5)
        assert answer.term > before.term


async def test_who_is_ahead_waits(autojump_clock: MockClock) -> None:
    """An observer that another voter brought further: no entries, and no error."""
    async with open_cluster(1, 2, 3) as cluster:
        end = await end_of(cluster)
        async with open_guest(cluster, await cluster.leader_id()) as guest:
            for _ in range(2):
                assert (await entries_from(guest, end + 1000)).entries == ()


# Snapshots


async def test_entries_that_are_gone(autojump_clock: MockClock) -> None:
    """A snapshot is offered in their place, and read in chunks; what follows it is in the log."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        voter = await with_snapshot(cluster)
        async with open_guest(cluster, voter) as guest:
            offer = await ask(guest, ObserverFetch(2))
            assert isinstance(offer, ObserverOffer)
            chunk = await ask(guest, fetch_of(offer, 0))
            assert isinstance(chunk, SnapshotChunk)
            assert len(chunk.data) == offer.size_bytes
            answer = await entries_from(guest, offer.index + 1)
            assert all(index > offer.index for _, index, _ in answer.entries)


async def test_a_snapshot_that_is_gone(autojump_clock: MockClock) -> None:
    """Asked for by an id that this voter does not have: gone."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        voter = await with_snapshot(cluster)
        async with open_guest(cluster, voter) as guest:
            assert await ask(guest, SnapshotFetch(3, 1, 100, 7, 0)) == SnapshotGone(3, 1, 100, 7)


# Guests that misbehave


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (Role.OBSERVER, ObserverFetch(0)),
        (Role.OBSERVER, ObserverFetch(1)),
        (Role.OBSERVER, VoteReply(1)),
        (Role.VISITOR, ObserverFetch(2)),
        (Role.VISITOR, SnapshotFetch(3, 1, 100, 7, 0)),
    ],
    ids=["entry 0", "entry 1", "vote", "visitor", "visiting snapshots"],
)
async def test_what_no_guest_says(
    role: Role, message: AnyMessage, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection ends, with a line in the log; the voter serves the next guest."""
    async with open_cluster(1, 2, 3) as cluster:
        voter = await cluster.leader_id()
        async with open_guest(cluster, voter, role) as guest:
            assert await ask(guest, message) is None
        assert "connection ended" in caplog.text
        assert (await cluster.status(voter)).observers == []


async def test_an_offset_beyond_the_snapshot(autojump_clock: MockClock) -> None:
    """A fetch of bytes that there are not ends the connection, not the voter."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        voter = await with_snapshot(cluster)
        async with open_guest(cluster, voter) as guest:
            offer = await ask(guest, ObserverFetch(2))
            assert isinstance(offer, ObserverOffer)
            assert await ask(guest, fetch_of(offer, offer.size_bytes)) is None
        await (await cluster.leader()).propose(registration(incarnation=3))


async def test_the_status_is_for_everybody(autojump_clock: MockClock) -> None:
    """Visitors and observers get it; a visitor need not know the cluster."""
    async with open_cluster(1, 2, 3) as cluster:
        voter = await cluster.leader_id()
        for role in (Role.VISITOR, Role.OBSERVER):
            async with open_guest(cluster, voter, role) as guest:
                assert isinstance(await ask(guest, StatusRequest()), StatusReply)


async def test_the_lag_of_observers(autojump_clock: MockClock) -> None:
    """Shown while they are connected, counted from what they asked for last."""
    async with open_cluster(1, 2, 3) as cluster:
        end, voter = await end_of(cluster), await cluster.leader_id()
        async with open_guest(cluster, voter) as guest:
            await entries_from(guest, end - 1)
            (observer,) = (await cluster.status(voter)).observers
            assert (observer.node_id, observer.lag) == (GUEST, 1)
        await trio.sleep(1)
        assert (await cluster.status(voter)).observers == []


# What the tests do


async def with_snapshot(cluster: RaftCluster) -> int:
    """A voter whose log begins behind a snapshot."""
    leader = await cluster.leader()
    for number in range(15):
        await leader.propose(registration(incarnation=number))
    leader_id = await cluster.leader_id()
    await cluster.until(lambda: bool(cluster.nodes[leader_id]._node.replication.snapshot))
    return leader_id


def fetch_of(offer: ObserverOffer, offset: int) -> SnapshotFetch:
    return SnapshotFetch(offer.index, offer.snapshot_term, offer.size_bytes, offer.crc, offset)


async def test_an_observer_of_another_quorum_is_refused(autojump_clock: MockClock) -> None:
    """The quorum was begun anew under its old name: its entries do not continue what was seen."""
    async with open_cluster(1, 2, 3) as cluster:
        await cluster.leader()
        await end_of(cluster)
        async with open_guest(cluster, 1) as guest:
            answer = await ask(guest, ObserverFetch(2, b"another first disk"))
            assert isinstance(answer, Refusal)
            assert "begun anew" in answer.reason
