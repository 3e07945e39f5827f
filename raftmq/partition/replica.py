"""The replica of one partition on this broker, as leader or follower (Kafka: Partition).

Owns the change of roles, and runs the effects of the rules (`leader`, `follower`) for each append,
fetch and flush: a higher high watermark, answers to producers, wake-ups of long polls, proposals
for the in-sync set (ISR). Decides nothing about offsets itself, and passes bytes to the log unread.

Invariants:
  1. It leads or follows or neither, never both; each role belongs to one leader epoch.
  2. While the log is truncated nothing else changes it: roles change before or after.
  3. When a role ends, every producer that waits for an acknowledgement gets an indefinite error:
     the new leader may or may not have the record.
  4. It leads in an epoch only with the log object with which it began that epoch: a log that was
     opened anew may lack appended records that followers have.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import (
    CorruptRecord,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RaftmqError,
    StorageError,
    UnknownLeaderEpoch,
)
from raftmq.model import TransactionOutcome
from raftmq.partition.acknowledgements import Acknowledgements, reached
from raftmq.partition.admission import EarlierTransactionDecided
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
from raftmq.partition.replica_environment import CancelOutcome, PartitionTransaction
from raftmq.partition.transactions import ALL_READ
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import encode_cancel
from raftmq.wire.bodies import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from raftmq.partition.acknowledgements import Waiter
    from raftmq.partition.leader import FetchFromLeader, LeaderEffect
    from raftmq.partition.replica_environment import (
        FetchedFromLeader,
        FetchPosition,
        PartitionKey,
        ReplicaEnvironment,
        Watcher,
    )
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import Appended, Fenced, PartitionLog
    from raftmq.wire.batch.header import Buffer

ANY_EPOCH = -1  # the client named no leader epoch; real ones start at 0
# A follower that lags for longer leaves the ISR. Less would eject followers for a slow disk or a
# long garbage collection; more would make acks=all wait longer for a follower that hangs.
LAG_SECONDS_MAX = 10.0

# Markers of one turn: about 10 ms, as each takes 34 us of the loop.
MARKERS_AT_ONCE = 300

logger = logging.getLogger("raftmq.partition")


class Replica:
    """Attributes:
    assignment: the newest one that was applied, if any.
    leader, follower: the rules of the current role; None where it has another role.
    high_watermark: everything before it is committed.
    leader_start_offset: of a follower: where the leader's log starts, by its last fetch response.
    watchers: notified of new data until they are removed; a dict, to keep the order.
    is_closed: this broker does not host the partition any more: references to it should be dropped,
        as they keep the log's files open.
    """

    def __init__(
        self,
        key: PartitionKey,
        log: PartitionLog,
        directory: LogDirectory,
        environment: ReplicaEnvironment,
        *,
        high_watermark: int,
        lag_seconds_max: float = LAG_SECONDS_MAX,
    ) -> None:
        self.key, self.log, self._directory, self._environment = key, log, directory, environment
        self.assignment: Assignment | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        # The checkpointed value may be out of date in both directions: recovery may have cut the
        # log below it, retention may have deleted records above it.
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.leader_start_offset = 0
        self.watchers: dict[Watcher, None] = {}
        self._lag_seconds_max = lag_seconds_max
        self._acks = Acknowledgements(log.name)
        self._cutting = trio.Lock()
        self._tokens = count(1)
        self._is_cutting = False
        self.is_closed = False
        self._role_began_at = 0.0  # as the leader, on trio's clock
        self._spent_epoch = -1  # the last epoch that it led with a log that was replaced since
        self._watch(log)

    # -- roles -----------------------------------------------------------------------------

    async def take_up(self, assignment: Assignment) -> None:
        """Lead, follow or wait, as `assignment` says; an older one than known changes nothing."""
        async with self._cutting:  # waits until a truncation in progress has ended (invariant 2)
            if self.assignment and assignment.partition_epoch < self.assignment.partition_epoch:
                return  # a newer one was applied while this one waited for the lock
            if self.is_closed:  # while this waited: it must not lead, with files that are gone
                return
            self.assignment = assignment
            try:
                # Ends with the disk's answer, if records have to be deleted before leading.
                await self._change_role(assignment)
            finally:
                self._notify_watchers()

    async def _change_role(self, assignment: Assignment) -> None:
        if assignment.leader == self._environment.broker_id:
            await self._lead(assignment)  # may delete records first: ends with the disk's answer
        elif assignment.leader == NO_LEADER:
            self._end_role()  # wait for an election: the next assignment names the new leader
        else:
            self._follow(assignment)

    async def _lead(self, assignment: Assignment) -> None:
        if self.leader and self.leader.leader_epoch == assignment.leader_epoch:
            # Same leadership, another ISR or replica set: in-flight acknowledgements stay valid.
            now = trio.current_time()
            self._perform(self.leader.on_assignment(assignment, now=now))
            self._keep_tail(assignment)
            self._maybe_accept_unread(assignment)
            self._tell_pending()
            return
        self._end_role()
        if not self.log.is_sound or assignment.leader_epoch <= self._spent_epoch:
            return  # it leads once its log is repaired, in an epoch that begins then (invariant 4)
        # Before anything is served, or a deleted record could be read again (L6, decision 0024).
        await self._begin_at(assignment.log_start_offset)
        self.log.assign_epoch(assignment.leader_epoch)
        self.leader = Leader(
            self._environment.broker_id,
            assignment,
            log_end_offset=self.log.log_end_offset,
            held_end_offset=self.log.held_end_offset,
            high_watermark=self.high_watermark,
            lag_seconds_max=self._lag_seconds_max,
            epoch_of=self._environment.epoch_of,
            now=trio.current_time(),
        )
        self._keep_tail(assignment)
        self._perform(self.leader.on_held(self.log.held_end_offset))
        self._role_began_at = trio.current_time()
        self._maybe_accept_unread(assignment)
        while self.resolve():  # first of all; a request that comes between ends what it must
            await trio.lowlevel.checkpoint()
        self._note_open(since=0)
        self._tell_pending()
        logger.debug("leads: log=%s epoch=%d", self.log.name, assignment.leader_epoch)

    def _maybe_accept_unread(self, assignment: Assignment) -> None:
        """No other replica has what this one could not read."""
        if len(assignment.replicas) == 1:
            self._accept_unread()

    def _accept_unread(self) -> None:
        self.log.transactions.accept_unread()
        self.log.schedule.accept_unread()

    def _keep_tail(self, assignment: Assignment) -> None:
        """Keep what is appended in memory while there are followers to fetch it."""
        if len(assignment.replicas) == 1:
            self.log.tail = None
        elif self.log.tail is None:
            self.log.tail = self._directory.tails.begin_tail()

    async def _begin_at(self, start_offset: int) -> None:
        """Delete everything before the start that the quorum has for the partition (L6). These
        records were committed, so the high watermark of this replica, which may be behind, rises
        with the start.

        Raises:
            StorageError: the disk refused; the log is offline, and leads once it is repaired.
        """
        log = self.log
        needed = before_leading(
            start_offset, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset
        )
        try:
            if isinstance(needed, StartOver):  # the log ends below it: an unclean election
                logger.error("nothing is left: log=%s starts_at=%d", log.name, start_offset)
                # Until the disk has the new, empty log.
                await self._directory.start_over(log, start_offset)
            elif needed is not None:
                # Until the new start is durable.
                await self._directory.delete_records(log, start_offset)
        except RaftmqError as error:
            # It must not lead with a start below the quorum's: offline, the repair takes over.
            raise log.go_offline(error) from error
        self.high_watermark = max(self.high_watermark, log.log_start_offset)

    async def keep_start(self) -> None:
        """As the leader: delete records before the start that the quorum has committed meanwhile.

        Raises:
            RaftmqError: not possible now; the caller tries again later.
        """
        if self.leader is None or self.assignment is None or not self.log.is_sound:
            return  # followers adopt their leader's start; a log in repair does so in `_begin_at`
        start = self.assignment.log_start_offset
        if self.log.log_start_offset < start:  # else retention was faster
            await self._directory.delete_records(self.log, start)  # until the new start is durable

    def _follow(self, assignment: Assignment) -> None:
        if self.follower and self.follower.leader_epoch == assignment.leader_epoch:
            return  # the same leader: its outstanding fetch stays valid
        self._end_role()
        self.leader_start_offset = 0
        self.follower = Follower(
            assignment.leader,
            assignment.leader_epoch,
            high_watermark=self.high_watermark,
            answer_seconds_max=float("inf"),  # no timeout: `on_no_answer` when the connection ends
            tokens=self._tokens,
        )

    def _end_role(self) -> None:
        if self.leader is not None:
            error = NotLeaderOrFollower(f"{self.log.name} is not led here any more")
            self._acks.fail(error)
            self.log.tail = None
            self.log.schedule.stop_leading()
        self.leader = self.follower = None

    async def close(self) -> None:
        """End the role, after a truncation or change of roles that is in progress."""
        async with self._cutting:  # until a truncation or change of roles has ended
            self._end_role()
            self.is_closed = True
            # Breaks the reference cycle with the log, which would keep its files open until the
            # garbage collector runs.
            self._unwatch(self.log)
        self._notify_watchers()

    # -- a log that is repaired ------------------------------------------------------------

    @property
    def needs_epoch(self) -> bool:
        """Whether the assignment names this broker as leader in an epoch in which it cannot lead
        any more (invariant 4): the controller has to begin another one."""
        known = self.assignment
        is_named = known is not None and known.leader == self._environment.broker_id
        return is_named and known is not None and known.leader_epoch <= self._spent_epoch

    async def replace_log(self, log: PartitionLog) -> None:
        """Continue with `log`, which was opened anew, in the role that the assignment gives now."""
        async with self._cutting:  # until a truncation or change of roles has ended
            if self.leader is not None:
                self._spent_epoch = self.leader.leader_epoch  # invariant 4
            if self.is_closed:
                self.log = log  # to be deleted with its folder, so it gets no role
                return
            self._end_role()
            log.config = self.log.config
            self._unwatch(self.log)
            self._watch(log)
            self.log = log
            log.doubt_unread()
            # Opening it may have cut unsynced records, so the log may end below the old value.
            end = min(self.high_watermark, log.log_end_offset)
            self.high_watermark = max(log.log_start_offset, end)
            await self._resume()  # the role from before, with the new log

    async def cut_damage(self, *, leads: bool = False, start_over: bool = False) -> None:
        """Truncate at the damage or rot, or delete everything: the leader has these records. With
        `leads` only from the damage on, and rot before it stays: no other replica has more. Where
        rot was put right in place nothing is cut, and the producers are read back once more.

        Raises:
            StorageError: the disk refused; the log is offline.
        """
        self._is_cutting = True
        try:
            async with self._cutting:  # until a change of roles has ended
                if self.leader is None:
                    self._end_role()  # an answer that is on its way must not be appended meanwhile
                if start_over and not self.log.is_whole:
                    await self._directory.start_over(self.log, self.log.log_start_offset)
                # Else it was repaired while this waited for the lock.
                elif not self.log.is_whole or self.has_unread:
                    end = self.log.log_end_offset if leads else self.log.whole_end_offset
                    # Until the cut is durable: only then does it count as sound.
                    await self._directory.truncate(self.log, max(end, self.log.log_start_offset))
                self._end_role()
                self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
                if leads:
                    self._accept_unread()
                # The role from before: a follower fetches the rest, a leader may lead again.
                await self._resume()
        finally:
            self._is_cutting = False

    @property
    def has_unread(self) -> bool:
        """Whether the producers are to be read back. A leader goes on without, as it may append."""
        is_unread = self.log.transactions.unread != ALL_READ or self.log.schedule.is_unread
        return self.leader is None and is_unread

    async def _resume(self) -> None:
        try:
            # None: no assignment has arrived since the start, so there is no role to resume.
            if self.assignment is not None and not self.is_closed:
                await self._change_role(self.assignment)
        finally:
            self._notify_watchers()

    # -- leading ---------------------------------------------------------------------------

    def leading(self, leader_epoch: int = ANY_EPOCH) -> Leader:
        """The leader's rules, if this replica leads in that epoch.

        Raises:
            FencedLeaderEpoch: the caller's metadata is out of date.
            UnknownLeaderEpoch: the caller's metadata is newer than this broker's.
            NotLeaderOrFollower: another broker leads, or this one has not begun to lead yet.
        """
        known = self.assignment.leader_epoch if self.assignment else -1
        if leader_epoch > known:  # the client heard of the election before this broker did
            raise UnknownLeaderEpoch(
                f"{self.log.name}: epoch {leader_epoch}, here {known} is known"
            )
        # The client's metadata is out of date.
        if leader_epoch != ANY_EPOCH and leader_epoch < known:
            raise FencedLeaderEpoch(f"{self.log.name}: epoch {leader_epoch} ended, now is {known}")
        if self.leader is None:  # a follower, no leader elected, or its log is in repair
            raise NotLeaderOrFollower(
                f"{self.log.name} is not led by broker {self._environment.broker_id}"
            )
        return self.leader

    def append(self, data: Buffer, *, acks: int, leader_epoch: int = ANY_EPOCH) -> Appended:
        """Append a producer's batches, except duplicates; `on_acks` calls back when all of them,
        duplicates included, are held.

        Raises:
            NotEnoughReplicas, InvalidRequiredAcks: `acks` cannot be had; nothing was appended.
            RaftmqError: as `leading` and `PartitionLog.append`.
        """
        leader = self.leading(leader_epoch)
        self._acks.check(leader, acks)
        while True:
            try:
                appended = self.log.append(
                    data,
                    leader_epoch=leader.leader_epoch,
                    now_ms=self._directory.now_ms(),
                    now=trio.current_time(),
                    outcome_of=self._environment.outcome,
                    has_acks_all=acks == ACKS_ALL,
                    check_scheduled=self._environment.check_scheduled,
                )
            except EarlierTransactionDecided as earlier:  # one round for each producer
                self.resolve([earlier.producer_id])
            else:
                if self.log.producers.now.transactions.open:
                    self._note_open(since=appended.base_offset)
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
        """Append a fence: earlier processes under this producer name can append nothing after it
        (decision 0022). `on_acks` calls back when the fence is committed.

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

    def append_settling(self, made: Sequence[bytearray]) -> None:
        """As the leader: append what settles scheduled batches that are pending. Below
        min.insync.replicas, too, as markers are. Raises StorageError."""
        assert self.leader is not None, "only a leader settles"
        self.log.append_settling(
            made,
            leader_epoch=self.leader.leader_epoch,
            now_ms=self.now_ms(),
            now=trio.current_time(),
        )
        self._on_appended(self.leader)

    def cancel_scheduled(
        self, handles: Sequence[int], *, leader_epoch: int = ANY_EPOCH
    ) -> CancelOutcome:
        """Cancel the records that had these offsets at first, as far as they can be. Nothing is
        certain before everything below the answer's `end_offset` is committed: see `on_acks`.

        Raises:
            NotEnoughReplicas: nothing was appended.
            RaftmqError: as `leading` and `PartitionLog.append`.
        """
        self._acks.check(self.leading(leader_epoch), ACKS_ALL)
        checks, records = self.log.schedule.check_cancels(handles)
        if records:
            self.append_settling([encode_cancel(records, timestamp=self.now_ms())])
        return CancelOutcome(checks, self.log.log_end_offset)

    def _tell_pending(self) -> None:
        due_ms = self.log.schedule.next_due()
        if due_ms is not None:
            self._environment.on_pending(self.key, due_ms)

    def now_ms(self) -> int:
        """The wall clock of this broker."""
        return self._directory.now_ms()

    def _on_appended(self, leader: Leader) -> None:
        leader.on_append(self.log.log_end_offset)
        self._on_held()
        if self.log.schedule.pending_count:  # few partitions have any
            self._tell_pending()
        for watcher in list(self.watchers):
            watcher.on_append(self.key)

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
        as `acks` demands (Kafka: delayed produce, in purgatory). Returns None if it was called at
        once. `on_end` must not wait, and may get

            NotEnoughReplicasAfterAppend: held, but by fewer than min.insync.replicas.
            NotLeaderOrFollower, StorageError, RequestTimedOut: the record is in the log, and may
                stay or not.
        """
        leader = self.leader
        # A later epoch of the same broker is no better: another record may stand at that offset.
        if leader is None or leader.leader_epoch != leader_epoch:
            on_end(NotLeaderOrFollower(f"epoch {leader_epoch} of {self.log.name} is over"))
            return None
        if self.log.offline_reason:
            on_end(StorageError(f"{self.log.name} is offline: {self.log.offline_reason}"))
            return None
        if end_offset <= reached(leader, acks):  # held already, as with acks=1 and page_cache
            on_end(None)
            return None
        return self._acks.add(end_offset, acks, on_end, deadline=deadline)

    def has_acks(self, end_offset: int, *, acks: int, leader_epoch: int) -> bool:
        """Whether everything before `end_offset` is held already. False as well when that epoch
        is over: another record may stand there now."""
        leader = self.leader
        if leader is None or leader.leader_epoch != leader_epoch or self.log.offline_reason:
            return False
        return end_offset <= reached(leader, acks)

    def on_replica_fetch(
        self,
        follower: int,
        broker_epoch: int,
        fetch: FetchPosition,
        *,
        leader_epoch: int,
        now: float,
        held_offset: int = 0,
    ) -> Diverged | None:
        """A follower fetches, and holds everything before `held_offset`. None: its log is a prefix
        of ours, and it gets what follows.

        Raises:
            NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch: see `leading`.
            OffsetOutOfRange: the records at its fetch offset have been deleted here.
        """
        leader = self._leading_for(follower, leader_epoch)
        if fetch.fetch_offset < self.log.log_start_offset:  # it was down while these were deleted
            raise OffsetOutOfRange(f"{self.log.name} starts at {self.log.log_start_offset}")
        diverged = self.divergence(leader, fetch.last_fetched_epoch, fetch.fetch_offset)
        if diverged:  # it will truncate, so its offsets count for nothing until the next fetch
            self._perform(leader.on_diverging_fetch(follower))
            return diverged
        self._perform(
            leader.on_fetch(
                follower, broker_epoch, fetch.fetch_offset, now=now, held_offset=held_offset
            )
        )
        return None

    def divergence(
        self, leader: Leader, last_fetched_epoch: int, fetch_offset: int
    ) -> Diverged | None:
        """Where the log of a follower (or what a consumer has read) diverges from this one, if it
        does.

        Raises:
            UnknownLeaderEpoch: it has records of a later leader.
        """
        if last_fetched_epoch > leader.leader_epoch:  # this broker was deposed, and does not know
            raise UnknownLeaderEpoch(
                f"{self.log.name}: records of epoch {last_fetched_epoch} were read elsewhere, "
                f"here {leader.leader_epoch} is the latest"
            )
        return leader.divergence(last_fetched_epoch, fetch_offset, self.log.epochs)

    def on_replica_progress(
        self, follower: int, broker_epoch: int, held_offset: int, *, leader_epoch: int, now: float
    ) -> None:
        """The follower holds everything before `held_offset`; errors as in `on_replica_fetch`."""
        leader = self._leading_for(follower, leader_epoch)
        self._perform(leader.on_progress(follower, broker_epoch, held_offset, now=now))

    def _leading_for(self, follower: int, leader_epoch: int) -> Leader:
        leader = self.leading(leader_epoch)
        if leader.progress_of(follower) is None:  # taken off the assignment by a reassignment
            raise NotLeaderOrFollower(f"broker {follower} has no replica of {self.log.name}")
        return leader

    def tick(self, now: float) -> None:
        """Called at intervals: find followers that lag, and end waits whose deadline has passed."""
        if self.leader and self.log.is_sound:  # a damaged leader hands over; its ISR stays as it is
            self._perform(self.leader.on_tick(now))
        self._acks.expire(now)
        producers = self.log.producers.now
        # Most partitions have no transactions, and a broker has thousands of partitions.
        if producers.transactions.known:
            producers.release(self.high_watermark, self._environment.outcome)

    # -- transactions ----------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Everything before it is committed, and of no transaction that is open: see
        `Transactions.last_stable_offset`. What could not be read may begin before the log start."""
        stable = self.log.transactions.last_stable_offset(self.high_watermark)
        return max(stable, self.log.log_start_offset)

    @property
    def deletable_end(self) -> int:
        """Everything before it is committed, and of no transaction that is known to be open. What
        could not be read may go: where no replica has it, that is the way out."""
        return self.log.transactions.decided_end(self.high_watermark)

    @property
    def settled_bound(self) -> int:
        """What settles a scheduled batch counts below it: a deletion is durable at once, and must
        not outlive a delivery that is in the page cache only."""
        return min(self.high_watermark, self.log.durable_end_offset)

    def resolve(
        self, producer_ids: Iterable[int] | None = None, *, aborts_ahead: bool = False
    ) -> bool:
        """As the leader: append a marker for each open transaction of these producers (None: of
        all) of which the metadata of this broker know what became of it; True: as many as one turn
        may have, call it again.

        Below min.insync.replicas, too: a marker tells nobody anything before it is committed. A
        log that fails goes offline, as with any append. With `aborts_ahead` what these metadata
        do not know yet is aborted, too: the caller knows that nobody has granted it.
        """
        transactions = self.log.transactions
        if not transactions.open or self.leader is None:
            return False
        # What is cut or repaired begins its role anew afterwards, and with it this.
        if not self.log.is_sound or self.log.is_being_cut:
            return False
        # Asked and appended in one turn: what is let in between would become part of it.
        outcome_of = self._outcome_or_aborted if aborts_ahead else self._environment.outcome
        wanted = transactions.due(producer_ids, outcome_of, MARKERS_AT_ONCE)
        if not wanted:
            return False
        with suppress(StorageError):  # the log is offline, and whoever waits for it has heard
            self.log.append_markers(
                wanted,
                leader_epoch=self.leader.leader_epoch,
                now_ms=self._directory.now_ms(),
                now=trio.current_time(),
            )
            for producer_id, producer_epoch, kind in wanted:
                if kind is ControlType.COMMIT:
                    self._environment.on_commit(self.key, producer_id, producer_epoch)
            self._on_appended(self.leader)
            return len(wanted) == MARKERS_AT_ONCE
        return False

    def _outcome_or_aborted(self, producer_id: int, producer_epoch: int) -> TransactionOutcome:
        outcome = self._environment.outcome(producer_id, producer_epoch)
        is_ungranted = outcome in (TransactionOutcome.AHEAD, TransactionOutcome.FORGED)
        return TransactionOutcome.ABORTED if is_ungranted else outcome

    def open_transactions(self) -> list[PartitionTransaction]:
        """The one that began first comes first."""
        return [
            PartitionTransaction(
                producer_id, epoch, first_offset, max(noted_at, self._role_began_at)
            )
            for producer_id, (epoch, first_offset, noted_at) in self.log.transactions.open.items()
        ]

    def _note_open(self, *, since: int) -> None:
        """Tell the broker what begins at or behind that offset."""
        for producer_id, transaction in reversed(self.log.transactions.open.items()):
            if transaction.first_offset < since:  # the one that began last comes first
                return
            self._environment.on_open(self.key, producer_id)

    def is_settled(
        self, leader_epoch: int, producer_ids: Sequence[int], producer_epoch: int
    ) -> bool:
        """Whether that transaction of these producers, which is decided, is over in this partition
        for ever: its markers are committed, or there was nothing of it.

        Raises:
            FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower: see `leading`. A deposed
                leader may never have had the records.
            OffsetNotAvailable: this leader does not know yet what is committed, or could not read
                all of its log.
        """
        leader = self.leading(leader_epoch)
        transactions = self.log.transactions
        if not leader.is_established or transactions.unread != ALL_READ:
            raise OffsetNotAvailable(
                f"{self.log.name}: its leader, in epoch {leader.leader_epoch}, does not know yet "
                "whether anything of the transaction is open"
            )
        return transactions.is_ended(producer_ids, producer_epoch, self.high_watermark)

    # -- the in-sync set -------------------------------------------------------------------

    def on_isr_refused(self, proposal: ProposeIsr) -> None:
        if self.leader:  # else it was deposed while the proposal was in flight
            self._perform(self.leader.on_proposal_refused(proposal))

    def on_isr_unknown(self, proposal: ProposeIsr) -> bool:
        """The outcome of the proposal is unknown. Returns whether it was proposed again, which it
        is while this leader still wants it."""
        is_able = self.leader is not None and self.log.is_sound
        effects = self.leader.on_proposal_unknown(proposal) if self.leader and is_able else []
        self._perform(effects)
        return bool(effects)

    # -- following -------------------------------------------------------------------------

    def next_fetch(self) -> FetchFromLeader | None:
        """The next fetch request; None while one is in flight, or if there is no leader."""
        # What is appended during a truncation would be cut; behind damage nothing can be appended.
        if self.follower is None or self._is_cutting or not self.log.is_whole:
            return None
        end_offset, last_epoch = self.log.log_end_offset, self.log.epochs.latest
        return self.follower.next_fetch(end_offset, last_epoch, now=trio.current_time())

    def _answered(self, token: int) -> Follower | None:
        """The follower that waits for this answer. Tokens are never used twice, so that a late
        answer of an earlier leader epoch is not taken for a current one.
        """
        follower = self.follower
        return follower if follower is not None and follower.accepts(token) else None

    async def on_fetched(self, token: int, fetched: FetchedFromLeader) -> None:
        """The answer to the fetch with that token; any other is dropped.

        Raises:
            CorruptRecord, StorageError: see `PartitionLog.append_replicated`.
        """
        follower = self._answered(token)
        if follower is None:  # a late answer of an earlier fetch or leader epoch
            return
        if fetched.diverged:
            await self._cut(follower, fetched.diverged)  # ends when the log is truncated on disk
            return
        if self.is_unproven(fetched.log_start_offset):
            # Until the disk has the new, empty log. The next fetch begins there.
            start = fetched.log_start_offset
            await self._shorten(follower, lambda: StartOver(start))
            return
        if fetched.data:
            # An empty log may have to begin at another offset first: until the disk has it.
            await self._begin_with(follower, fetched.data)
            if self.follower is not follower:
                return  # the role changed during the await: these records are of another epoch
        self._append_fetched(follower, fetched)

    def on_records(self, token: int, fetched: FetchedFromLeader) -> None:
        """Like `on_fetched`, without an await (decision 0016): only where the logs agree and this
        one has records already, so that there is nothing to cut."""
        assert not fetched.diverged, "has to be cut"
        follower = self._answered(token)
        if follower is not None:  # else a late answer
            self._append_fetched(follower, fetched)

    def _append_fetched(self, follower: Follower, fetched: FetchedFromLeader) -> None:
        if fetched.data:  # else the answer brings a new high watermark or log start only
            now, epoch = trio.current_time(), follower.leader_epoch
            self.log.append_replicated(fetched.data, leader_epoch=epoch, now=now)
        self.leader_start_offset = fetched.log_start_offset
        end_offset = self.log.log_end_offset
        self._perform(follower.on_appended(fetched.high_watermark, log_end_offset=end_offset))
        if fetched.data:  # the log grew: report what is held
            self._on_held()

    def is_unproven(self, leader_start_offset: int) -> bool:
        """See `Follower.is_unproven`."""
        log, follower = self.log, self.follower
        return follower is not None and follower.is_unproven(
            leader_start_offset,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )

    @property
    def lags_log_start(self) -> bool:
        """The leader has deleted records that are still here: they cannot be compared any more."""
        return self.log.log_start_offset < self.leader_start_offset

    async def follow_log_start(self) -> None:
        """Delete what the leader has deleted.

        Raises:
            StorageError, OffsetOutOfRange: not possible now; the caller tries again later.
        """
        # Not beyond what this replica knows to be committed: its high watermark lags the leader's.
        start = min(self.leader_start_offset, self.high_watermark)
        # Nor before it knows itself to be settled what was scheduled there.
        start = self.log.schedule.deletable_start(start, self.settled_bound)
        await self._directory.delete_records(self.log, start)  # until the new start is durable

    def on_no_answer(self, token: int) -> None:
        self._answered(token)

    async def on_out_of_range(self, token: int, leader_start_offset: int) -> None:
        """The leader has deleted records behind the end of our log: a gap, so begin anew."""
        follower = self._answered(token)
        if follower is not None:  # else a late answer
            await self._shorten(
                follower,
                lambda: follower.start_over(
                    leader_start_offset, log_end_offset=self.log.log_end_offset
                ),
            )

    async def _begin_with(self, follower: Follower, data: Buffer) -> None:
        """The leader's log may start inside a batch, which is sent whole all the same: an empty
        log that was to start at that offset has to start with the batch.
        """
        log = self.log
        if log.log_start_offset < log.log_end_offset:  # not empty: batches follow each other
            return
        try:
            _, first = next(iter_batches(data))
        # Damaged on the way, or rot on the leader's disk: the caller reports it.
        except CorruptRecord as error:
            error.offset = log.log_end_offset
            raise
        # The wanted offset lies inside the first batch.
        if first.base_offset < log.log_end_offset < first.end_offset:
            # Until the disk has the new, empty log.
            await self._shorten(follower, lambda: StartOver(first.base_offset))

    async def _cut(self, follower: Follower, diverged: Diverged) -> None:
        def decide() -> Truncate | StartOver:
            effect = follower.cut(
                diverged,
                self.log.epochs,
                log_start_offset=self.log.log_start_offset,
                log_end_offset=self.log.log_end_offset,
            )
            if effect.offset < self.high_watermark:  # only after an unclean election (F3)
                logger.error(
                    "committed records cut: log=%s from=%d high_watermark=%d leader=%d epoch=%d",
                    self.log.name, effect.offset, self.high_watermark, follower.leader,
                    follower.leader_epoch,
                )  # fmt: skip
            return effect

        await self._shorten(follower, decide)  # until the cut is durable, or the role has changed

    async def _shorten(
        self, follower: Follower, decide: Callable[[], Truncate | StartOver | None]
    ) -> None:
        """Decide what to cut once the lock is held: the role may have changed while it waited."""
        self._is_cutting = True  # no fetch is sent from here on
        try:
            async with self._cutting:  # until a change of roles has ended
                effect = decide() if self.follower is follower else None
                # None: the role changed meanwhile, or there is nothing to cut.
                if effect is not None:
                    await self._forget(follower, effect)  # until the cut is durable
        finally:
            self._is_cutting = False

    async def _forget(self, follower: Follower, effect: Truncate | StartOver) -> None:
        if isinstance(effect, StartOver):  # nothing in common with the leader: an empty log
            # Until the disk has the new, empty log.
            await self._directory.start_over(self.log, effect.offset)
            self.high_watermark = effect.offset
        else:
            # Until the cut is durable; the next fetch begins at its end.
            await self._directory.truncate(self.log, effect.offset)
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        follower.high_watermark = self.high_watermark  # a cut inside a batch took the whole batch

    # -- what follows ----------------------------------------------------------------------

    def _watch(self, log: PartitionLog) -> None:
        # Not arguments of the log: it is opened before there is a replica, and a replica gets
        # another one when its log is repaired (`replace_log`).
        log.on_held, log.on_trimmed = self._on_held, self._notify_watchers
        log.retirable_end = self._retirable_end
        log.on_doubt = partial(self._environment.on_doubt, self.key)

    def _unwatch(self, log: PartitionLog) -> None:
        log.on_held = log.on_trimmed = log.retirable_end = log.on_doubt = None

    def _retirable_end(self) -> int:
        """Up to where retention may delete. Only the leader applies retention, and only to what is
        committed: its followers adopt its start, so that no other clock than the leader's deletes
        records. No transaction loses its beginning while it is open.
        """
        if self.leader is None:
            return self.log.log_start_offset
        return self.log.schedule.deletable_start(self.deletable_end, self.settled_bound)

    def _on_held(self) -> None:
        """The log holds more, or went offline: see `PartitionLog.on_held`."""
        if self.log.offline_reason:  # its appends may be lost: answer now, not at the deadline
            self._acks.fail(StorageError(f"{self.log.name} is offline: {self.log.offline_reason}"))
            self._environment.on_offline(self.key)
        elif self.leader:
            self._perform(self.leader.on_held(self.log.held_end_offset))
        elif self.follower:  # report it, or the leader waits for this replica until the next fetch
            self._environment.on_held(self.key)

    def _perform(self, effects: list[LeaderEffect] | list[HighWatermarkRose]) -> None:
        for effect in effects:
            match effect:
                case HighWatermarkRose(high_watermark):
                    self.high_watermark = high_watermark
                    # Most partitions have no transactions, and this comes with each record.
                    transactions = self.log.producers.now.transactions
                    if transactions.markers:
                        transactions.on_high_watermark(high_watermark)
                    for watcher in list(self.watchers):
                        watcher.on_high_watermark(self.key)
                case ProposeIsr():
                    self._environment.propose_isr(self.key, effect)
        if self.leader:  # not only after effects: a new assignment may end waits, too
            self._acks.release(self.leader)

    def _notify_watchers(self) -> None:
        for watcher in list(self.watchers):
            watcher.on_news(self.key)
