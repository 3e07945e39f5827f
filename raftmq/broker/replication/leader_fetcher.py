"""Follower fetching: one fetch session with each leader, for all replicas here that follow it, and
one more, the copy lane, for those that are added and far behind.

Owns the conversation: a session, and one request after the other. A request is a long poll at the
leader; a partition with something new to ask meanwhile goes into a second request, for which the
leader ends the wait of the first. Answers are taken in the order of the requests, in the task that
reads the connection: the next request and the progress report leave together, before any other
task has its turn (decision 0016). (Kafka: ReplicaFetcherThread)

Invariants: a replica that fails, or whose log must be truncated, holds up no other. After a failure
of the conversation no earlier answer counts, and a new session begins. In a copy lane nobody says
what it holds, and one request at a time is in flight, as the budget allows (decision 0044).
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
    CopyLane,
    FetchExchange,
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

    from raftmq.partition.follower import Follower
    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.fetch import PartitionFetched
    from raftmq.wire.messages.replicate import PartitionProgress


logger = logging.getLogger("raftmq.broker")


# -- Backoff queue --------------------------------------------------------------------------------
# Replicas that are backing off: they do not ask their leader, because the last time failed.
#
# Owns until when each waits. Reads no clock.


class BackoffQueue:
    """Times are of the caller's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, FollowedPartition]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, followed: FollowedPartition, *, until: float) -> None:
        heappush(self._heap, (until, next(self._numbers), followed))

    @property
    def next_at(self) -> float:
        """When the first one may ask again; math.inf if none is waiting."""
        return self._heap[0][0] if self._heap else math.inf

    def take_rested(self, now: float) -> Iterator[FollowedPartition]:
        """Remove and yield the replicas whose time has come, in order."""
        while self.next_at <= now:
            yield heappop(self._heap)[2]


# -- Leader fetcher -------------------------------------------------------------------------------


NAMED_MAX = 5000  # partitions in one request, which must fit into `header_bytes_max`
# To answer after the long poll: a leader that takes longer hangs, and the session is closed.
ANSWER_SECONDS_MAX = 10.0


class LeaderFetcher:
    """Attributes:
    is_idle: no replica follows this leader, and the leader's session is up to date.
    """

    def __init__(
        self, leader_id: int, myself: FollowerIdentity, lane: CopyLane | None = None
    ) -> None:
        self._leader_id, self._myself, self._lane = leader_id, myself, lane
        self._turn_at: float | None = None  # of a copy lane: when its next request may leave
        self._followed: dict[PartitionKey, FollowedPartition] = {}
        # Every followed partition is due, open, or waits for a disk or a pause (in neither).
        self._due: dict[PartitionKey, None] = {}  # to be named in the next request
        self._open: dict[PartitionKey, None] = {}  # in the session; the leader knows their offset
        self._forgotten: dict[PartitionKey, None] = {}  # to be removed from the leader's session
        self._backing_off = BackoffQueue()
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION
        self._left_session_id = NO_SESSION  # the session before, which the leader may drop
        self._broker_epoch = -1
        self._numbers = count(1)
        self._sent: deque[FetchExchange] = deque()
        self._reports = ProgressReports(
            myself.broker_id, leader_id, myself.peers, is_silent=lane is not None
        )
        self._backoff = Backoff(myself.random, myself.settings.pauses)
        self._problem = ""
        self._woken = trio.Event()
        self._is_stepping = False
        self._failure: RaftmqError | None = None  # ends the present conversation
        self._tasks: trio.Nursery | None = None  # disk work, across conversations
        self._requests: trio.Nursery | None = None

    # -- followed replicas -----------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        return not (self._followed or self._forgotten or self._sent)

    def follow(self, key: PartitionKey, replica: Replica) -> None:
        """Idempotent: called for every change of assignment."""
        part = replica.follower
        assert part is not None, "it has to follow"
        assert part.leader == self._leader_id, f"it follows {part.leader}"
        known = self._followed.get(key)
        # The same leader epoch: its fetch goes on.
        if known is not None and known.part is part:
            return
        self._open.pop(key, None)
        self._followed[key] = FollowedPartition(key, replica, part, self._myself.random)
        self._ask_next(key)

    def dismiss(self, key: PartitionKey, part: Follower) -> bool:
        """Whether this is a copy lane with a request about it in flight, after whose answer it goes
        over to the usual lane. Sooner, that request might overtake one of the usual lane, and the
        leader would believe that the log was cut."""
        followed = self._followed.get(key)
        if self._lane is None or followed is None or followed.part is not part:
            return False
        followed.is_leaving = followed.token is not None
        return followed.is_leaving

    def unfollow(self, key: PartitionKey) -> None:
        # It follows another leader, or was never followed here.
        if self._followed.pop(key, None) is None:
            return
        self._due.pop(key, None)
        self._open.pop(key, None)
        # Without a session the leader knows nothing that it would have to forget.
        if self._session_id != NO_SESSION or self._sent:
            self._forgotten[key] = None
        self._woken.set()

    def on_held(self, key: PartitionKey) -> None:
        followed = self._followed.get(key)
        if followed is not None:  # a flush may end after the partition was unfollowed
            self._reports.mark(followed)

    # -- the conversation ------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is idle."""
        async with trio.open_nursery() as self._tasks:
            self._tasks.start_soon(self._reports.run)
            # Ends when nothing is left to follow; each failure begins a new conversation.
            while not self.is_idle:
                error = await self._converse()
                if error is not None:  # the session is void: a new one after a pause
                    self._begin_anew(error)
                    # A leader that refuses or is down is asked again after the backoff.
                    await trio.sleep(self._backoff.next_seconds())
            self._tasks.cancel_scope.cancel()
        self._tasks = None

    async def _converse(self) -> RaftmqError | None:
        """Returns the error that ended it; None when it is idle."""
        problem: RaftmqError | None = None
        async with trio.open_nursery() as self._requests:
            try:
                await self._talk()  # until idle, or an error
            # The frames of the traceback would keep answers of megabytes alive.
            except RaftmqError as error:
                problem = without_frames(error)
            self._requests.cancel_scope.cancel()
        self._requests = None
        self._settle_turn(0)
        return problem

    async def _talk(self) -> None:
        while True:
            self._step()
            if self.is_idle:  # nothing to follow and nothing to tell the leader
                return
            # Until a replica has something to ask, an answer failed, a backoff has ended, or it is
            # the turn of this lane.
            with trio.move_on_at(min(self._backing_off.next_at, self._next_turn_at)):
                await self._woken.wait()  # set by a partition, an answer's failure, or `unfollow`
            # By timeout it is unset: keep it, others may hold it.
            if self._woken.is_set():
                self._woken = trio.Event()
            if self._failure is not None:  # an answer has failed, in the reader's task
                raise self._failure

    def _step(self) -> None:
        """Take answers, then ask and report, also what found no room on the connection before.
        Raises what ends the conversation."""
        # Reports wait for the end of the step, to travel with the next fetch.
        self._is_stepping = self._reports.is_held_back = True
        try:
            self._take_answers()
            if len(self._backing_off):
                self._wake_rested()
            if self._lane is not None:
                self._let_over(self._lane)
            # At most two requests in flight: see `_may_send`.
            while self._may_send() and self._send():
                pass
        finally:
            self._is_stepping = self._reports.is_held_back = False
        self._reports.tell()

    def _on_outcome(self, exchange: FetchExchange, outcome: Answer | RaftmqError) -> None:
        exchange.outcome = outcome
        # The answer belongs to an earlier conversation.
        if exchange not in self._sent or self._failure is not None:
            return  # an answer to an earlier conversation
        try:
            self._step()
        except RaftmqError as error:  # raised in the reader's task: handed to the conversation
            self._failure = error
        # Only then is there something for the task itself; otherwise this step has done all.
        is_timed = len(self._backing_off) or self._lane is not None
        if self._failure is not None or self.is_idle or is_timed:
            self._woken.set()

    def _may_send(self) -> bool:
        """A second request only into a session that the leader has confirmed: it ends the long
        poll of the first one."""
        # Nothing in flight: an empty request keeps the long poll of the session open.
        if not self._sent:
            return self._has_turn() if self._due or self._open else bool(self._forgotten)
        is_confirmed = self._session_id != NO_SESSION and self._lane is None
        return bool(self._due) and len(self._sent) == 1 and is_confirmed

    def _send(self) -> bool:
        """False if there was nothing to ask after all."""
        # A session belongs to one registration of this broker: the leader fences older ones.
        if self._session_id == NO_SESSION:
            self._broker_epoch = self._myself.broker_epoch()
        elif self._broker_epoch != self._myself.broker_epoch():
            raise StaleBrokerEpoch("this broker has registered anew")
        number = next(self._numbers)
        named, asked = self._name(number)
        # Every due partition was waiting for its disk or its pause.
        if not named and (self._sent or not (self._open or self._forgotten)):
            return False
        held = self._reports.on_asking(asked)
        exchange = FetchExchange(number, self._request(named, held))
        self._sent.append(exchange)
        self._ask(exchange)
        return True

    def _ask(self, exchange: FetchExchange) -> None:
        """Without a connection a task waits for one, but only to open a session. A session does
        not outlive its connection: a progress report sent over the next one might overtake this
        request.
        """
        asked = self._myself.peers.ask(
            self._leader_id,
            exchange.request,
            partial(self._on_outcome, exchange),
            timeout_seconds=self._answer_seconds_max,
        )
        # The connection of the session has ended; begin a new session.
        if not asked and self._session_id != NO_SESSION:
            raise Disconnected(f"broker {self._leader_id}: the connection of the session has ended")
        if not asked:  # the first request of a session: a task may dial
            assert self._requests is not None, "only while it talks"
            self._requests.start_soon(self._carry_out, exchange)

    @property
    def _answer_seconds_max(self) -> float:
        return self._myself.settings.max_wait_ms / 1000 + ANSWER_SECONDS_MAX

    # -- a copy lane -----------------------------------------------------------------------

    def _has_turn(self) -> bool:
        """Whether the budget allows a request now; always so in the usual lane."""
        if self._lane is None:
            return True
        now = trio.current_time()
        if self._turn_at is None:
            self._turn_at = self._lane.budget.take_turn(now)
        return self._turn_at <= now

    @property
    def _next_turn_at(self) -> float:
        """Until when there is something to ask, and nothing but the turn is missing."""
        is_waiting = bool(self._due or self._open) and not self._sent
        return math.inf if self._turn_at is None or not is_waiting else self._turn_at

    def _settle_turn(self, bytes_fetched: int) -> None:
        if self._lane is not None and self._turn_at is not None:
            self._lane.budget.settle(bytes_fetched)
            self._turn_at = None

    def _let_over(self, lane: CopyLane) -> None:
        """To the usual lane: whoever has reached the leader's high watermark, or has to leave."""
        for followed in [self._followed[key] for key in self._due]:
            if followed.is_over:
                lane.on_over(followed)

    # -- a request -------------------------------------------------------------------------

    def _name(self, number: int) -> tuple[list[FetchPartition], list[FollowedPartition]]:
        named: list[FetchPartition] = []
        asked: list[FollowedPartition] = []
        # Partitions beyond NAMED_MAX stay due, for the next request.
        for key in list(self._due)[:NAMED_MAX]:
            del self._due[key]
            followed = self._followed[key]
            bytes_max = self._myself.settings.partition_bytes_max
            wanted = followed.ask(number=number, bytes_max=bytes_max)
            # Nothing to ask yet, such as a log that is being truncated or is offline.
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
        bytes_max = settings.bytes_max
        if self._lane is not None:
            bytes_max = min(bytes_max, self._lane.budget.chunk_bytes)
        self._session_epoch = following_epoch(session_epoch)
        forgotten = list(self._forgotten)[:NAMED_MAX]
        for key in forgotten:
            del self._forgotten[key]
        return ReplicaFetch(
            self._myself.broker_id,
            self._broker_epoch,
            max_wait_ms=settings.max_wait_ms,
            bytes_min=1,  # the long poll ends with the first batch
            bytes_max=bytes_max,
            # With a new session the old one is named, so that the leader can free it.
            session_id=self._session_id or self._left_session_id,
            session_epoch=session_epoch,
            partitions=tuple(named),
            forgotten=tuple(TopicPartition(*key) for key in forgotten),
            held=held,
        )

    async def _carry_out(self, exchange: FetchExchange) -> None:
        """Waits until the leader is connected, then for the answer."""
        try:
            outcome: Answer | RaftmqError = await self._myself.peers.request(
                self._leader_id, exchange.request, timeout_seconds=self._answer_seconds_max
            )
        except RaftmqError as error:
            outcome = error
        self._on_outcome(exchange, outcome)

    def _begin_anew(self, error: RaftmqError) -> None:
        """Forget the conversation: answers to it are void, and reports may not have arrived."""
        # Logged once for each kind of error, not at every attempt.
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
        # In order: the second request assumes what the first one's answer brings.
        while self._sent and self._sent[0].outcome is not None:
            exchange = self._sent.popleft()
            # Disconnected, timed out or refused: the conversation is over.
            if isinstance(exchange.outcome, RaftmqError):
                raise exchange.outcome
            assert exchange.outcome is not None
            self._take_answer(exchange.number, exchange.outcome)

    def _take_answer(self, number: int, answer: Answer) -> None:
        self._settle_turn(len(answer.payload))
        told, session_id = answer.body.partitions, answer.body.session_id
        pieces = split_payload([one.length for one in told], answer.payload)
        self._on_session(session_id)
        for one, data in zip(told, pieces, strict=True):
            followed = self._followed.get(PartitionKey(one.topic_id, one.partition))
            # Not the answer to an earlier request, which named another offset or leader epoch.
            if followed and followed.token is not None and followed.asked_in <= number:
                self._open.pop(followed.key, None)
                token, followed.token = followed.token, None
                self._take(followed, token, one, data)
        # The leader has no room for our session: start over after a pause.
        if session_id == NO_SESSION:
            raise FetchSessionIdNotFound(f"broker {self._leader_id} keeps no session for us")

    def _on_session(self, session_id: int) -> None:
        # An answer proves that the leader works.
        if session_id != NO_SESSION:
            self._backoff.reset()
            self._problem = ""
        # A new session: the leader learns anew what every follower holds.
        if self._session_id != session_id:
            self._session_id = session_id
            self._reports.open(self._broker_epoch)

    def _take(
        self, followed: FollowedPartition, token: int, told: PartitionFetched, data: memoryview
    ) -> None:
        """Four cases: 1. out of range: the log must begin elsewhere; 2. any other error: back off;
        3. divergence: truncate the log; 4. records, or only a newer high watermark.
        """
        replica, start = followed.replica, told.log_start_offset
        if self._lane is not None:
            is_good = told.error == ErrorCode.NONE and told.diverging is None
            followed.goal = told.high_watermark if is_good else math.inf
        if told.error == ErrorCode.OFFSET_OUT_OF_RANGE:  # case 1
            self._start(followed, partial(replica.on_out_of_range, token, start))
        elif told.error != ErrorCode.NONE:  # case 2
            replica.on_no_answer(token)
            followed.told_held = NOWHERE
            self._rest(followed, error_for(told.error, told.message))
        elif told.diverging is not None:  # case 3
            diverged = Diverged(told.diverging.leader_epoch, told.diverging.end_offset)
            self._start(
                followed, partial(replica.on_fetched, token, FetchedFromLeader(diverged=diverged))
            )
        else:
            self._append(followed, token, FetchedFromLeader(data, told.high_watermark, start))

    def _append(self, followed: FollowedPartition, token: int, fetched: FetchedFromLeader) -> None:
        replica, log = followed.replica, followed.replica.log
        # The first records of an empty log may move its start, which waits for the disk.
        is_empty = log.log_start_offset == log.log_end_offset
        if (fetched.data and is_empty) or replica.is_unproven(fetched.log_start_offset):
            self._start(followed, partial(replica.on_fetched, token, fetched))  # may have to wait
            return
        try:
            replica.on_records(token, fetched)
        # Such as a full disk or a failed check: only this partition waits.
        except RaftmqError as error:
            self._rest(followed, error)
            return
        self._on_success(followed, goes_on=not fetched.data)
        self._adopt_start_of(followed)

    # Deleting segments waits for the disk; fetching goes on meanwhile.
    def _adopt_start_of(self, followed: FollowedPartition) -> None:
        if followed.begins_to_adopt_start():
            assert self._tasks is not None, "only while it runs"
            self._tasks.start_soon(self._adopt_start, followed)

    async def _adopt_start(self, followed: FollowedPartition) -> None:
        """Until the log starts where the leader's does, or another one leads."""
        while await followed.adopt_start():  # noqa: ASYNC110  # a disk sets no event
            # A busy disk gets the same pauses as a failing one.
            await trio.sleep(followed.pause_after(None))
        # Reports were held back while the start differed, see `held_to_tell`.
        self._reports.mark(followed)

    def _start(self, followed: FollowedPartition, change: Callable[[], Awaitable[None]]) -> None:
        """Disk work goes into a task of its own, so that other partitions are fetched meanwhile."""
        assert self._tasks is not None, "only while it runs"
        followed.told_held = NOWHERE
        self._tasks.start_soon(self._perform, followed, change)

    async def _perform(
        self, followed: FollowedPartition, change: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await change()  # a log is truncated, or begins elsewhere: disk work
        except RaftmqError as error:  # the disk failed: only this partition waits
            self._rest(followed, error)
            self._woken.set()  # the conversation sleeps until the earliest backoff it knows
        else:
            self._on_success(followed, goes_on=False)
            self._adopt_start_of(followed)

    def _on_success(self, followed: FollowedPartition, *, goes_on: bool) -> None:
        """`goes_on`: the leader continues from the same offset without being asked again."""
        followed.on_answer()
        self._reports.mark(followed)
        # Unfollowed meanwhile, or another leader epoch began.
        if self._followed.get(followed.key) is not followed:
            return
        # Without new records the session's offset still holds; with some it must be named. Whoever
        # has nothing to copy leaves a copy lane.
        if goes_on and self._lane is None and followed.ask_on():
            self._open[followed.key] = None
        else:
            self._ask_next(followed.key)

    # -- backoff ---------------------------------------------------------------------------

    def _ask_next(self, key: PartitionKey) -> None:
        self._due[key] = None
        # Inside of a step the same step will send it.
        if not self._is_stepping:
            self._woken.set()

    def _rest(self, followed: FollowedPartition, error: RaftmqError | None = None) -> None:
        followed.report(error, self._myself.peers)
        self._backing_off.add(followed, until=trio.current_time() + followed.pause_after(error))

    def _wake_rested(self) -> None:
        for followed in self._backing_off.take_rested(trio.current_time()):
            # Still followed in that epoch, and not asked again in between.
            if self._followed.get(followed.key) is followed and followed.token is None:
                self._due[followed.key] = None
