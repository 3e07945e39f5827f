"""One partition on this broker: its log, and its part in the partition.

Owns the change of parts, and the way from what happens (an append, a fetch, a flush) through the
rules (`leader`, `follower`) to what follows from it: a higher high watermark, producers that are
answered, fetches that wake up, a proposal for the in-sync set. Bytes go straight to the log.

Invariants:
  1. It leads or follows or neither, never two of them; each part is of one leader epoch.
  2. While the log is cut nothing else happens to it: parts change before, or after.
  3. Whoever waits for an acknowledgement is told when the part is laid down, and then nobody knows
     what becomes of the record.
  4. It leads in an epoch only with the log object with which it began that epoch: what is opened
     anew may lack what was appended, and followers may have it.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaftmqError,
    StorageError,
    UnknownLeaderEpoch,
)
from raftmq.partition.acknowledgements import Acknowledgements, reached
from raftmq.partition.follower import Follower
from raftmq.partition.leader import (
    NO_LEADER,
    Assignment,
    Diverged,
    HighWatermarkRose,
    Leader,
    ProposeIsr,
    StartOver,
    Truncate,
    before_leading,
)
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.bodies import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.acknowledgements import Waiter
    from raftmq.partition.leader import FetchFromLeader, LeaderEffect
    from raftmq.partition.replica_environment import (
        FetchedFromLeader,
        PartitionKey,
        ReplicaEnvironment,
        Watcher,
    )
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import Appended, Fenced, PartitionLog
    from raftmq.wire.batch.header import Buffer

ANY_EPOCH = -1
LAG_SECONDS_MAX = 10.0

logger = logging.getLogger("raftmq.partition")


class Replica:
    """Attributes:
    assignment: the newest that was taken up, if any.
    leader, follower: the part, if it has one.
    high_watermark: everything before it is committed.
    leader_start_offset: where the leader's log starts, as a follower heard last.
    watchers: told of news until they are taken out again.
    """

    def __init__(
        self,
        key: PartitionKey,
        log: PartitionLog,
        directory: LogDirectory,
        around: ReplicaEnvironment,
        *,
        high_watermark: int,
        lag_seconds_max: float = LAG_SECONDS_MAX,
    ) -> None:
        self.key, self.log, self._directory, self._around = key, log, directory, around
        self.assignment: Assignment | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.leader_start_offset = 0
        self.watchers: dict[Watcher, None] = {}
        self._lag_seconds_max = lag_seconds_max
        self._acks = Acknowledgements(log.name)
        self._cutting = trio.Lock()
        self._tokens = count(1)
        self._is_cutting = False
        self._is_closed = False
        self._spent_epoch = -1  # led with a log that was replaced since
        self._watch(log)

    # -- parts -----------------------------------------------------------------------------

    async def take_up(self, assignment: Assignment) -> None:
        """Lead, follow or wait, as `assignment` says; an older one than known changes nothing."""
        async with self._cutting:
            if self.assignment and assignment.partition_epoch < self.assignment.partition_epoch:
                return
            self.assignment = assignment
            try:
                await self._change_part(assignment)
            finally:
                self._tell_watchers()

    async def _change_part(self, assignment: Assignment) -> None:
        if assignment.leader == self._around.broker_id:
            await self._lead(assignment)
        elif assignment.leader == NO_LEADER:
            self._lay_down()
        else:
            self._follow(assignment)

    async def _lead(self, assignment: Assignment) -> None:
        if self.leader and self.leader.leader_epoch == assignment.leader_epoch:
            now = trio.current_time()
            self._perform(self.leader.on_assignment(assignment, now=now))
            return
        self._lay_down()
        if not self.log.is_sound or assignment.leader_epoch <= self._spent_epoch:
            return  # once it is repaired, in an epoch that begins then
        await self._begin_at(assignment.log_start_offset)
        self.log.assign_epoch(assignment.leader_epoch)
        self.leader = Leader(
            self._around.broker_id,
            assignment,
            log_end_offset=self.log.log_end_offset,
            held_end_offset=self.log.held_end_offset,
            high_watermark=self.high_watermark,
            lag_seconds_max=self._lag_seconds_max,
            epoch_of=self._around.epoch_of,
            now=trio.current_time(),
        )
        self._perform(self.leader.on_held(self.log.held_end_offset))
        logger.info("leads: log=%s epoch=%d", self.log.name, assignment.leader_epoch)

    async def _begin_at(self, start_offset: int) -> None:
        """The quorum lets the partition start there (L6). What is before was committed, and this
        replica may be the last to hear of that, too.

        Raises:
            StorageError: the disk refused; the log is offline, and leads once it is repaired.
        """
        log = self.log
        needed = before_leading(
            start_offset, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset
        )
        try:
            if isinstance(needed, StartOver):
                logger.error("nothing is left: log=%s starts_at=%d", log.name, start_offset)
                await self._directory.start_over(log, start_offset)
            elif needed is not None:
                await self._directory.delete_records(log, start_offset)
        except RaftmqError as error:
            raise log.go_offline(error) from error
        self.high_watermark = max(self.high_watermark, log.log_start_offset)

    async def keep_start(self) -> None:
        """As a leader: delete what the quorum has let go meanwhile. Raises RaftmqError: not yet."""
        if self.leader is None or self.assignment is None or not self.log.is_sound:
            return
        start = self.assignment.log_start_offset
        if self.log.log_start_offset < start:
            await self._directory.delete_records(self.log, start)

    def _follow(self, assignment: Assignment) -> None:
        if self.follower and self.follower.leader_epoch == assignment.leader_epoch:
            return
        self._lay_down()
        self.leader_start_offset = 0
        self.follower = Follower(
            assignment.leader,
            assignment.leader_epoch,
            high_watermark=self.high_watermark,
            answer_seconds_max=float("inf"),  # the connection says when no answer will come
            tokens=self._tokens,
        )

    def _lay_down(self) -> None:
        if self.leader is not None:
            error = NotLeaderOrFollower(f"{self.log.name} is not led here any more")
            self._acks.fail(error)
        self.leader = self.follower = None

    async def close(self) -> None:
        """Lay down the part, after what is under way."""
        async with self._cutting:
            self._lay_down()
            self._is_closed = True
            # Or the two keep each other, and the log its files, until a collection finds them.
            self._unwatch(self.log)
        self._tell_watchers()

    # -- a log that is repaired ------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Its partition is not hosted here any more: whoever keeps it keeps a log for nothing."""
        return self._is_closed

    @property
    def needs_epoch(self) -> bool:
        """Named as leader, in an epoch in which it cannot lead any more."""
        known = self.assignment
        is_named = known is not None and known.leader == self._around.broker_id
        return is_named and known is not None and known.leader_epoch <= self._spent_epoch

    async def replace_log(self, log: PartitionLog) -> None:
        """It was opened anew: go on with that, in whatever part there is now."""
        async with self._cutting:
            if self.leader is not None:
                self._spent_epoch = self.leader.leader_epoch
            if self._is_closed:
                self.log = log  # to be deleted
                return
            self._lay_down()
            log.config = self.log.config
            self._unwatch(self.log)
            self._watch(log)
            self.log = log
            end = min(self.high_watermark, log.log_end_offset)
            self.high_watermark = max(log.log_start_offset, end)
            await self._resume()

    async def cut_damage(self, *, leads: bool = False, start_over: bool = False) -> None:
        """Forget everything from the damage or rot on, or everything: the leader has it. Who leads
        forgets nothing before the damage: nobody has more.

        Raises:
            StorageError: the disk refused; the log is offline.
        """
        self._is_cutting = True
        try:
            async with self._cutting:
                if start_over and not self.log.is_whole:
                    await self._directory.start_over(self.log, self.log.log_start_offset)
                elif not self.log.is_whole:  # else all was put right
                    end = self.log.log_end_offset if leads else self.log.whole_end_offset
                    await self._directory.truncate(self.log, max(end, self.log.log_start_offset))
                self._lay_down()
                self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
                await self._resume()
        finally:
            self._is_cutting = False

    async def _resume(self) -> None:
        try:
            if self.assignment is not None:
                await self._change_part(self.assignment)
        finally:
            self._tell_watchers()

    # -- leading ---------------------------------------------------------------------------

    def leading(self, leader_epoch: int = ANY_EPOCH) -> Leader:
        """The part of the leader, in that epoch.

        Raises:
            NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch (the caller is ahead of us).
        """
        known = self.assignment.leader_epoch if self.assignment else -1
        if leader_epoch > known:
            raise UnknownLeaderEpoch(
                f"{self.log.name}: epoch {leader_epoch}, here {known} is known"
            )
        if leader_epoch != ANY_EPOCH and leader_epoch < known:
            raise FencedLeaderEpoch(f"{self.log.name}: epoch {leader_epoch} ended, now is {known}")
        if self.leader is None:
            raise NotLeaderOrFollower(
                f"{self.log.name} is not led by broker {self._around.broker_id}"
            )
        return self.leader

    def append(self, data: Buffer, *, acks: int, leader_epoch: int = ANY_EPOCH) -> Appended:
        """Append a producer's batches, but for those that the log has already; `on_acks` tells when
        all of them are held.

        Raises:
            NotEnoughReplicas, InvalidRequiredAcks: `acks` cannot be had; nothing was appended.
            RaftmqError: as `leading` and `PartitionLog.append`.
        """
        leader = self.leading(leader_epoch)
        self._acks.check(leader, acks)
        appended = self.log.append(
            data,
            leader_epoch=leader.leader_epoch,
            now_ms=self._directory.now_ms(),
            now=trio.current_time(),
        )
        self._on_appended(leader)
        return appended

    def fence(
        self,
        producer_id: int,
        generation: int,
        *,
        partition_count: int = 0,
        leader_epoch: int = ANY_EPOCH,
    ) -> Fenced:
        """Append that whoever has written under this producer name before writes no more; `on_acks`
        tells when that is committed.

        Raises:
            NotEnoughReplicas: nothing was appended.
            RaftmqError: as `leading` and `PartitionLog.append_fence`.
        """
        leader = self.leading(leader_epoch)
        self._acks.check(leader, ACKS_ALL)
        fenced = self.log.append_fence(
            producer_id,
            generation,
            partition_count=partition_count,
            leader_epoch=leader.leader_epoch,
            now_ms=self._directory.now_ms(),
            now=trio.current_time(),
        )
        self._on_appended(leader)
        return fenced

    def _on_appended(self, leader: Leader) -> None:
        self._perform(leader.on_append(self.log.log_end_offset))
        self._on_held()
        self._tell_watchers()

    def on_acks(
        self,
        end_offset: int,
        on_end: Callable[[RaftmqError | None], None],
        *,
        acks: int,
        leader_epoch: int,
        deadline: float,
    ) -> Waiter | None:
        """Have `on_end` called when everything before `end_offset`, appended in that epoch, is held
        as `acks` demands; None if it was called at once. It must not wait, and may be called with

            NotEnoughReplicasAfterAppend: held, but by fewer than min.insync.replicas.
            NotLeaderOrFollower, StorageError, RequestTimedOut: the record is in the log, and may
                stay or not.
        """
        leader = self.leader
        if leader is None or leader.leader_epoch != leader_epoch:
            on_end(NotLeaderOrFollower(f"epoch {leader_epoch} of {self.log.name} is over"))
            return None
        if self.log.offline_reason:
            on_end(StorageError(f"{self.log.name} is offline: {self.log.offline_reason}"))
            return None
        if end_offset <= reached(leader, acks):
            on_end(None)
            return None
        return self._acks.add(leader, end_offset, acks, on_end, deadline=deadline)

    def has_acks(self, end_offset: int, *, acks: int, leader_epoch: int) -> bool:
        """Whether there is nothing to wait for. False as well where that epoch is over: whatever
        stands there now may be another record."""
        leader = self.leader
        if leader is None or leader.leader_epoch != leader_epoch or self.log.offline_reason:
            return False
        return end_offset <= reached(leader, acks)

    def on_replica_fetch(
        self, follower: int, broker_epoch: int, fetch: FetchFromLeader, *, leader_epoch: int
    ) -> Diverged | None:
        """A follower asks; None: it may have what comes after its log.

        Raises:
            NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch: see `leading`.
            OffsetOutOfRange: that has been deleted here.
        """
        leader = self._leading_for(follower, leader_epoch)
        if fetch.fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self.log.name} starts at {self.log.log_start_offset}")
        diverged = self.divergence(leader, fetch.last_fetched_epoch, fetch.fetch_offset)
        if diverged:
            self._perform(leader.on_diverging_fetch(follower))
            return diverged
        now = trio.current_time()
        self._perform(leader.on_fetch(follower, broker_epoch, fetch.fetch_offset, now=now))
        return None

    def divergence(
        self, leader: Leader, last_fetched_epoch: int, fetch_offset: int
    ) -> Diverged | None:
        """Where the log of a reader parts from this one, if it does.

        Raises:
            UnknownLeaderEpoch: it has read what a later leader wrote.
        """
        if last_fetched_epoch > leader.leader_epoch:
            raise UnknownLeaderEpoch(
                f"{self.log.name}: records of epoch {last_fetched_epoch} were read elsewhere, "
                f"here {leader.leader_epoch} is the latest"
            )
        return leader.divergence(last_fetched_epoch, fetch_offset, self.log.epochs)

    def on_replica_progress(
        self, follower: int, broker_epoch: int, held_offset: int, *, leader_epoch: int
    ) -> None:
        """It holds everything before `held_offset`; errors as in `on_replica_fetch`."""
        leader = self._leading_for(follower, leader_epoch)
        now = trio.current_time()
        self._perform(leader.on_progress(follower, broker_epoch, held_offset, now=now))

    def _leading_for(self, follower: int, leader_epoch: int) -> Leader:
        leader = self.leading(leader_epoch)
        if leader.progress_of(follower) is None:
            raise NotLeaderOrFollower(f"broker {follower} has no replica of {self.log.name}")
        return leader

    def tick(self, now: float) -> None:
        """Once in a while: who lags, and whose time to wait is over."""
        if self.leader and self.log.is_sound:
            self._perform(self.leader.on_tick(now))
        self._acks.expire(now)

    # -- the in-sync set -------------------------------------------------------------------

    def on_isr_refused(self, proposal: ProposeIsr) -> None:
        if self.leader:
            self._perform(self.leader.on_proposal_refused(proposal))

    def on_isr_unknown(self, proposal: ProposeIsr) -> bool:
        """Whether it is still wanted: then it has been proposed again."""
        is_able = self.leader is not None and self.log.is_sound
        effects = self.leader.on_proposal_unknown(proposal) if self.leader and is_able else []
        self._perform(effects)
        return bool(effects)

    # -- following -------------------------------------------------------------------------

    def next_fetch(self) -> FetchFromLeader | None:
        """What to ask the leader; None if an answer is on its way, or there is nobody to ask."""
        if self.follower is None or self._is_cutting or not self.log.is_whole:
            return None
        end_offset, last_epoch = self.log.log_end_offset, self.log.epochs.latest
        return self.follower.next_fetch(end_offset, last_epoch, now=trio.current_time())

    def _answered(self, token: int) -> Follower | None:
        """The part that waits for this answer. Tokens are never used twice: what was asked in an
        earlier leader epoch does not pass for something else.
        """
        follower = self.follower
        return follower if follower is not None and follower.accepts(token) else None

    async def on_fetched(self, token: int, fetched: FetchedFromLeader) -> None:
        """The answer to the fetch with that token; any other is dropped.

        Raises:
            CorruptRecord, StorageError: see `PartitionLog.append_replicated`.
        """
        follower = self._answered(token)
        if follower is None:
            return
        if fetched.diverged:
            await self._cut(follower, fetched.diverged)
            return
        if fetched.data:
            await self._begin_with(follower, fetched.data)
            if self.follower is not follower:
                return
        self._append_fetched(follower, fetched)

    def on_records(self, token: int, fetched: FetchedFromLeader) -> None:
        """As `on_fetched`, without waiting for anything: the logs agree, and this one has begun."""
        assert not fetched.diverged, "has to be cut"
        follower = self._answered(token)
        if follower is not None:
            self._append_fetched(follower, fetched)

    def _append_fetched(self, follower: Follower, fetched: FetchedFromLeader) -> None:
        if fetched.data:
            now, epoch = trio.current_time(), follower.leader_epoch
            self.log.append_replicated(fetched.data, leader_epoch=epoch, now=now)
        self.leader_start_offset = fetched.log_start_offset
        end_offset = self.log.log_end_offset
        self._perform(follower.on_appended(fetched.high_watermark, log_end_offset=end_offset))
        if fetched.data:
            self._on_held()
            self._tell_watchers()

    @property
    def lags_log_start(self) -> bool:
        """The leader has deleted what is still here, where nobody can compare it any more."""
        return self.log.log_start_offset < self.leader_start_offset

    async def follow_log_start(self) -> None:
        """Delete what the leader has deleted. Raises StorageError, OffsetOutOfRange: not yet."""
        start = min(self.leader_start_offset, self.high_watermark)
        await self._directory.delete_records(self.log, start)

    def on_no_answer(self, token: int) -> None:
        self._answered(token)

    async def on_out_of_range(self, token: int, leader_start_offset: int) -> None:
        """The leader has deleted what comes after our log."""
        follower = self._answered(token)
        if follower is not None:
            await self._shorten(
                follower,
                lambda: follower.start_over(
                    leader_start_offset, log_end_offset=self.log.log_end_offset
                ),
            )

    async def _begin_with(self, follower: Follower, data: Buffer) -> None:
        """The leader's log may start inside of a batch, which comes whole all the same: a log that
        was to start there has to start with the batch.
        """
        log = self.log
        if log.log_start_offset < log.log_end_offset:
            return
        try:
            _, first = next(iter_batches(data))
        except CorruptRecord as error:
            error.offset = log.log_end_offset
            raise
        if first.base_offset < log.log_end_offset < first.end_offset:
            await self._shorten(follower, lambda: StartOver(first.base_offset))

    async def _cut(self, follower: Follower, diverged: Diverged) -> None:
        def decide() -> Truncate | StartOver:
            effect = follower.cut(
                diverged,
                self.log.epochs,
                log_start_offset=self.log.log_start_offset,
                log_end_offset=self.log.log_end_offset,
            )
            if effect.offset < self.high_watermark:
                logger.error(
                    "committed records cut: log=%s from=%d high_watermark=%d leader=%d epoch=%d",
                    self.log.name, effect.offset, self.high_watermark, follower.leader,
                    follower.leader_epoch,
                )  # fmt: skip
            return effect

        await self._shorten(follower, decide)

    async def _shorten(
        self, follower: Follower, decide: Callable[[], Truncate | StartOver | None]
    ) -> None:
        """Ask what to do once nothing else happens to the log: the part may be another by then."""
        self._is_cutting = True
        try:
            async with self._cutting:
                effect = decide() if self.follower is follower else None
                if effect is not None:
                    await self._forget(follower, effect)
        finally:
            self._is_cutting = False

    async def _forget(self, follower: Follower, effect: Truncate | StartOver) -> None:
        if isinstance(effect, StartOver):
            await self._directory.start_over(self.log, effect.offset)
            self.high_watermark = effect.offset
        else:
            await self._directory.truncate(self.log, effect.offset)
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        follower.high_watermark = self.high_watermark  # a cut inside a batch took the whole batch

    # -- what follows ----------------------------------------------------------------------

    def _watch(self, log: PartitionLog) -> None:
        log.on_held, log.on_trimmed = self._on_held, self._tell_watchers
        log.retirable_end = self._retirable_end
        log.on_doubt = partial(self._around.on_doubt, self.key)

    def _unwatch(self, log: PartitionLog) -> None:
        log.on_held = log.on_trimmed = log.retirable_end = log.on_doubt = None

    def _retirable_end(self) -> int:
        """The leader alone retires, and only what is committed: its followers adopt its start, so
        that no other clock than the leader's deletes anything.
        """
        return self.log.log_start_offset if self.leader is None else self.high_watermark

    def _on_held(self) -> None:
        """The log holds more, or went offline: see `PartitionLog.on_held`."""
        if self.log.offline_reason:
            self._acks.fail(StorageError(f"{self.log.name} is offline: {self.log.offline_reason}"))
            self._around.on_offline(self.key)
        elif self.leader:
            self._perform(self.leader.on_held(self.log.held_end_offset))
        elif self.follower:
            self._around.on_held(self.key)

    def _perform(self, effects: list[LeaderEffect] | list[HighWatermarkRose]) -> None:
        for effect in effects:
            match effect:
                case HighWatermarkRose(high_watermark):
                    self.high_watermark = high_watermark
                    self._tell_watchers()
                case ProposeIsr():
                    self._around.propose_isr(self.key, effect)
        if self.leader:
            self._acks.release(self.leader)

    def _tell_watchers(self) -> None:
        for watcher in list(self.watchers):
            watcher.on_news(self.key)
