"""Rules of a partition leader: high watermark, ISR shrink and expand, divergence. No I/O.

Owns the high watermark and the in-sync set (ISR) that the leader proposes; one object for each
leader epoch. Knows offsets and epochs, never bytes: the replica reports events (`on_*`) and
performs the effects that come back. Time is an argument.

Invariants, asserted here and checked after every event of the simulations:
  L1  high_watermark <= log_end_offset, and it never goes back.
  L2  Each record below the high watermark was held, when it rose, by every member of `maximal_isr`.
  L3  At most one proposal is in flight. Until its outcome is known, the members that it would add
      count (maximal ISR), and those that it would remove count, too. A follower that is about to
      join also counts: otherwise the high watermark would keep running ahead of it.
  L4  The high watermark does not rise while the committed ISR is smaller than `min_isr`.
  L5  A follower counts only after a fetch in this epoch that did not diverge.
  L6  The log starts at the quorum's log start offset or later before any reader is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.partition.epochs import EpochEnd, LeaderEpochs


# -- Assignment -----------------------------------------------------------------------------------
# What the controller has decided about one partition, as far as a replica needs it (Kafka:
# PartitionState of a LeaderAndIsr request).
#
# Owns names only. The broker translates the metadata image into these; nothing here depends on the
# metadata package.


NO_LEADER = -1  # broker ids start at 0


class Assignment(NamedTuple):
    """One committed state of a partition.

    Invariants: `isr` is a subset of `replicas`; the leader, if there is one, is in `isr`.
    `partition_epoch` grows with every change, `leader_epoch` with every change of the leader.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int  # what acks=all needs: min.insync.replicas, or all where there are fewer
    is_recovering: bool = False  # elected uncleanly: the leader has not confirmed its log yet
    log_start_offset: int = 0  # records before it were deleted on request: no leader serves them

    def altered(
        self, partition_epoch: int, isr: tuple[int, ...], *, is_recovering: bool
    ) -> Assignment:
        """After a proposal of its leader, as far as that one is told before the metadata is there.

        With all replicas in sync a move may have ended, and a higher min ISR hold since. Until the
        metadata tells it, less than all must not commit: who left then would be eligible.
        """
        if partition_epoch <= self.partition_epoch:  # the metadata was faster
            return self
        min_isr = len(isr) if len(isr) == len(self.replicas) else self.min_isr
        return self._replace(
            partition_epoch=partition_epoch, isr=isr, min_isr=min_isr, is_recovering=is_recovering
        )


class IsrMember(NamedTuple):
    """A replica and the broker process that the leader judged: the controller refuses a later one,
    which may have lost records in the restart (KIP-903)."""

    broker_id: int
    broker_epoch: int


# -- Effects --------------------------------------------------------------------------------------
# What the rules return for the replica to perform (etcd raft: Ready). Data only.


class HighWatermarkRose(NamedTuple):
    """Everything before `high_watermark` is held by the in-sync set: consumers may read it."""

    high_watermark: int


class ProposeIsr(NamedTuple):
    """Ask the controller for another in-sync set: a compare-and-set on both epochs."""

    isr: tuple[IsrMember, ...]  # in the order of the replicas
    leader_epoch: int
    partition_epoch: int


class FetchFromLeader(NamedTuple):
    """Fetch what follows the end of the own log. The answer carries the same `token`."""

    token: int
    fetch_offset: int
    last_fetched_epoch: int


class Truncate(NamedTuple):
    """Remove everything from `offset` on: the leader's log does not have it."""

    offset: int


class Trim(NamedTuple):
    """Remove everything before `offset`: it was deleted on request."""

    offset: int


class StartOver(NamedTuple):
    """Remove the whole log and begin an empty one at `offset`."""

    offset: int


LeaderEffect: TypeAlias = HighWatermarkRose | ProposeIsr


# -- Progress -------------------------------------------------------------------------------------
# What a leader knows about one of its followers, in one leader epoch (Kafka: ReplicaState and its
# lastCaughtUpTimeMs).
#
# Owns how far a follower is and since when it lags. Two offsets are reported separately (decision
# 0014): where its log ends (`fetch_offset`, of its last fetch) and what it holds (`held_offset`,
# what survives a crash, as the topic's durability says). Only the second one counts for
# acknowledgements and the high watermark; the first one bounds it.
#
# Invariant: held_offset <= fetch_offset.


NEVER = float("-inf")  # before any time: a follower outside the ISR lags until it has caught up


class FollowerProgress:
    """Attributes:
    broker_epoch: of the newest process that fetched; None before the first fetch.
    has_fetched: whether its log is known to agree with the leader's (L5).
    fetch_offset: its log end, as its last fetch had it and the epochs of both logs confirm.
    held_offset: everything before it is held.
    """

    def __init__(self, *, caught_up_at: float) -> None:
        self.broker_epoch: int | None = None
        self.has_fetched = False
        self.fetch_offset = 0
        self.held_offset = 0
        self._caught_up_at = caught_up_at
        # Where the leader's log ended at some time: the follower has yet to hold that much.
        self._marked_at, self._marked_offset = NEVER, 0

    def on_fetch(self, broker_epoch: int, fetch_offset: int) -> None:
        """A fetch that did not diverge."""
        known = self.broker_epoch
        if known is not None and broker_epoch < known:
            return  # a late fetch of an earlier process: a crash may have cut its log since
        if broker_epoch != known:  # a restarted broker holds nothing until it reports it
            self.broker_epoch, self.held_offset = broker_epoch, 0
        self.has_fetched, self.fetch_offset = True, fetch_offset
        if self.held_offset > fetch_offset:  # its log was cut
            self.held_offset = fetch_offset

    def on_diverging(self) -> None:
        """It is about to truncate its log: its earlier offsets are void."""
        self.has_fetched = False
        self.fetch_offset = self.held_offset = 0

    def on_held(self, held_offset: int) -> None:
        """Never beyond what a fetch has shown to agree; never less than it reported before."""
        if held_offset > self.held_offset:
            self.held_offset = min(held_offset, self.fetch_offset)

    def look(self, *, log_end_offset: int, now: float) -> None:
        """After each report of it: note at what time it held all that the leader had.

        The mark stays until it is reached. A follower whose disk is always 50 ms behind a busy
        leader never holds the log end, and reports more often than that: it lags by 50 ms.
        """
        if self.held_offset >= log_end_offset:  # it holds everything: caught up now
            self._caught_up_at = self._marked_at = now
            self._marked_offset = log_end_offset
        elif self.held_offset >= self._marked_offset:  # it holds what the leader had then
            self._caught_up_at = max(self._caught_up_at, self._marked_at)
            self._marked_at, self._marked_offset = now, log_end_offset

    def lags(self, *, log_end_offset: int, now: float, lag_seconds_max: float) -> bool:
        # One that holds everything never lags, however long it is silent: nothing was appended.
        is_level = self.has_fetched and self.held_offset >= log_end_offset
        return not is_level and now - self._caught_up_at > lag_seconds_max


# -- Leader ---------------------------------------------------------------------------------------


NO_EPOCH = -1  # the controller will refuse it: the member is fenced, or gone


def before_leading(
    start_offset: int, *, log_start_offset: int, log_end_offset: int
) -> Trim | StartOver | None:
    """What to delete from a log before it leads a partition that starts at `start_offset`."""
    # Elected uncleanly, with deleted records only. It begins at the start, not at its own end, so
    # that no offset is given out twice (decision 0024).
    if log_end_offset < start_offset:
        return StartOver(start_offset)
    return Trim(start_offset) if log_start_offset < start_offset else None


class Diverged(NamedTuple):
    """The follower's log is not a prefix of ours: its `leader_epoch` ends here at `end_offset`."""

    leader_epoch: int
    end_offset: int


class Leader:
    """Attributes:
    assignment: the newest committed one of this epoch.
    leader_epoch: the one that this object leads in.
    log_end_offset, held_end_offset: of the own log.
    high_watermark: consumers read what is below.
    epoch_start_offset: where this epoch began; everything before it is of earlier leaders.
    """

    def __init__(
        self,
        broker_id: int,
        assignment: Assignment,
        *,
        log_end_offset: int,
        held_end_offset: int,
        high_watermark: int,
        lag_seconds_max: float,
        epoch_of: Callable[[int], int | None],
        now: float,
    ) -> None:
        """`epoch_of(broker)` is its broker epoch if it may be in an ISR, else None. The leader
        itself may be while it is not fenced, even during its shutdown.
        """
        assert assignment.leader == broker_id, f"{broker_id} does not lead {assignment}"
        assert high_watermark <= log_end_offset, "the high watermark is beyond the log"
        self.broker_id, self.assignment = broker_id, assignment
        self.leader_epoch = assignment.leader_epoch
        self.log_end_offset = self.epoch_start_offset = log_end_offset
        self.held_end_offset, self.high_watermark = held_end_offset, high_watermark
        self._lag_seconds_max, self._epoch_of = lag_seconds_max, epoch_of
        self._now = now
        self._pending: ProposeIsr | None = None
        self._progress: dict[int, FollowerProgress] = {}
        self._know_followers(now)

    # -- questions -------------------------------------------------------------------------

    @property
    def is_established(self) -> bool:
        """Whether the high watermark has reached this epoch. Before, an earlier leader may have
        committed more than this one knows, and no consumer may be told where the end is."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and the followers proposed to join it: safe for either outcome (L3)."""
        proposed = {member.broker_id for member in self._pending.isr} if self._pending else set()
        isr = self.assignment.isr
        return tuple(r for r in self.assignment.replicas if r in isr or r in proposed)

    @property
    def has_min_isr(self) -> bool:
        """Whether acks=all can be fulfilled."""
        return len(self.assignment.isr) >= self.assignment.min_isr

    def progress_of(self, follower: int) -> FollowerProgress | None:
        return self._progress.get(follower)

    def held_by(self, count: int) -> int:
        """Offsets below are held by this leader and `count - 1` in-sync followers at least.

        Zero while fewer are in the ISR.
        """
        isr = self.assignment.isr
        others = [one.held_offset for member, one in self._progress.items() if member in isr]
        if count - 1 > len(others):  # the ISR has shrunk since `acks` was checked
            return 0
        held = sorted(others, reverse=True)[: count - 1]
        return min([self.held_end_offset, *held])

    def divergence(
        self, last_fetched_epoch: int, fetch_offset: int, epochs: LeaderEpochs
    ) -> Diverged | None:
        """Where the log of a follower (or what a consumer has read) diverges from ours, given the
        epoch and offset at which it ends."""
        # The usual case: read from this very leader, whose epoch is the log's latest.
        if last_fetched_epoch == self.leader_epoch and fetch_offset <= self.log_end_offset:
            return None
        if last_fetched_epoch < 0:  # its log is empty, or its epoch table does not reach its end
            is_beyond = fetch_offset > self.log_end_offset
            return Diverged(epochs.latest, self.log_end_offset) if is_beyond else None
        end: EpochEnd | None = epochs.end_of(last_fetched_epoch, self.log_end_offset)
        assert end is not None, f"epoch {last_fetched_epoch} is later than {self.leader_epoch}"
        # We lack that epoch, or it ended earlier here: the records behind were never committed.
        if end.leader_epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return Diverged(end.leader_epoch, end.end_offset)
        return None

    # -- what happens ----------------------------------------------------------------------

    def on_append(self, log_end_offset: int) -> None:
        assert log_end_offset >= self.log_end_offset, "a leader's log only grows"
        self.log_end_offset = log_end_offset

    def on_held(self, held_end_offset: int) -> list[LeaderEffect]:
        """The own log holds more; never more than `on_append` has reported."""
        assert held_end_offset <= self.log_end_offset, "held before it was appended"
        if held_end_offset > self.held_end_offset:
            self.held_end_offset = held_end_offset
        return self._raise_high_watermark()

    def on_fetch(
        self,
        follower: int,
        broker_epoch: int,
        fetch_offset: int,
        *,
        now: float,
        held_offset: int = 0,
    ) -> list[LeaderEffect]:
        """The follower fetched from `fetch_offset`, and `divergence` found nothing. It holds
        everything before `held_offset`; 0: it does not say."""
        assert fetch_offset <= self.log_end_offset, "it would have diverged"
        progress = self._progress[follower]
        progress.on_fetch(broker_epoch, fetch_offset)
        if held_offset and progress.broker_epoch == broker_epoch:  # else a late fetch
            progress.on_held(held_offset)
        return self._after_word_of(follower, progress, now)

    def on_diverging_fetch(self, follower: int) -> list[LeaderEffect]:
        """The follower will truncate; until its next fetch nothing that it holds counts (L5)."""
        self._progress[follower].on_diverging()
        return []

    def on_progress(
        self, follower: int, broker_epoch: int, held_offset: int, *, now: float
    ) -> list[LeaderEffect]:
        """The follower holds everything before `held_offset`."""
        progress = self._progress[follower]
        if not progress.has_fetched or progress.broker_epoch != broker_epoch:
            return []  # before its first fetch (L5), or a late report of an earlier process
        progress.on_held(held_offset)
        return self._after_word_of(follower, progress, now)

    def on_assignment(self, assignment: Assignment, *, now: float) -> list[LeaderEffect]:
        """A committed change within this leader epoch. Older ones than known are ignored."""
        assert assignment.leader_epoch == self.leader_epoch, "another epoch needs another Leader"
        assert assignment.leader == self.broker_id, (
            f"the leader changed with its epoch {assignment}"
        )
        if assignment.partition_epoch < self.assignment.partition_epoch:  # overtaken by a newer one
            return []
        if assignment.partition_epoch > self.assignment.partition_epoch:
            # Either our proposal was applied, or its compare-and-set fails now.
            self._pending = None
        self.assignment = assignment
        self._know_followers(now)
        return self._raise_high_watermark()

    def on_proposal_refused(self, proposal: ProposeIsr) -> list[LeaderEffect]:
        """The proposal will never be applied, not even if it was sent twice: the committed ISR
        holds.

        Not to be called for an answer that only says that this leader is behind or deposed: then
        the proposal counts until an assignment comes.
        """
        if proposal == self._pending:  # else a late answer to an earlier proposal
            self._pending = None
        return self._raise_high_watermark()

    def on_proposal_unknown(self, proposal: ProposeIsr) -> list[LeaderEffect]:
        """The proposal may still be applied: send the same again, until an answer or an assignment
        settles it. A different one now could commit both."""
        return [proposal] if proposal == self._pending else []

    def on_tick(self, now: float) -> list[LeaderEffect]:
        """Time alone shrinks the ISR, and ends the wait for a follower that was about to join and
        fell silent."""
        self._now = now
        for progress in self._progress.values():
            if progress.has_fetched:  # a follower that holds everything is silent without lagging
                progress.look(log_end_offset=self.log_end_offset, now=now)
        return self._maybe_propose() + self._raise_high_watermark()

    # -- the high watermark ----------------------------------------------------------------

    def _raise_high_watermark(self) -> list[LeaderEffect]:
        held = self.held_end_offset
        if held <= self.high_watermark:
            return []  # the leader counts, too: the common case while its own sync is in progress
        for progress in self._counting():
            if progress.held_offset <= self.high_watermark:  # it does not hold more yet
                return []
            if progress.held_offset < held:
                held = progress.held_offset
        if not self.has_min_isr:
            return []  # L4
        self.high_watermark = held
        assert self.high_watermark <= self.log_end_offset, "L1"
        return [HighWatermarkRose(held)]

    def _counting(self) -> Iterable[FollowerProgress]:
        """The followers that have to hold a record before it is committed (L2, L3)."""
        progress = self._progress
        if self._are_all_in_sync and self._pending is None:
            return progress.values()  # the common case, without building a set
        counting = {*self.maximal_isr, *filter(self._is_about_to_join, progress)}
        return [progress[member] for member in counting if member != self.broker_id]

    # -- the in-sync set -------------------------------------------------------------------

    def _know_followers(self, now: float) -> None:
        """Members of the ISR get one lag window for their first fetch; others must catch up."""
        isr, replicas = self.assignment.isr, self.assignment.replicas
        self._are_all_in_sync = len(isr) == len(replicas)
        known = self._progress
        self._progress = {
            follower: known.get(follower)
            or FollowerProgress(caught_up_at=now if follower in isr else NEVER)
            for follower in replicas
            if follower != self.broker_id
        }

    def _after_word_of(
        self, follower: int, progress: FollowerProgress, now: float
    ) -> list[LeaderEffect]:
        self._now = now
        progress.look(log_end_offset=self.log_end_offset, now=now)
        if follower in self.assignment.isr:  # the usual case: it need not join
            return self._raise_high_watermark()
        return self._maybe_expand(follower) + self._raise_high_watermark()

    def _maybe_propose(self) -> list[LeaderEffect]:
        if self._pending:
            return []  # L3
        if self.assignment.is_recovering:
            # The same ISR again: confirms this log as the partition's after an unclean election.
            return self._propose(set(self.assignment.isr))
        return self._shrink() or self._expand()

    def _expand(self) -> list[LeaderEffect]:
        """A follower that could not join when it last fetched: in a quiet partition its next
        report may never come.

        Only followers that hold everything: one that lacks records fetches again, or is dead.
        """
        for follower, progress in self._progress.items():
            is_level = progress.held_offset >= self.log_end_offset
            if is_level and (effects := self._maybe_expand(follower)):
                return effects
        return []

    def _maybe_expand(self, follower: int) -> list[LeaderEffect]:
        """Propose the follower for the ISR if it holds all that may have been committed: here up to
        the high watermark, by earlier leaders up to the start of this epoch."""
        if self._pending or not self._may_join(follower):  # one proposal at a time (L3)
            return []
        needed = max(self.high_watermark, self.epoch_start_offset)
        # It would join without a record that may be committed.
        if self._progress[follower].held_offset < needed:
            return []
        return self._propose({*self.assignment.isr, follower})

    def _may_join(self, follower: int) -> bool:
        # While recovering, the controller accepts no ISR but the leader alone.
        if self.assignment.is_recovering or follower in self.assignment.isr:
            return False
        progress = self._progress[follower]
        # The process that fetched must be the one that is registered and not fenced now.
        return progress.has_fetched and progress.broker_epoch == self._epoch_of(follower)

    def _is_about_to_join(self, follower: int) -> bool:
        # One that says nothing although there is something to hold copies, and is not waited for
        # (decision 0044). That it does not lag proves nothing: the process before it did not.
        has_said = self._progress[follower].held_offset > 0 or not self.high_watermark
        return has_said and self._may_join(follower) and not self._lags(follower)

    def _shrink(self) -> list[LeaderEffect]:
        others = [member for member in self.assignment.isr if member != self.broker_id]
        lagging = set(filter(self._lags, others))
        return self._propose(set(self.assignment.isr) - lagging) if lagging else []

    def _lags(self, follower: int) -> bool:
        return self._progress[follower].lags(
            log_end_offset=self.log_end_offset,
            now=self._now,
            lag_seconds_max=self._lag_seconds_max,
        )

    def _propose(self, isr: set[int]) -> list[LeaderEffect]:
        members = [
            IsrMember(r, self._epoch_in_isr(r)) for r in self.assignment.replicas if r in isr
        ]
        self._pending = ProposeIsr(
            tuple(members), self.leader_epoch, self.assignment.partition_epoch
        )
        return [self._pending]

    def _epoch_in_isr(self, member: int) -> int:
        """Of a follower that joins, the process that caught up; else the registered one."""
        # It joins: by the process that caught up, so that the controller can refuse a later one.
        if member != self.broker_id and member not in self.assignment.isr:
            return self._progress[member].broker_epoch or NO_EPOCH
        epoch = self._epoch_of(member)
        return NO_EPOCH if epoch is None else epoch
