"""Fetch sessions: who may go on where, who is evicted, and of whom there is news."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.fetch_sessions import FetchSessions, following_epoch
from raftmq.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raftmq.wire.bodies import ID_MAX, TopicPartition
from raftmq.wire.messages.fetch import NEW_SESSION, NO_SESSION, WITHOUT_SESSION
from tests.unit.broker.copying import key_of, want
from tests.unit.partition.replica_world import TOPIC_ID, led_by, machine, settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.broker.requests.fetch_sessions import FetchSession


class Waiting:
    """A request that waits: notes what it is told."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.is_superseded = False

    def wake(self) -> None:
        self.news.append("records")

    def linger(self) -> None:
        self.news.append("bounds")

    def on_superseded(self) -> None:
        self.is_superseded = True


def begin(sessions: FetchSessions, owner: str = "a") -> FetchSession:
    return sessions.enter(NO_SESSION, NEW_SESSION, owner, trio.current_time())


async def test_epochs_count_the_requests(autojump_clock: MockClock) -> None:
    """One, two, three; any other means that a request was lost or came twice."""
    sessions = FetchSessions(Random(0), are_followers=True)
    session = begin(sessions)
    for epoch in (1, 2, 3):
        assert sessions.enter(session.session_id, epoch, "a", trio.current_time()) is session
    for epoch in (3, 5):
        with pytest.raises(InvalidFetchSessionEpoch, match="expected 4"):
            sessions.enter(session.session_id, epoch, "a", trio.current_time())
    assert sessions.enter(session.session_id, 4, "a", trio.current_time()) is session


async def test_after_the_largest_epoch_comes_one(autojump_clock: MockClock) -> None:
    """Zero would begin a new session."""
    assert following_epoch(0) == 1
    assert following_epoch(ID_MAX - 1) == ID_MAX
    assert following_epoch(ID_MAX) == 1
    sessions = FetchSessions(Random(0), are_followers=True)
    session = begin(sessions)
    session.next_epoch = ID_MAX
    sessions.enter(session.session_id, ID_MAX, "a", trio.current_time())
    assert sessions.enter(session.session_id, 1, "a", trio.current_time()) is session


async def test_sessions_of_others_are_not_found(autojump_clock: MockClock) -> None:
    """Nor do others end them."""
    sessions = FetchSessions(Random(0), are_followers=True)
    session = begin(sessions, "a")
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(session.session_id, 1, "b", trio.current_time())
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(session.session_id + 1, 1, "a", trio.current_time())
    sessions.enter(session.session_id, NEW_SESSION, "b", trio.current_time())
    assert sessions.enter(session.session_id, 1, "a", trio.current_time()) is session


async def test_beginning_anew_ends_what_was_before(autojump_clock: MockClock) -> None:
    """A reader that lost its way names the session that it leaves."""
    sessions = FetchSessions(Random(0), are_followers=True)
    first = begin(sessions)
    second = sessions.enter(first.session_id, NEW_SESSION, "a", trio.current_time())
    assert second is not first
    assert len(sessions) == 1
    without = sessions.enter(second.session_id, WITHOUT_SESSION, "a", trio.current_time())
    assert without.session_id == NO_SESSION
    assert len(sessions) == 0


async def test_whoever_is_idle_is_evicted(autojump_clock: MockClock) -> None:
    """After two minutes; not while a request waits."""
    sessions = FetchSessions(Random(0), are_followers=True)
    gone, alive = begin(sessions), begin(sessions)
    await trio.sleep(100)
    sessions.enter(alive.session_id, 1, "a", trio.current_time())
    alive.begin(Waiting())
    await trio.sleep(30)
    begin(sessions)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.enter(gone.session_id, 1, "a", trio.current_time())
    await trio.sleep(110)
    assert sessions.enter(alive.session_id, 2, "a", trio.current_time()) is alive


async def test_too_many_sessions_are_not_kept(autojump_clock: MockClock) -> None:
    """They work all the same, and say that they are none; nobody who is alive has to go."""
    sessions = FetchSessions(Random(0), are_followers=True, sessions_max=2)
    kept = [begin(sessions), begin(sessions)]
    assert begin(sessions).session_id == NO_SESSION
    assert len(sessions) == 2
    for session in kept:
        assert sessions.enter(session.session_id, 1, "a", trio.current_time()) is session
    await trio.sleep(121)
    assert begin(sessions).session_id != NO_SESSION


async def test_a_session_is_told_of_what_it_fetches(autojump_clock: MockClock) -> None:
    """News of many partitions is kept until somebody looks; of those that rest there is none."""
    async with machine() as home:
        session = begin(FetchSessions(Random(0), are_followers=True))
        replicas = [await home.replica(key_of(number)) for number in range(3)]
        for number, replica in enumerate(replicas):
            await replica.take_up(led_by(1, replicas=(1,)))
            partition = session.name(want(partition=number))
            session.watch(partition, replica)
            session.watch(partition, replica)
            assert len(replica.watchers) == 1
        session.news.clear()
        session.partitions[key_of(1)].rests = True
        for replica in replicas[1:]:
            replica.append(batch(), acks=1)
        assert list(session.news) == [key_of(2)]
        waiting = Waiting()
        session.begin(waiting)
        replicas[0].append(batch(), acks=1)
        assert waiting.news == ["records"]
        assert list(session.news) == [key_of(2), key_of(0)]


async def test_who_is_told_of_what(autojump_clock: MockClock) -> None:
    """A follower of records at once, and of a high watermark in a moment; a consumer of what is
    committed; both when the leader changes."""
    async with machine() as home:
        replica = await home.replica(key_of())
        await replica.take_up(led_by(1, replicas=(1,)))
        follower, consumer = Waiting(), Waiting()
        sessions = {}
        for waiting in (follower, consumer):
            session = begin(FetchSessions(Random(0), are_followers=waiting is follower))
            session.watch(session.name(want()), replica)
            session.begin(waiting)
            sessions[waiting] = session
        replica.append(batch(), acks=1)
        assert (follower.news, consumer.news) == (["records"], [])
        sessions[follower].news.clear()  # as it is once it was looked at
        await settle()
        assert (follower.news, consumer.news) == (["records", "bounds"], ["records"])
        await replica.take_up(led_by(2, 1))
        assert (len(follower.news), len(consumer.news)) == (3, 2)


async def test_whatever_ends_takes_its_watchers_along(autojump_clock: MockClock) -> None:
    """Forgotten partitions, another replica of the same one, the end of the session."""
    async with machine() as home:
        sessions = FetchSessions(Random(0), are_followers=True)
        session = begin(sessions)
        replicas = [await home.replica(key_of(number)) for number in range(3)]
        for number, replica in enumerate(replicas):
            session.watch(session.name(want(partition=number)), replica)
        session.forget([TopicPartition(TOPIC_ID, 0), TopicPartition(TOPIC_ID, 77)])
        assert not replicas[0].watchers
        session.watch(session.partitions[key_of(1)], replicas[0])
        assert not replicas[1].watchers
        waiting = Waiting()
        session.begin(waiting)
        sessions.enter(session.session_id, WITHOUT_SESSION, "a", trio.current_time())
        assert waiting.is_superseded
        assert not any(replica.watchers for replica in replicas)


async def test_the_newest_request_is_answered(autojump_clock: MockClock) -> None:
    """The one before learns that nobody waits for it; its end does not touch the newer one."""
    session = begin(FetchSessions(Random(0), are_followers=True))
    first, second = Waiting(), Waiting()
    session.begin(first)
    session.begin(second)
    assert first.is_superseded
    session.end(first, trio.current_time())
    assert session.turn is second
    session.end(second, trio.current_time())
    assert session.turn is None
