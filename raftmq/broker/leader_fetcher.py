"""Fetching from one leader, for all replicas here that follow it.

Owns the conversation: a session, and one request after the other. A request waits at the leader
until there is news; whoever has something new to ask meanwhile does so with a second request, for
which the leader ends the wait of the first. Answers are taken in the order of the requests.

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
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from raftmq.broker.fetch_sessions import following_epoch
from raftmq.broker.followed import NOWHERE, Followed
from raftmq.broker.held_reports import HeldReports, Telling
from raftmq.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    RaftmqError,
    StaleBrokerEpoch,
    error_for,
)
from raftmq.partition.around import Fetched, PartitionKey
from raftmq.partition.leader import Diverged
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.fetch import NEW_SESSION, NO_SESSION
from raftmq.wire.messages.payloads import split_payload
from raftmq.wire.messages.replicate import ReplicaFetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.fetch import FetchPartition, PartitionFetched

NAMED_MAX = 5000  # partitions in one request, which has to fit into a header
ANSWER_SECONDS_MAX = 10.0  # beyond the wait for news

logger = logging.getLogger(__name__)


class Asking(Telling, Protocol):
    """The way to the leaders, see `rpc.peers.Peers`."""

    async def request(self, broker_id: int, body: Request, *, timeout_seconds: float) -> Answer: ...


class FetchSettings(NamedTuple):
    max_wait_ms: int = 500
    bytes_max: int = 8 << 20
    partition_bytes_max: int = 1 << 20
    pauses: Pauses = Pauses(0.05, 1.0)


class Myself(NamedTuple):
    """What every fetcher of a broker knows."""

    broker_id: int
    broker_epoch: Callable[[], int]
    peers: Asking
    random: Random
    settings: FetchSettings


class _Exchange:
    """A request, and what came of it."""

    def __init__(self, number: int, request: ReplicaFetch, asked: list[Followed]) -> None:
        self.number, self.request, self.asked = number, request, asked
        self.outcome: Answer | RaftmqError | None = None


class LeaderFetcher:
    """Attributes:
    is_idle: nobody follows this leader, and it knows.
    """

    def __init__(self, leader_id: int, myself: Myself) -> None:
        self._leader_id, self._myself = leader_id, myself
        self._followed: dict[PartitionKey, Followed] = {}
        self._due: dict[PartitionKey, None] = {}  # to be asked in the next request
        self._open: dict[PartitionKey, None] = {}  # the leader knows what they wait for
        self._forgotten: dict[PartitionKey, None] = {}  # the leader does not know it yet
        self._resting: list[tuple[float, int, Followed]] = []  # a heap
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION
        self._left_session_id = NO_SESSION
        self._broker_epoch = -1
        self._numbers, self._rests = count(1), count()
        self._sent: deque[_Exchange] = deque()
        self._reports = HeldReports(myself.broker_id, leader_id, myself.peers)
        self._backoff = Backoff(myself.random, myself.settings.pauses)
        self._problem = ""
        self._woken = trio.Event()
        self._tasks: trio.Nursery | None = None

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
        self._followed[key] = Followed(key, replica, part, self._myself.random)
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
        async with trio.open_nursery() as requests:
            try:
                await self._talk(requests)
            except RaftmqError as error:
                problem = error
            requests.cancel_scope.cancel()
        return problem

    async def _talk(self, requests: trio.Nursery) -> None:
        await self._take_answers()
        while not self.is_idle:
            if not self._may_send() or not self._send(requests):
                with trio.move_on_at(self._resting[0][0] if self._resting else math.inf):
                    await self._woken.wait()
            if self._woken.is_set():
                self._woken = trio.Event()
            self._wake_rested()
            await self._take_answers()

    def _may_send(self) -> bool:
        """A second one only where the leader knows the session: then it ends the first."""
        if not self._sent:
            return bool(self._due or self._open or self._forgotten)
        return bool(self._due) and len(self._sent) == 1 and self._session_id != NO_SESSION

    def _send(self, requests: trio.Nursery) -> bool:
        """False if there was nothing to ask after all."""
        if self._session_id == NO_SESSION:
            self._broker_epoch = self._myself.broker_epoch()
        elif self._broker_epoch != self._myself.broker_epoch():
            raise StaleBrokerEpoch("this broker has registered anew")
        number = next(self._numbers)
        named, asked = self._name(number)
        if not named and (self._sent or not (self._open or self._forgotten)):
            return False
        exchange = _Exchange(number, self._request(named), asked)
        self._sent.append(exchange)
        requests.start_soon(self._carry_out, exchange)
        return True

    def _name(self, number: int) -> tuple[list[FetchPartition], list[Followed]]:
        named: list[FetchPartition] = []
        asked: list[Followed] = []
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

    def _request(self, named: list[FetchPartition]) -> ReplicaFetch:
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
        )

    async def _carry_out(self, exchange: _Exchange) -> None:
        """Where there is a connection, the request leaves without any other task in between."""
        settings, peers = self._myself.settings, self._myself.peers
        seconds = settings.max_wait_ms / 1000 + ANSWER_SECONDS_MAX
        self._reports.on_asked(exchange.asked)
        try:
            exchange.outcome = await peers.request(
                self._leader_id, exchange.request, timeout_seconds=seconds
            )
        except RaftmqError as error:
            exchange.outcome = error
        self._woken.set()

    def _begin_anew(self, error: RaftmqError) -> None:
        """What was asked is not answered any more, and what was said may not have been heard."""
        if type(error).__name__ != self._problem:
            self._problem = type(error).__name__
            logger.warning("fetching is interrupted: leader=%d reason=%s", self._leader_id, error)
        self._reports.close()
        self._sent.clear()
        self._open.clear()
        self._forgotten.clear()
        self._left_session_id = self._session_id or self._left_session_id
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION
        for followed in self._followed.values():
            followed.forget_session()
        self._due = dict.fromkeys(self._followed)

    # -- answers ---------------------------------------------------------------------------

    async def _take_answers(self) -> None:
        while self._sent and self._sent[0].outcome is not None:
            exchange = self._sent.popleft()
            if isinstance(exchange.outcome, RaftmqError):
                raise exchange.outcome
            assert exchange.outcome is not None
            await self._take_answer(exchange.number, exchange.outcome)

    async def _take_answer(self, number: int, answer: Answer) -> None:
        told, session_id = answer.body.partitions, answer.body.session_id
        pieces = split_payload([one.length for one in told], answer.payload)
        self._on_session(session_id)
        for one, data in zip(told, pieces, strict=True):
            followed = self._followed.get(PartitionKey(one.topic_id, one.partition))
            if followed and followed.token is not None and followed.asked_in <= number:
                self._open.pop(followed.key, None)
                token, followed.token = followed.token, None
                await self._take(followed, token, one, data)
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

    async def _take(
        self, followed: Followed, token: int, told: PartitionFetched, data: memoryview
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
            self._start(followed, partial(replica.on_fetched, token, Fetched(diverged=diverged)))
        else:
            await self._append(followed, token, Fetched(data, told.high_watermark, start))

    async def _append(self, followed: Followed, token: int, fetched: Fetched) -> None:
        replica, log = followed.replica, followed.replica.log
        if fetched.data and log.log_start_offset == log.log_end_offset:
            self._start(followed, partial(replica.on_fetched, token, fetched))  # may have to wait
            return
        try:
            await replica.on_fetched(token, fetched)
        except RaftmqError as error:
            self._rest(followed, error)
            return
        self._on_success(followed, goes_on=not fetched.data)
        if fetched.data:
            await trio.lowlevel.checkpoint()  # a long answer is no reason to let others wait

    def _start(self, followed: Followed, change: Callable[[], Awaitable[None]]) -> None:
        """What waits for the disk has a task of its own."""
        assert self._tasks is not None, "only while it runs"
        followed.told_held = NOWHERE
        self._tasks.start_soon(self._perform, followed, change)

    async def _perform(self, followed: Followed, change: Callable[[], Awaitable[None]]) -> None:
        try:
            await change()
        except RaftmqError as error:
            self._rest(followed, error)
        else:
            self._on_success(followed, goes_on=False)

    def _on_success(self, followed: Followed, *, goes_on: bool) -> None:
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
        self._woken.set()

    def _rest(self, followed: Followed, error: RaftmqError | None = None) -> None:
        until = trio.current_time() + followed.pause_after(error)
        heappush(self._resting, (until, next(self._rests), followed))

    def _wake_rested(self) -> None:
        now = trio.current_time()
        while self._resting and self._resting[0][0] <= now:
            followed = heappop(self._resting)[2]
            if self._followed.get(followed.key) is followed and followed.token is None:
                self._due[followed.key] = None
