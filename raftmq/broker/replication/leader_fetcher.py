"""Fetching from one leader, for all replicas here that follow it.

Owns the conversation: a session, and one request after the other. A request waits at the leader
until there is news; whoever has something new to ask meanwhile does so with a second request, for
which the leader ends the wait of the first. Answers are taken in the order of the requests, by
whoever reads them from the connection: the next request, and word of what is held, leave together
before any other task has its turn.

Invariants: a replica that fails, or whose log has to be cut, holds up no other. After a failure of
the conversation no earlier answer counts, and all begins anew.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.broker.replication.fetch_exchange import (
    FetchEnvironment,
    FetchExchange,
    FetchSettings,
    FollowerIdentity,
)
from raftmq.broker.replication.followed_partition import NOWHERE, FollowedPartition
from raftmq.broker.replication.progress_reports import ProgressReports
from raftmq.broker.requests.fetch_sessions import following_epoch
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    FetchSessionIdNotFound,
    RaftmqError,
    StaleBrokerEpoch,
    error_for,
    without_frames,
)
from raftmq.partition.leader import Diverged
from raftmq.partition.replica_environment import FetchedFromLeader, PartitionKey
from raftmq.rpc.backoff import Backoff
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.fetch import NEW_SESSION, NO_SESSION, FetchPartition
from raftmq.wire.messages.produce import split_payload
from raftmq.wire.messages.replicate import ReplicaFetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.fetch import PartitionFetched
    from raftmq.wire.messages.replicate import PartitionProgress


logger = logging.getLogger("raftmq.broker")


# -- Leader fetcher -------------------------------------------------------------------------------


# -- Resting --------------------------------------------------------------------------------------
# Replicas that do not ask their leader just now, because the last time went wrong.
#
# Owns until when each rests. Reads no clock.


class BackoffQueue:
    """Times are those of the clock of whoever calls."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, FollowedPartition]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, followed: FollowedPartition, *, until: float) -> None:
        heappush(self._heap, (until, next(self._numbers), followed))

    @property
    def next_at(self) -> float:
        """When the first one has rested; math.inf if nobody rests."""
        return self._heap[0][0] if self._heap else math.inf

    def take_rested(self, now: float) -> Iterator[FollowedPartition]:
        """Who has rested enough, in that order; they rest no more."""
        while self.next_at <= now:
            yield heappop(self._heap)[2]


# -- Leader fetcher -------------------------------------------------------------------------------


NAMED_MAX = 5000  # partitions in one request, which has to fit into a header
ANSWER_SECONDS_MAX = 10.0  # beyond the wait for news


class LeaderFetcher:
    """Attributes:
    is_idle: nobody follows this leader, and it knows.
    """

    def __init__(self, leader_id: int, myself: FollowerIdentity) -> None:
        self._leader_id, self._myself = leader_id, myself
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        self._due: dict[PartitionKey, None] = {}  # to be asked in the next request
        self._open: dict[PartitionKey, None] = {}  # the leader knows what they wait for
        self._forgotten: dict[PartitionKey, None] = {}  # the leader does not know it yet
        self._resting = BackoffQueue()
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION
        self._left_session_id = NO_SESSION
        self._broker_epoch = -1
        self._numbers = count(1)
        self._sent: deque[FetchExchange] = deque()
        self._reports = ProgressReports(myself.broker_id, leader_id, myself.peers)
        self._backoff = Backoff(myself.random, myself.settings.pauses)
        self._problem = ""
        self._woken = trio.Event()
        self._is_stepping = False
        self._failure: RaftmqError | None = None  # that ends the present conversation
        self._tasks: trio.Nursery | None = None
        self._requests: trio.Nursery | None = None

    # -- whom it fetches for ---------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not (self._followed or self._forgotten or self._sent)

    def follow(self, key: PartitionKey, replica: Replica) -> None:
        """May be said again and again."""
        part = replica.follower
        assert part is not None, "it has to follow"
        assert part.leader == self._leader_id, f"it follows {part.leader}"
        known = self._followed.get(key)
        if known is not None and known.part is part:
            return
        self._open.pop(key, None)
        self._followed[key] = FollowedPartition(key, replica, part, self._myself.random)
        self._ask_next(key)

    def unfollow(self, key: PartitionKey) -> None:
        if self._followed.pop(key, None) is None:
            return
        self._due.pop(key, None)
        self._open.pop(key, None)
        if self._session_id != NO_SESSION or self._sent:
            self._forgotten[key] = None
        self._woken.set()

    def on_held(self, key: PartitionKey) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            self._reports.mark(followed)

    # -- the conversation ------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is idle."""
        async with trio.open_nursery() as self._tasks:
            self._tasks.start_soon(self._reports.run)
            while not self.is_idle:
                error = await self._converse()
                if error is not None:
                    self._begin_anew(error)
                    await trio.sleep(self._backoff.next_seconds())
            self._tasks.cancel_scope.cancel()
        self._tasks = None

    async def _converse(self) -> RaftmqError | None:
        """Returns what went wrong; None: there is nothing more to say."""
        problem: RaftmqError | None = None
        async with trio.open_nursery() as self._requests:
            try:
                await self._talk()
            except RaftmqError as error:
                problem = without_frames(error)
            self._requests.cancel_scope.cancel()
        self._requests = None
        return problem

    async def _talk(self) -> None:
        while True:
            self._step()
            if self.is_idle:
                return
            with trio.move_on_at(self._resting.next_at):
                await self._woken.wait()
            if self._woken.is_set():
                self._woken = trio.Event()
            if self._failure is not None:
                raise self._failure

    def _step(self) -> None:
        """Take what was answered, ask and tell what there is to. Raises what ends it all."""
        self._is_stepping = self._reports.is_held_back = True
        try:
            self._take_answers()
            self._wake_rested()
            while self._may_send() and self._send():
                pass
        finally:
            self._is_stepping = self._reports.is_held_back = False
        self._reports.tell()

    def _on_outcome(self, exchange: FetchExchange, outcome: Answer | RaftmqError) -> None:
        exchange.outcome = outcome
        if exchange not in self._sent or self._failure is not None:
            return  # of a conversation that is over
        try:
            self._step()
        except RaftmqError as error:
            self._failure = error
        if self._failure is not None or self.is_idle or len(self._resting):
            self._woken.set()

    def _may_send(self) -> bool:
        """A second one only where the leader knows the session: then it ends the first."""
        if not self._sent:
            return bool(self._due or self._open or self._forgotten)
        return bool(self._due) and len(self._sent) == 1 and self._session_id != NO_SESSION

    def _send(self) -> bool:
        """False if there was nothing to ask after all."""
        if self._session_id == NO_SESSION:
            self._broker_epoch = self._myself.broker_epoch()
        elif self._broker_epoch != self._myself.broker_epoch():
            raise StaleBrokerEpoch("this broker has registered anew")
        number = next(self._numbers)
        named, asked = self._name(number)
        if not named and (self._sent or not (self._open or self._forgotten)):
            return False
        held = self._reports.on_asking(asked)
        exchange = FetchExchange(number, self._request(named, held))
        self._sent.append(exchange)
        self._ask(exchange)
        return True

    def _ask(self, exchange: FetchExchange) -> None:
        """A task waits for the first connection. A session does not outlive its own: what is said
        one way over the next one might get there before this request.
        """
        asked = self._myself.peers.ask(
            self._leader_id,
            exchange.request,
            partial(self._on_outcome, exchange),
            timeout_seconds=self._answer_seconds_max,
        )
        if not asked and self._session_id != NO_SESSION:
            raise Disconnected(f"broker {self._leader_id}: the connection of the session has ended")
        if not asked:
            assert self._requests is not None, "only while it talks"
            self._requests.start_soon(self._carry_out, exchange)

    @property
    def _answer_seconds_max(self) -> float:
        return self._myself.settings.max_wait_ms / 1000 + ANSWER_SECONDS_MAX

    def _name(self, number: int) -> tuple[list[FetchPartition], list[FollowedPartition]]:
        named: list[FetchPartition] = []
        asked: list[FollowedPartition] = []
        for key in list(self._due)[:NAMED_MAX]:
            del self._due[key]
            followed = self._followed[key]
            bytes_max = self._myself.settings.partition_bytes_max
            wanted = followed.ask(number=number, bytes_max=bytes_max)
            if wanted is None:
                self._rest(followed)
                continue
            named.append(wanted)
            asked.append(followed)
            self._open[key] = None
            self._forgotten.pop(key, None)
        return named, asked

    def _request(
        self, named: list[FetchPartition], held: tuple[PartitionProgress, ...]
    ) -> ReplicaFetch:
        settings, session_epoch = self._myself.settings, self._session_epoch
        self._session_epoch = following_epoch(session_epoch)
        forgotten = list(self._forgotten)[:NAMED_MAX]
        for key in forgotten:
            del self._forgotten[key]
        return ReplicaFetch(
            self._myself.broker_id,
            self._broker_epoch,
            max_wait_ms=settings.max_wait_ms,
            bytes_min=1,
            bytes_max=settings.bytes_max,
            session_id=self._session_id or self._left_session_id,
            session_epoch=session_epoch,
            partitions=tuple(named),
            forgotten=tuple(TopicPartition(*key) for key in forgotten),
            held=held,
        )

    async def _carry_out(self, exchange: FetchExchange) -> None:
        """With the wait for a connection."""
        try:
            outcome: Answer | RaftmqError = await self._myself.peers.request(
                self._leader_id, exchange.request, timeout_seconds=self._answer_seconds_max
            )
        except RaftmqError as error:
            outcome = error
        self._on_outcome(exchange, outcome)

    def _begin_anew(self, error: RaftmqError) -> None:
        """What was asked is not answered any more, and what was said may not have been heard."""
        if type(error).__name__ != self._problem:
            self._problem = type(error).__name__
            logger.warning("fetching is interrupted: leader=%d reason=%s", self._leader_id, error)
        self._reports.close()
        self._failure = None
        self._sent.clear()
        self._open.clear()
        self._forgotten.clear()
        self._left_session_id = self._session_id or self._left_session_id
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION
        for followed in self._followed.values():
            followed.forget_session()
        self._due = dict.fromkeys(self._followed)

    # -- answers ---------------------------------------------------------------------------

    def _take_answers(self) -> None:
        while self._sent and self._sent[0].outcome is not None:
            exchange = self._sent.popleft()
            if isinstance(exchange.outcome, RaftmqError):
                raise exchange.outcome
            assert exchange.outcome is not None
            self._take_answer(exchange.number, exchange.outcome)

    def _take_answer(self, number: int, answer: Answer) -> None:
        told, session_id = answer.body.partitions, answer.body.session_id
        pieces = split_payload([one.length for one in told], answer.payload)
        self._on_session(session_id)
        for one, data in zip(told, pieces, strict=True):
            followed = self._followed.get(PartitionKey(one.topic_id, one.partition))
            if followed and followed.token is not None and followed.asked_in <= number:
                self._open.pop(followed.key, None)
                token, followed.token = followed.token, None
                self._take(followed, token, one, data)
        self._reports.retry()
        if session_id == NO_SESSION:
            raise FetchSessionIdNotFound(f"broker {self._leader_id} keeps no session for us")

    def _on_session(self, session_id: int) -> None:
        if session_id != NO_SESSION:
            self._backoff.reset()
            self._problem = ""
        if self._session_id != session_id:
            self._session_id = session_id
            self._reports.open(self._broker_epoch)

    def _take(
        self, followed: FollowedPartition, token: int, told: PartitionFetched, data: memoryview
    ) -> None:
        """1. The log has to begin elsewhere. 2. Not now. 3. The log has to be cut. 4. Records, or
        only how far they are committed.
        """
        replica, start = followed.replica, told.log_start_offset
        if told.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start(followed, partial(replica.on_out_of_range, token, start))
        elif told.error != ErrorCode.NONE:
            replica.on_no_answer(token)
            followed.told_held = NOWHERE
            self._rest(followed, error_for(told.error, told.message))
        elif told.diverging is not None:
            diverged = Diverged(told.diverging.leader_epoch, told.diverging.end_offset)
            self._start(
                followed, partial(replica.on_fetched, token, FetchedFromLeader(diverged=diverged))
            )
        else:
            self._append(followed, token, FetchedFromLeader(data, told.high_watermark, start))

    def _append(self, followed: FollowedPartition, token: int, fetched: FetchedFromLeader) -> None:
        replica, log = followed.replica, followed.replica.log
        if fetched.data and log.log_start_offset == log.log_end_offset:
            self._start(followed, partial(replica.on_fetched, token, fetched))  # may have to wait
            return
        try:
            replica.on_records(token, fetched)
        except RaftmqError as error:
            self._rest(followed, error)
            return
        self._on_success(followed, goes_on=not fetched.data)
        self._adopt_start_of(followed)

    def _adopt_start_of(self, followed: FollowedPartition) -> None:
        if followed.begins_to_adopt_start():
            assert self._tasks is not None, "only while it runs"
            self._tasks.start_soon(self._adopt_start, followed)

    async def _adopt_start(self, followed: FollowedPartition) -> None:
        """Until it is done, or there is another leader."""
        while await followed.adopt_start():  # noqa: ASYNC110  # the disk has its time
            await trio.sleep(followed.pause_after(None))
        self._reports.mark(followed)

    def _start(self, followed: FollowedPartition, change: Callable[[], Awaitable[None]]) -> None:
        """What waits for the disk has a task of its own."""
        assert self._tasks is not None, "only while it runs"
        followed.told_held = NOWHERE
        self._tasks.start_soon(self._perform, followed, change)

    async def _perform(
        self, followed: FollowedPartition, change: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await change()
        except RaftmqError as error:
            self._rest(followed, error)
            self._woken.set()  # it sleeps until whoever rested before has rested
        else:
            self._on_success(followed, goes_on=False)
            self._adopt_start_of(followed)

    def _on_success(self, followed: FollowedPartition, *, goes_on: bool) -> None:
        """`goes_on`: where the leader was asked to, without being asked again."""
        followed.on_answer()
        self._reports.mark(followed)
        if self._followed.get(followed.key) is not followed:
            return
        if goes_on and followed.ask_on():
            self._open[followed.key] = None
        else:
            self._ask_next(followed.key)

    # -- resting ---------------------------------------------------------------------------

    def _ask_next(self, key: PartitionKey) -> None:
        self._due[key] = None
        if not self._is_stepping:
            self._woken.set()

    def _rest(self, followed: FollowedPartition, error: RaftmqError | None = None) -> None:
        followed.report(error, self._myself.peers)
        self._resting.add(followed, until=trio.current_time() + followed.pause_after(error))

    def _wake_rested(self) -> None:
        for followed in self._resting.take_rested(trio.current_time()):
            if self._followed.get(followed.key) is followed and followed.token is None:
                self._due[followed.key] = None


# -- Fetcher --------------------------------------------------------------------------------------
# The followers' side of replication: one task for each leader that replicas here follow.
#
# Owns who fetches for whom. A task begins with the first replica that follows a leader and ends
# when the last one has gone.


class Fetchers:
    """Nothing is fetched before `run`."""

    def __init__(
        self,
        broker_id: int,
        peers: FetchEnvironment,
        *,
        broker_epoch: Callable[[], int],
        random: Random,
        settings: FetchSettings | None = None,
    ) -> None:
        """`broker_epoch()`: under which this broker is registered; asked once a replica follows."""
        self._myself = FollowerIdentity(
            broker_id, broker_epoch, peers, random, settings or FetchSettings()
        )
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._by_key: dict[PartitionKey, LeaderFetcher] = {}
        self._nursery: trio.Nursery | None = None

    def follow(self, key: PartitionKey, replica: Replica) -> None:
        """Fetch for it from the leader that it follows now; may be said again and again."""
        part = replica.follower
        assert part is not None, f"{replica.log.name} does not follow"
        fetcher = self._by_leader.get(part.leader) or self._add(part.leader)
        before = self._by_key.get(key)
        if before is not None and before is not fetcher:
            before.unfollow(key)
        self._by_key[key] = fetcher
        fetcher.follow(key, replica)

    def unfollow(self, key: PartitionKey) -> None:
        fetcher = self._by_key.pop(key, None)
        if fetcher is not None:
            fetcher.unfollow(key)

    def on_held(self, key: PartitionKey) -> None:
        """It may hold more now: its leader wants to know."""
        fetcher = self._by_key.get(key)
        if fetcher is not None:
            fetcher.on_held(key)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for leader_id in self._by_leader:
                    self._nursery.start_soon(self._fetch_from, leader_id)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _add(self, leader_id: int) -> LeaderFetcher:
        fetcher = self._by_leader[leader_id] = LeaderFetcher(leader_id, self._myself)
        if self._nursery is not None:
            self._nursery.start_soon(self._fetch_from, leader_id)
        return fetcher

    async def _fetch_from(self, leader_id: int) -> None:
        fetcher = self._by_leader[leader_id]
        while not fetcher.is_idle:  # somebody may come while the task ends
            await fetcher.run()
        del self._by_leader[leader_id]
