"""What readers fetch, remembered from one request to the next.

Owns the sessions and who may use them. A session knows of which partitions there may be news, as
replicas tell it (`on_news`): a fetch looks at these and never at all the others. Reads nothing.

Invariants: a session watches each replica once, and none after its end. A partition rests from the
answer that brings records, a divergence or an error until the reader names it again.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

import trio

from raftmq.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from raftmq.partition.replica_environment import PartitionKey
from raftmq.wire.bodies import ID_MAX
from raftmq.wire.messages.fetch import NEW_SESSION, NO_SESSION, WITHOUT_SESSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable
    from random import Random

    from raftmq.errors import RaftmqError
    from raftmq.partition.leader import Diverged
    from raftmq.partition.replica import Replica
    from raftmq.wire.bodies import TopicPartition
    from raftmq.wire.messages.fetch import FetchPartition


SESSIONS_MAX = 1000
IDLE_SECONDS = 120.0
ID_BITS = 53  # nobody guesses the session of another, nor meets one of an earlier process


class AnsweredBounds(NamedTuple):
    """What a reader was told of a partition last."""

    high_watermark: int
    log_start_offset: int


class SessionPartition:
    """Attributes:
    wanted: what the reader asked for when it named the partition last.
    replica: which is watched.
    told: None before the first answer.
    rests: nothing is told before the reader names it again.
    verdict: what a leader found when its follower asked; consumers need none.
    """

    __slots__ = ("replica", "rests", "told", "verdict", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.replica: Replica | None = None
        self.told: AnsweredBounds | None = None
        self.rests = False
        self.verdict: Diverged | RaftmqError | None = None

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.wanted.topic_id, self.wanted.partition)


class Turn(Protocol):
    """The request of a session that is being answered."""

    def on_news(self, partition: SessionPartition) -> None: ...
    def on_superseded(self) -> None: ...


class FetchSession:
    """A `Watcher` of replicas.

    Attributes:
        session_id: NO_SESSION for one that ends with its answer.
        partitions: all of them.
        news: those that have to be looked at, in this order.
        turn: at most one request is being answered.
    """

    def __init__(self, session_id: int, owner: Hashable) -> None:
        self.session_id, self.owner = session_id, owner
        self.next_epoch = 1
        self.used_at = trio.current_time()
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.news: dict[PartitionKey, None] = {}
        self.turn: Turn | None = None

    def begin(self, turn: Turn) -> None:
        """The reader asks again: it has given up on what it asked before."""
        before, self.turn = self.turn, turn
        if before is not None:
            before.on_superseded()

    def end(self, turn: Turn) -> None:
        if self.turn is turn:
            self.turn, self.used_at = None, trio.current_time()
            if self.session_id == NO_SESSION:
                self.close()

    def name(self, wanted: FetchPartition) -> SessionPartition:
        """The reader wants it, from there on. Whoever is named last has its turn last."""
        key = PartitionKey(wanted.topic_id, wanted.partition)
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = SessionPartition(wanted)
        if partition.wanted.leader_epoch != wanted.leader_epoch:
            partition.told = None  # the part that waits for an answer is another
        partition.wanted, partition.rests, partition.verdict = wanted, False, None
        self.news.pop(key, None)
        self.news[key] = None
        return partition

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self.drop(PartitionKey(key.topic_id, key.partition))

    def drop(self, key: PartitionKey) -> None:
        self.news.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.watch(partition, None)

    def watch(self, partition: SessionPartition, replica: Replica | None) -> None:
        """From now on that one, or none."""
        if replica is not None and replica.is_closed:
            replica = None  # it would live as long as the session
        if partition.replica is replica:
            return
        if partition.replica is not None:
            partition.replica.watchers.pop(self, None)
        partition.replica = replica
        if replica is not None:
            replica.watchers[self] = None

    def on_news(self, key: PartitionKey) -> None:
        partition = self.partitions.get(key)
        if partition is None:
            return
        self.watch(partition, partition.replica)
        if partition.rests:
            return
        self.news[key] = None
        if self.turn is not None:
            self.turn.on_news(partition)

    def close(self) -> None:
        for key in list(self.partitions):
            self.drop(key)
        before, self.turn = self.turn, None
        if before is not None:
            before.on_superseded()


class FetchSessions:
    """`random` draws ids."""

    def __init__(
        self,
        random: Random,
        *,
        sessions_max: int = SESSIONS_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._random, self._sessions_max, self._idle_seconds = random, sessions_max, idle_seconds
        self._sessions: dict[int, FetchSession] = {}  # whoever was used longest ago comes first

    def __len__(self) -> int:
        return len(self._sessions)

    def enter(self, session_id: int, session_epoch: int, owner: Hashable) -> FetchSession:
        """The session for a request; a new one that is not kept if that was asked for, or if there
        are too many.

        Args:
            owner: whoever asks must be the one who began it.

        Raises:
            FetchSessionIdNotFound: it was evicted, or is somebody else's: begin a new one.
            InvalidFetchSessionEpoch: a request was lost, or came twice: begin a new one.
        """
        self._evict()
        if session_epoch not in (NEW_SESSION, WITHOUT_SESSION):
            return self._next(session_id, session_epoch, owner)
        self._leave(session_id, owner)
        if session_epoch == WITHOUT_SESSION or len(self._sessions) >= self._sessions_max:
            return FetchSession(NO_SESSION, owner)
        session = FetchSession(self._new_id(), owner)
        self._sessions[session.session_id] = session
        return session

    def _next(self, session_id: int, session_epoch: int, owner: Hashable) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise FetchSessionIdNotFound(f"fetch session {session_id} is not known here: begin one")
        if session_epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session_id}: epoch {session_epoch}, expected "
                f"{session.next_epoch}: begin a new one"
            )
        session.next_epoch = following_epoch(session_epoch)
        session.used_at = trio.current_time()
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def _leave(self, session_id: int, owner: Hashable) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            del self._sessions[session_id]
            session.close()

    def _evict(self) -> None:
        """Whoever is gone would be told of news for ever."""
        oldest = trio.current_time() - self._idle_seconds
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if session.turn is not None or session.used_at > oldest:
                return
            del self._sessions[session.session_id]
            session.close()

    def _new_id(self) -> int:
        while True:
            session_id = self._random.getrandbits(ID_BITS)
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def following_epoch(session_epoch: int) -> int:
    """After the largest comes 1: 0 begins a session."""
    return 1 if session_epoch == ID_MAX else session_epoch + 1


# -- Waiting fetches ------------------------------------------------------------------------------
# Fetches that wait for news: looked at again once there is some, or when their time is over.
#
# Owns the waking, for all of them together: no fetch has a task or a timer of its own, but for one
# that has to wait for a disk. Whatever news comes while other tasks have their turn is told at
# once.


STALE_ALARMS_MIN = 100  # not worth a look at all of them


class WaitingFetch(Protocol):
    """Attributes:
    is_ended: it has been answered.
    """

    is_ended: bool

    def look(self) -> None:
        """There may be something to tell now. Must not wait."""

    def fail(self, error: Exception) -> None:
        """This came of looking."""


class WaitingFetches:
    """Nothing is woken before `run`."""

    def __init__(self) -> None:
        self._woken: dict[WaitingFetch, None] = {}
        self._alarms: list[tuple[float, int, WaitingFetch]] = []  # a heap
        self._numbers = count()
        self._is_batch = False
        self._alive_max = STALE_ALARMS_MIN
        self._asleep = trio.lowlevel.ParkingLot()
        self._alarm = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def wake(self, fetch: WaitingFetch) -> None:
        """Have it look soon."""
        if not self._woken and not self._is_batch:
            self._asleep.unpark_all()
        self._woken[fetch] = None

    def wake_at(self, fetch: WaitingFetch, time: float) -> None:
        """Have it look then, at the latest."""
        heappush(self._alarms, (time, next(self._numbers), fetch))
        if len(self._alarms) > 2 * self._alive_max:
            self._forget_ended()
        if time < self._alarm.deadline:
            self._alarm.deadline = time

    def _forget_ended(self) -> None:
        """Most are answered long before their time is over."""
        self._alarms = [alarm for alarm in self._alarms if not alarm[2].is_ended]
        heapify(self._alarms)
        self._alive_max = max(STALE_ALARMS_MIN, len(self._alarms))

    def on_batch(self, begins: bool) -> None:  # as the server calls it
        """Whatever news a batch of requests brings is told at its end."""
        self._is_batch = begins
        if not begins:
            self.look()

    def look(self) -> None:
        """Now, wherever there is news: nothing more is coming in a moment."""
        woken, self._woken = self._woken, {}
        for fetch in woken:
            if not fetch.is_ended:
                _look(fetch)

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """What has to wait for a disk."""
        assert self._nursery is not None, "only while it runs"
        self._nursery.start_soon(work)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._watch_clock)
                task_status.started()
                await self._watch_news()
        finally:
            self._nursery = None

    async def _watch_news(self) -> NoReturn:
        while True:
            if not self._woken:
                await self._asleep.park()
            self.look()

    async def _watch_clock(self) -> NoReturn:
        while True:
            with trio.CancelScope() as self._alarm:
                self._alarm.deadline = self._alarms[0][0] if self._alarms else math.inf
                await trio.sleep_forever()
            now = trio.current_time()
            while self._alarms and (self._alarms[0][0] <= now or self._alarms[0][2].is_ended):
                fetch = heappop(self._alarms)[2]
                if not fetch.is_ended:
                    self.wake(fetch)


def _look(fetch: WaitingFetch) -> None:
    try:
        fetch.look()
    except Exception as error:  # of this fetch alone; whoever answers it knows what to make of it
        fetch.fail(error)
