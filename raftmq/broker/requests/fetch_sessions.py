"""Fetch sessions (KIP-227) and delayed fetches: what readers fetch, remembered between requests.

Owns the sessions and who may use them. A session knows which of its partitions may have new data,
as replicas notify it (`on_news`): a fetch checks these and none of the others. A new high watermark
alone is no reason to answer: it waits a moment for records to travel with. Reads no log.
(Kafka: FetchSessionCache; the long polls in the second part: DelayedOperationPurgatory)

Invariants: a session watches each replica once, and none after its end. After an answer with
records, a divergence or an error a partition rests until the reader names it again.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec
import trio

from raftmq.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raftmq.partition.replica_environment import PartitionKey
from raftmq.wire.bodies import ABSENT, ID_MAX
from raftmq.wire.messages.fetch import NEW_SESSION, NO_SESSION, WITHOUT_SESSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable
    from random import Random

    from raftmq.broker.requests.fetched_records import Looked
    from raftmq.errors import RaftmqError
    from raftmq.partition.leader import Diverged
    from raftmq.partition.replica import Replica
    from raftmq.wire.bodies import TopicPartition
    from raftmq.wire.messages.fetch import FetchPartition


SESSIONS_MAX = 1000  # each remembers its partitions; beyond it requests name them every time
IDLE_SECONDS = 120.0  # two of the longest long polls
ID_BITS = 53  # not to be guessed, nor given out again by a later process


class PartitionView(msgspec.Struct, frozen=True):
    """What a reader may see of a partition now; records up to `end_offset`, unless it diverged.
    `last_stable_offset` is ABSENT unless the reader asked for READ_COMMITTED.
    """

    end_offset: int
    high_watermark: int
    log_start_offset: int
    diverged: Diverged | None = None
    last_stable_offset: int = ABSENT

    @property
    def hides_aborted(self) -> bool:
        """The reader drops what was aborted, and has to be told what that is."""
        return self.last_stable_offset != ABSENT


class SessionPartition:
    """Attributes:
    wanted: the reader's last words about the partition.
    replica: the one that is watched.
    told: what the last answer showed; None before the first one.
    rests: no answer before the reader names it again.
    diverged, refusal: what the leader's rules said to a follower's fetch; None for consumers.
    keeps_up: the reader is a follower in sync; it may be answered from memory.
    looked: of a reader with a filter: how far it was looked for since it has named the partition.
    """

    __slots__ = (
        "diverged", "keeps_up", "key", "looked", "refusal", "replica", "rests", "told", "wanted",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, wanted: FetchPartition) -> None:
        self.key, self.wanted = key, wanted
        self.replica: Replica | None = None
        self.told: PartitionView | None = None
        self.rests = False
        self.keeps_up = False
        self.diverged: Diverged | None = None
        self.refusal: RaftmqError | None = None
        self.looked: Looked | None = None

    def has_new_bounds(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the reader has not been told these; always so before the first answer."""
        told = self.told
        return (
            told is None
            or told.high_watermark != high_watermark
            or told.log_start_offset != log_start_offset
        )


class FetchSession:
    """A `Watcher` of replicas.

    Attributes:
        session_id: NO_SESSION for one that ends with its answer.
        is_follower: it reads what is not committed yet, and learns each new high watermark.
        partitions: all of them.
        news: partitions that may have new data, in the order in which they are read.
        bounds: partitions of followers with nothing but new bounds, which can wait a moment.
        turn: the request being answered; at most one.
        alarms: of `FetchPurgatory`, the earliest last.
        is_closed: it has ended, and watches nothing any more.
    """

    def __init__(self, session_id: int, owner: Hashable, *, is_follower: bool, now: float) -> None:
        self.session_id, self.owner, self.is_follower = session_id, owner, is_follower
        self.next_epoch = 1
        self.used_at = now
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.news: dict[PartitionKey, SessionPartition] = {}
        self.bounds: dict[PartitionKey, SessionPartition] = {}
        self.turn: WaitingFetch | None = None
        self.alarms: list[float] = []
        self.is_closed = False

    def begin(self, turn: WaitingFetch) -> None:
        """A new request: the reader has given up the one before."""
        before, self.turn = self.turn, turn
        if before is not None:  # its answer could only be late
            before.on_superseded()

    def end(self, turn: WaitingFetch, now: float) -> None:
        if self.turn is turn:  # not superseded by a newer request
            # The idle time begins with the answer, not with the request.
            self.turn, self.used_at = None, now
            if self.session_id == NO_SESSION:  # a session for one answer
                self.close()

    def name(self, wanted: FetchPartition) -> SessionPartition:
        """The reader names a partition and its next offset; it is not in `news` any more."""
        key = PartitionKey(wanted.topic_id, wanted.partition)
        partition = self.partitions.get(key)
        if partition is None:  # new in this session
            partition = self.partitions[key] = SessionPartition(key, wanted)
        # In another leader epoch bounds count from the beginning.
        if partition.wanted.leader_epoch != wanted.leader_epoch:
            partition.told = None
        partition.wanted, partition.rests = wanted, False
        partition.diverged = partition.refusal = None
        partition.keeps_up, partition.looked = False, None
        self.news.pop(key, None)
        return partition

    def check(self, partition: SessionPartition) -> None:
        """Have it read for this request: after all others, so that a busy partition does not
        starve them."""
        self.news[partition.key] = partition

    def check_level(
        self, partition: SessionPartition, *, high_watermark: int, log_start_offset: int
    ) -> None:
        """The same for one whose reader is known to have all records: new bounds at most."""
        if partition.told is None:  # the first answer does not wait
            self.check(partition)
        elif partition.has_new_bounds(high_watermark, log_start_offset):
            self.bounds[partition.key] = partition
        elif self.bounds:  # it has been told since
            self.bounds.pop(partition.key, None)

    def take_bounds(self) -> None:
        """What could wait has waited, or something else is about to be answered."""
        self.news |= self.bounds
        self.bounds.clear()

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self.drop(PartitionKey(key.topic_id, key.partition))

    def drop(self, key: PartitionKey) -> None:
        self.news.pop(key, None)
        self.bounds.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is not None:  # it may have been forgotten twice
            self.watch(partition, None)

    def watch(self, partition: SessionPartition, replica: Replica | None) -> None:
        """Watch that replica from now on, or none."""
        if replica is not None and replica.is_closed:
            replica = None  # the session would keep its files open
        if partition.replica is replica:  # watched already
            return
        if partition.replica is not None:
            partition.replica.watchers.pop(self, None)
        partition.replica = replica
        if replica is not None:  # the session is notified of new data from now on
            replica.watchers[self] = None

    def replica_of(
        self, partition: SessionPartition, get: Callable[[bytes, int], Replica]
    ) -> Replica:
        """It is watched from now on. `get` is `Replicas.get`, and what it raises is raised."""
        replica = partition.replica
        if replica is None or replica.is_closed:  # not watched yet, or let go since
            self.watch(partition, None)  # it may not be on this broker any more
            replica = get(*partition.key)
            self.watch(partition, replica)
        return replica

    def on_append(self, key: PartitionKey) -> None:
        if self.is_follower:  # consumers see it when the high watermark rises
            self.on_news(key)

    def on_high_watermark(self, key: PartitionKey) -> None:
        if not self.is_follower:
            self.on_news(key)
            return
        partition = self._awake(key)
        if partition is None or key in self.news:
            return
        is_first, self.bounds[key] = not self.bounds, partition
        if is_first and self.turn is not None:  # else it lingers already
            self.turn.linger()

    def on_news(self, key: PartitionKey) -> None:
        partition = self._awake(key)
        if partition is not None:
            self.news[key] = partition
            # Without a request the next one finds the partition in `news`.
            if self.turn is not None:
                self.turn.wake()

    def _awake(self, key: PartitionKey) -> SessionPartition | None:
        """The partition, if the request that waits, or the next one, has to check it."""
        partition = self.partitions.get(key)
        # Forgotten by the reader; the replica has not noticed yet.
        if partition is None:
            return None
        if partition.replica is not None and partition.replica.is_closed:
            self.watch(partition, None)
        # Resting: the reader has an answer about it that it has not replied to.
        return None if partition.rests else partition

    def close(self) -> None:
        self.is_closed = True
        for key in list(self.partitions):
            self.drop(key)
        before, self.turn = self.turn, None
        if before is not None:  # answered empty, so that its long poll ends
            before.on_superseded()


class FetchSessions:
    """Sessions by id. `random` draws the ids."""

    def __init__(
        self, random: Random, *, are_followers: bool, sessions_max: int = SESSIONS_MAX
    ) -> None:
        self._random, self._are_followers, self._sessions_max = random, are_followers, sessions_max
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def enter(
        self, session_id: int, session_epoch: int, owner: Hashable, now: float
    ) -> FetchSession:
        """The session of a request; one that ends with its answer if that was asked for, or if
        there are too many.

        Args:
            owner: must be the same as when the session began.

        Raises:
            FetchSessionIdNotFound: evicted, or another owner's: begin a new one.
            InvalidFetchSessionEpoch: a request was lost or came twice: begin a new one.
        """
        self._evict(now)
        # Two cases: the next request of a session, or the end of one and perhaps a new one.
        if session_epoch not in (NEW_SESSION, WITHOUT_SESSION):
            return self._next(session_id, session_epoch, owner, now)
        self._leave(session_id, owner)
        # Requests without a session name all their partitions.
        if session_epoch == WITHOUT_SESSION or len(self._sessions) >= self._sessions_max:
            return self._begin(NO_SESSION, owner, now)
        session = self._begin(self._new_id(), owner, now)
        self._sessions[session.session_id] = session
        return session

    def _begin(self, session_id: int, owner: Hashable, now: float) -> FetchSession:
        return FetchSession(session_id, owner, is_follower=self._are_followers, now=now)

    def _next(
        self, session_id: int, session_epoch: int, owner: Hashable, now: float
    ) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:  # evicted, or a guess
            raise FetchSessionIdNotFound(f"fetch session {session_id} is not known here: begin one")
        # A lost request may have named partitions that this session does not know.
        if session_epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session_id}: epoch {session_epoch}, expected "
                f"{session.next_epoch}: begin a new one"
            )
        session.next_epoch = following_epoch(session_epoch)
        session.used_at = now
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def _leave(self, session_id: int, owner: Hashable) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:  # only the owner may end it
            del self._sessions[session_id]
            session.close()

    def _evict(self, now: float) -> None:
        """Close idle sessions: their readers are gone, and replicas would notify them for ever."""
        idle = []
        for session in self._sessions.values():
            # In order of use, so the first one that is alive ends the search.
            if session.turn is not None or session.used_at > now - IDLE_SECONDS:
                break
            idle.append(session)
        for session in idle:
            del self._sessions[session.session_id]
            session.close()

    def _new_id(self) -> int:
        while True:
            session_id = self._random.getrandbits(ID_BITS)
            # 0 stands for no session.
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def following_epoch(session_epoch: int) -> int:
    """The largest epoch is followed by 1, as 0 begins a session."""
    return 1 if session_epoch == ID_MAX else session_epoch + 1


# -- Waiting fetches ------------------------------------------------------------------------------
# Delayed fetches (long polls): checked again when there is new data, or at their deadlines.
#
# Owns the waking, for all of them together: no fetch has a task or a timer of its own, except for
# a read from disk. New data from a batch of requests wakes each fetch once, at its end.
# (Kafka: DelayedOperationPurgatory)
#
# An alarm belongs to a session and outlives the request that set it: the next one has a later
# deadline, mostly, and sets its own when that alarm rings. So a session under load sets one now and
# then, and not one for each request.


STALE_ALARMS_MIN = 100  # alarms of closed sessions; fewer are not worth a pass over all


class WaitingFetch(Protocol):
    """`delayed_fetch.DelayedFetch`, which imports this module.

    Attributes:
        is_ended: it has been answered.
        deadline: when it is answered at the latest.
    """

    is_ended: bool
    deadline: float

    def wake(self) -> None:
        """A partition of its session may have new data."""

    def linger(self) -> None:
        """A partition of its session has a new high watermark, and no new data."""

    def on_superseded(self) -> None:
        """The reader has sent the next request of the session."""

    def look(self, now: float) -> None:
        """There may be something to answer now. Must not block."""

    def fail(self, error: Exception) -> None:
        """`look` raised this."""


class FetchPurgatory:
    """Nothing is woken before `run`."""

    def __init__(self) -> None:
        self._woken: dict[WaitingFetch, None] = {}
        self._alarms: list[tuple[float, int, FetchSession]] = []  # a heap
        self._numbers = count()
        self._is_batch = False
        # Alarms of open sessions at the last pass; twice as many start the next one.
        self._alive_max = STALE_ALARMS_MIN
        self._asleep = trio.lowlevel.ParkingLot()
        self._alarm = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def wake(self, fetch: WaitingFetch) -> None:
        """Have the fetch check soon."""
        # During a batch of requests the task would run too early; `on_batch` checks at the end.
        if not self._woken and not self._is_batch:
            self._asleep.unpark_all()
        self._woken[fetch] = None

    def set_alarm(self, session: FetchSession, time: float) -> None:
        """Have the session's request checked at that time at the latest."""
        # One that rings earlier sets the next one.
        if session.alarms and session.alarms[-1] <= time:
            return
        session.alarms.append(time)
        number = next(self._numbers)
        heappush(self._alarms, (time, number, session))
        # Amortised: a pass over all follows only when they have doubled.
        if len(self._alarms) > 2 * self._alive_max:
            self._forget_closed()
        if self._alarms[0][1] == number:  # the earliest: nothing else wakes `_watch_clock`
            self._alarm.deadline = time

    def _forget_closed(self) -> None:
        """Drop alarms of closed sessions: a reader without a session closes one each time."""
        self._alarms = [alarm for alarm in self._alarms if not alarm[2].is_closed]
        heapify(self._alarms)
        self._alive_max = max(STALE_ALARMS_MIN, len(self._alarms))

    def on_batch(self, begins: bool) -> None:  # positional, as the RPC server calls it
        """At the end of a batch of requests, answer the fetches that it woke: many produces, one
        answer to each follower (decision 0016)."""
        self._is_batch = begins
        if self._woken and not begins:  # the batch of requests is handled
            self.look()

    def look(self) -> None:
        """Check all woken fetches now."""
        # Swapped first: checking may wake others, which have their turn next.
        woken, self._woken = self._woken, {}
        now = trio.current_time()
        for fetch in woken:
            if not fetch.is_ended:  # answered since it was woken
                try:
                    fetch.look(now)
                except Exception as error:  # this one alone; the server answers or logs it
                    fetch.fail(error)

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work that waits for the disk."""
        assert self._nursery is not None, "only while it runs"
        self._nursery.start_soon(work)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._watch_clock)
                task_status.started()
                await self._watch_news()  # until cancelled; the clock runs beside it
        finally:
            self._nursery = None

    async def _watch_news(self) -> NoReturn:
        while True:
            if not self._woken:
                # Until `wake` is called.
                await self._asleep.park()
            self.look()

    async def _watch_clock(self) -> NoReturn:
        while True:
            # Until the earliest deadline; `set_alarm` may move it forward.
            with trio.CancelScope() as self._alarm:
                self._alarm.deadline = self._alarms[0][0] if self._alarms else math.inf
                await trio.sleep_forever()  # until the earliest deadline
            self._ring(trio.current_time())

    def _ring(self, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            session = heappop(self._alarms)[2]
            # A session's alarms are set from late to early, and ring from early to late.
            session.alarms.pop()
            turn = session.turn
            if turn is None:  # answered; the next request sets its own
                continue
            if turn.deadline <= now:
                self.wake(turn)
            else:
                self.set_alarm(session, turn.deadline)
