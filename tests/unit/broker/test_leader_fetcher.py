"""The conversation with one leader, whose answers a test writes: what a network rarely does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.broker.replication.copy_budget import CopyBudget
from raftmq.broker.replication.fetchers import Fetchers
from raftmq.errors import Disconnected, ErrorCode, RaftmqError
from raftmq.rpc.reply import Answer
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import NEW_SESSION, FetchReply, PartitionFetched
from raftmq.wire.messages.replicate import ReplicaFetch, ReplicaProgress
from tests.unit.partition.replica_world import KEY, led_by, machine
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from raftmq.wire.bodies import Request

SESSION = 77


class ScriptedLeader:
    """In place of `Peers`: notes what it is asked and answers when it is told to.

    Attributes:
        reports: of bytes that were refused.
        takes: whether what is sent one way leaves at all.
    """

    def __init__(self) -> None:
        self.requests: list[ReplicaFetch] = []
        self.told: list[ReplicaProgress] = []
        self.reports: list[ReportCorruption] = []
        self.takes = True
        self.is_connected = False
        self._asked = trio.lowlevel.ParkingLot()
        self._on_outcomes: list[Callable[[Answer | RaftmqError], None]] = []

    async def request(self, broker_id: int, body: Request, *, timeout_seconds: float) -> Answer:
        """Waits for a connection, which is there at once."""
        outcomes: list[Answer | RaftmqError] = []
        told = trio.Event()
        self.is_connected = True
        self.ask(
            broker_id,
            body,
            lambda outcome: (outcomes.append(outcome), told.set()),  # type: ignore[func-returns-value]
            timeout_seconds=timeout_seconds,
        )
        await told.wait()
        [outcome] = outcomes
        if isinstance(outcome, RaftmqError):
            raise outcome
        return outcome

    def ask(
        self,
        _broker_id: int,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        if not self.is_connected:
            return False
        if isinstance(body, ReportCorruption):
            self.reports.append(body)
            return True
        assert isinstance(body, ReplicaFetch)
        assert timeout_seconds > body.max_wait_ms / 1000
        self.requests.append(body)
        self._on_outcomes.append(on_outcome)
        self._asked.unpark_all()
        return True

    def send_one_way(self, _broker_id: int, body: Request) -> bool:
        assert isinstance(body, ReplicaProgress)
        if self.takes:
            self.told.append(body)
        return self.takes

    async def wait_requests(self, count: int) -> None:
        while len(self.requests) < count:
            await self._asked.park()

    async def answer(self, number: int, outcome: Answer | RaftmqError) -> None:
        """To the request with that number, counted from 0."""
        self._on_outcomes[number](outcome)
        await wait_all_tasks_blocked()


def reply(*told: PartitionFetched, data: bytes = b"") -> Answer:
    return Answer(FetchReply(SESSION, told), data, -1, 0)


def failed(error: ErrorCode) -> PartitionFetched:
    return PartitionFetched(*KEY, error=error)


def fetched(length: int = 0, high_watermark: int = 0) -> PartitionFetched:
    return PartitionFetched(*KEY, high_watermark=high_watermark, log_start_offset=0, length=length)


@asynccontextmanager
async def following() -> AsyncIterator[tuple[ScriptedLeader, Fetchers, Replica]]:
    """A replica that follows broker 1 in epoch 0, whose first answer said that the logs agree."""
    leader = ScriptedLeader()
    async with machine(2) as home, trio.open_nursery() as nursery:
        fetchers = Fetchers(
            2,
            leader,
            broker_epoch=lambda: 102,
            random=Random(0),
            copy_peers=ScriptedLeader(),
            copy_budget=CopyBudget(0),
        )
        home.around = home.around._replace(on_held=fetchers.on_held)
        replica = await home.replica()
        await replica.take_up(led_by(1))
        fetchers.follow(KEY, replica)
        await nursery.start(fetchers.run)
        await wait_all_tasks_blocked()
        await leader.answer(0, reply(fetched()))
        yield leader, fetchers, replica
        nursery.cancel_scope.cancel()


async def test_an_idle_partition_is_not_named_again(autojump_clock: MockClock) -> None:
    """The leader knows from where it goes on."""
    async with following() as (leader, _, _):
        first, second = leader.requests
        assert (first.session_id, first.session_epoch) == (0, NEW_SESSION)
        assert len(first.partitions) == 1
        assert (second.session_id, second.session_epoch) == (SESSION, 1)
        assert second.partitions == ()


async def test_records_that_were_asked_for_in_an_earlier_epoch_are_dropped(
    autojump_clock: MockClock,
) -> None:
    """The leader answers the first of two requests; meanwhile it was elected again."""
    async with following() as (leader, fetchers, replica):
        await replica.take_up(led_by(1, 1))
        fetchers.follow(KEY, replica)
        await wait_all_tasks_blocked()
        assert [wanted.leader_epoch for wanted in leader.requests[2].partitions] == [1]
        data = batch(b"old")
        await leader.answer(1, reply(fetched(len(data)), data=data))
        assert values_of(replica.log) == []
        await leader.answer(2, reply(fetched()))
        assert replica.follower is not None
        assert replica.follower.agrees


async def test_answers_are_taken_in_the_order_of_the_requests(autojump_clock: MockClock) -> None:
    """The second one is there first; it waits."""
    async with following() as (leader, fetchers, replica):
        await replica.take_up(led_by(1, 1))
        fetchers.follow(KEY, replica)
        await wait_all_tasks_blocked()
        await leader.answer(2, reply(fetched()))
        assert replica.follower is not None
        assert not replica.follower.agrees
        await leader.answer(1, reply())
        assert replica.follower.agrees


async def test_words_that_could_not_leave_do_so_later(autojump_clock: MockClock) -> None:
    """The connection took nothing just then; the next answer shows that it lives."""
    async with following() as (leader, _, replica):
        leader.takes = False
        other = batch(b"a")
        data = bytearray(other)
        data[12:16] = bytes(4)  # as the leader of epoch 0 writes it
        await leader.answer(1, reply(fetched(len(data)), data=bytes(data)))
        await trio.sleep(1)
        assert replica.log.held_end_offset == 1
        assert leader.told == []
        leader.takes = True
        await leader.answer(len(leader.requests) - 1, reply(fetched(high_watermark=0)))
        assert leader.told == [], "the next request takes it along"
        assert [one.held_offset for one in leader.requests[-1].held] == [1]


async def test_a_session_ends_with_its_connection(autojump_clock: MockClock) -> None:
    """Nothing was outstanding when it broke: what is held might overtake the next request."""
    async with following() as (leader, _, _):
        await leader.answer(1, reply(failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        leader.is_connected = False
        await trio.sleep(2)
        again = leader.requests[-1]
        assert (again.session_id, again.session_epoch) == (SESSION, NEW_SESSION)
        assert len(again.partitions) == 1


async def test_after_a_break_everything_is_said_again(autojump_clock: MockClock) -> None:
    """A new session that names all, and leaves the one before."""
    async with following() as (leader, _, replica):
        await leader.answer(1, Disconnected("cut"))
        await trio.sleep(1)
        again = leader.requests[2]
        assert (again.session_id, again.session_epoch) == (SESSION, NEW_SESSION)
        assert len(again.partitions) == 1
        assert replica.next_fetch() is None  # the fetch is outstanding once more


async def test_a_leader_that_keeps_no_sessions_is_asked_at_a_pace(
    autojump_clock: MockClock,
) -> None:
    """It has too many: what it answers is taken, and then there is a pause."""
    async with following() as (leader, _, replica):
        nothing = Answer(FetchReply(0, (fetched(high_watermark=0),)), b"", -1, 0)
        began_at = trio.current_time()
        for number in range(1, 8):
            await leader.answer(number, nothing)
            await leader.wait_requests(number + 2)
        assert trio.current_time() - began_at > 3
        assert replica.follower is not None
        assert replica.follower.agrees
