"""The rules of a partition's leader, without I/O. One object for each leader epoch.

Owns the high watermark and the in-sync set (ISR) that the leader asks for. Knows offsets and
epochs, never bytes: callers say what happened (`on_*`) and perform the effects that come back.
Time is handed in.

Invariants, asserted here and checked after every event of the simulations:
  L1  high_watermark <= log_end_offset, and it never goes back.
  L2  Whatever is below the high watermark was held, when it rose, by every member of `maximal_isr`.
  L3  At most one proposal is under way. Its members count (maximal) until its fate is known; whom
      it would remove counts until then, too.
     Whoever is about to join counts as well: it could never catch up otherwise.
  L4  The high watermark does not rise while the committed ISR is smaller than `min_isr`.
  L5  A follower counts only after a fetch in this epoch that did not diverge.
  L6  The log starts where the quorum says, or behind that, before anybody is served from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.partition.epochs import EpochEnd, LeaderEpochs


# -- Assignment -----------------------------------------------------------------------------------
# What the cluster has decided about one partition, as far as a replica needs to know it.
#
# Owns names only. The broker translates the metadata into these; nothing here knows where the
# metadata comes from.


NO_LEADER = -1


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
    is_recovering: bool = False  # elected uncleanly: the leader has not said yet that it is whole
    log_start_offset: int = 0  # what is before it was deleted on request: nobody shows it again


class IsrMember(NamedTuple):
    """A replica as it was when the leader judged it: another incarnation must not slip in."""

    broker_id: int
    broker_epoch: int


# -- Effects --------------------------------------------------------------------------------------
# What the rules of a replica ask their surroundings to do. Data only.


class HighWatermarkRose(NamedTuple):
    """Everything before `high_watermark` is held by the in-sync set: it may be read."""

    high_watermark: int


class ProposeIsr(NamedTuple):
    """Ask the controller for another in-sync set: a compare-and-set on both epochs."""

    isr: tuple[IsrMember, ...]  # in the order of the replicas
    leader_epoch: int
    partition_epoch: int


class FetchFromLeader(NamedTuple):
    """Ask the leader for what comes after the own log. `token` comes back with the answer."""

    token: int
    fetch_offset: int
    last_fetched_epoch: int


class Truncate(NamedTuple):
    """Everything from `offset` on is not in the leader's log: forget it."""

    offset: int


class Trim(NamedTuple):
    """Everything before `offset` was deleted: forget it."""

    offset: int


class StartOver(NamedTuple):
    """Nothing of the log counts any more: begin a new one at `offset`."""

    offset: int


LeaderEffect: TypeAlias = HighWatermarkRose | ProposeIsr


# -- Progress -------------------------------------------------------------------------------------
# What a leader knows about one of its followers, in one leader epoch.
#
# Owns how far a follower is and since when it lags. Two things travel apart: where its log ends
# (`fetch_offset`, what it asked for last) and what it holds (`held_offset`, what a crash does not
# take from it, as the topic's durability says). Only the second one counts for anything that was
# promised; the first one bounds it.
#
# Invariant: held_offset <= fetch_offset.


NEVER = float("-inf")


class _Mark(NamedTuple):
    """Where the leader's log ended at some time; the follower has yet to hold that much."""

    at: float
    log_end_offset: int


class FollowerProgress:
    """Attributes:
    broker_epoch: of the newest incarnation that fetched; None before the first fetch.
    has_fetched: whether its log is known to agree with the leader's: before, nothing counts.
    fetch_offset: its log end, as it says and as the epochs of both logs confirm.
    held_offset: everything before it is held.
    """

    def __init__(self, *, caught_up_at: float) -> None:
        self.broker_epoch: int | None = None
        self.has_fetched = False
        self.fetch_offset = 0
        self.held_offset = 0
        self._caught_up_at = caught_up_at
        self._mark = _Mark(NEVER, 0)

    def on_fetch(self, broker_epoch: int, fetch_offset: int) -> None:
        """A fetch that did not diverge. A new incarnation holds nothing until it says so; what
        an older one left on its way tells of a log that a crash may have cut since.
        """
        known = self.broker_epoch
        if known is not None and broker_epoch < known:
            return
        if broker_epoch != known:
            self.broker_epoch, self.held_offset = broker_epoch, 0
        self.has_fetched, self.fetch_offset = True, fetch_offset
        self.held_offset = min(self.held_offset, fetch_offset)

    def on_diverging(self) -> None:
        """It is about to cut its log: what it said before holds no more."""
        self.has_fetched = False
        self.fetch_offset = self.held_offset = 0

    def on_held(self, held_offset: int) -> None:
        """Never beyond what a fetch has shown to agree; never less than it said before."""
        self.held_offset = max(self.held_offset, min(held_offset, self.fetch_offset))

    def look(self, *, log_end_offset: int, now: float) -> None:
        """After each word of it: note since when it holds all that the leader had.

        The mark stays until it is reached. A follower whose disk is always 50 ms behind a busy
        leader is never level, and its words come more often than that: it lags by 50 ms.
        """
        if self.held_offset >= log_end_offset:
            self._caught_up_at, self._mark = now, _Mark(now, log_end_offset)
        elif self.held_offset >= self._mark.log_end_offset:
            self._caught_up_at = max(self._caught_up_at, self._mark.at)
            self._mark = _Mark(now, log_end_offset)

    def lags(self, *, log_end_offset: int, now: float, lag_seconds_max: float) -> bool:
        is_level = self.has_fetched and self.held_offset >= log_end_offset
        return not is_level and now - self._caught_up_at > lag_seconds_max


# -- Leader ---------------------------------------------------------------------------------------


NO_EPOCH = -1  # the controller will refuse it: the member is fenced, or gone


def before_leading(
    start_offset: int, *, log_start_offset: int, log_end_offset: int
) -> Trim | StartOver | None:
    """What becomes of a log before it leads a partition that the quorum lets start there.

    A log that ends before that was elected uncleanly: all of it was deleted, and offsets that were
    handed out already are not handed out again.
    """
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
    log_end_offset, held_end_offset: of the own log.
    high_watermark: consumers see what is below.
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
        itself may as long as it is not fenced, even if it shuts down.
        """
        assert assignment.leader == broker_id, f"{broker_id} does not lead {assignment}"
        assert high_watermark <= log_end_offset, "the high watermark is beyond the log"
        self.broker_id, self.assignment = broker_id, assignment
        self.log_end_offset = self.epoch_start_offset = log_end_offset
        self.held_end_offset, self.high_watermark = held_end_offset, high_watermark
        self._lag_seconds_max, self._epoch_of = lag_seconds_max, epoch_of
        self._now = now
        self._pending: ProposeIsr | None = None
        self._progress: dict[int, FollowerProgress] = {}
        self._know_followers(now)

    # -- questions -------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        return self.assignment.leader_epoch

    @property
    def is_established(self) -> bool:
        """Whether the high watermark has reached this epoch: before, the end is not known."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and whoever was proposed to join: whichever way that ends."""
        proposed = {member.broker_id for member in self._pending.isr} if self._pending else set()
        isr = self.assignment.isr
        return tuple(r for r in self.assignment.replicas if r in isr or r in proposed)

    @property
    def has_min_isr(self) -> bool:
        """Whether acks=all can be promised."""
        return len(self.assignment.isr) >= self.assignment.min_isr

    def progress_of(self, follower: int) -> FollowerProgress | None:
        return self._progress.get(follower)

    def held_by(self, count: int) -> int:
        """Offsets below are held by this leader and `count - 1` in-sync followers at least.

        Zero while fewer are in the ISR.
        """
        others = [
            self._held_by(member) for member in self.assignment.isr if member != self.broker_id
        ]
        if count - 1 > len(others):
            return 0
        held = sorted(others, reverse=True)[: count - 1]
        return min([self.held_end_offset, *held])

    def divergence(
        self, last_fetched_epoch: int, fetch_offset: int, epochs: LeaderEpochs
    ) -> Diverged | None:
        """Where the log of a follower, or a consumer, that ends like this parts from ours."""
        if last_fetched_epoch < 0:  # it has nothing, or forgot who wrote it
            is_beyond = fetch_offset > self.log_end_offset
            return Diverged(epochs.latest, self.log_end_offset) if is_beyond else None
        end: EpochEnd | None = epochs.end_of(last_fetched_epoch, self.log_end_offset)
        assert end is not None, f"epoch {last_fetched_epoch} is later than {self.leader_epoch}"
        if end.leader_epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return Diverged(end.leader_epoch, end.end_offset)
        return None

    # -- what happens ----------------------------------------------------------------------

    def on_append(self, log_end_offset: int) -> list[LeaderEffect]:
        assert log_end_offset >= self.log_end_offset, "a leader's log only grows"
        self.log_end_offset = log_end_offset
        return []

    def on_held(self, held_end_offset: int) -> list[LeaderEffect]:
        """The own log holds more; not more than was told of by `on_append`."""
        assert held_end_offset <= self.log_end_offset, "held before it was appended"
        self.held_end_offset = max(self.held_end_offset, held_end_offset)
        return self._raise_high_watermark()

    def on_fetch(
        self, follower: int, broker_epoch: int, fetch_offset: int, *, now: float
    ) -> list[LeaderEffect]:
        """It asked for `fetch_offset`, and `divergence` found nothing."""
        assert fetch_offset <= self.log_end_offset, "it would have diverged"
        progress = self._progress[follower]
        progress.on_fetch(broker_epoch, fetch_offset)
        return self._after_word_of(follower, now)

    def on_diverging_fetch(self, follower: int) -> list[LeaderEffect]:
        """It will cut its log; until its next fetch it holds nothing that counts."""
        self._progress[follower].on_diverging()
        return []

    def on_progress(
        self, follower: int, broker_epoch: int, held_offset: int, *, now: float
    ) -> list[LeaderEffect]:
        """It holds everything before `held_offset`; ignored before its first fetch (L5)."""
        progress = self._progress[follower]
        if not progress.has_fetched or progress.broker_epoch != broker_epoch:
            return []
        progress.on_held(held_offset)
        return self._after_word_of(follower, now)

    def on_assignment(self, assignment: Assignment, *, now: float) -> list[LeaderEffect]:
        """A committed change within this leader epoch. Older ones than known are ignored."""
        assert assignment.leader_epoch == self.leader_epoch, "another epoch needs another Leader"
        assert assignment.leader == self.broker_id, (
            f"the leader changed with its epoch {assignment}"
        )
        if assignment.partition_epoch < self.assignment.partition_epoch:
            return []
        if assignment.partition_epoch > self.assignment.partition_epoch:
            self._pending = None
        self.assignment = assignment
        self._know_followers(now)
        return self._raise_high_watermark()

    def on_proposal_refused(self, proposal: ProposeIsr) -> list[LeaderEffect]:
        """It will never be applied, not even if it was sent twice: what was committed holds.

        Not for an answer that only says that this leader is behind or deposed: then the proposal
        counts until an assignment comes.
        """
        if proposal == self._pending:
            self._pending = None
        return self._raise_high_watermark()

    def on_proposal_unknown(self, proposal: ProposeIsr) -> list[LeaderEffect]:
        """It may be applied yet: the same again, until an answer or an assignment settles it."""
        return [proposal] if proposal == self._pending else []

    def on_tick(self, now: float) -> list[LeaderEffect]:
        """Time alone may end the wait for somebody who was about to join, and fell silent."""
        self._now = now
        for progress in self._progress.values():
            if progress.has_fetched:  # whoever is level has nothing to say, and yet lags by nothing
                progress.look(log_end_offset=self.log_end_offset, now=now)
        return self._maybe_propose() + self._raise_high_watermark()

    # -- the high watermark ----------------------------------------------------------------

    def _raise_high_watermark(self) -> list[LeaderEffect]:
        if not self.has_min_isr:
            return []  # L4
        if self.held_end_offset <= self.high_watermark:
            return []  # the leader itself counts
        held = min(map(self._held_by, self._counting()))
        if held <= self.high_watermark:
            return []
        self.high_watermark = held
        assert self.high_watermark <= self.log_end_offset, "L1"
        return [HighWatermarkRose(held)]

    def _counting(self) -> Iterable[int]:
        """Who has to hold what is committed."""
        if self._pending is None and len(self.assignment.isr) == len(self.assignment.replicas):
            return self.assignment.isr  # nobody else can join
        return {*self.maximal_isr, *filter(self._is_about_to_join, self._progress)}

    def _held_by(self, member: int) -> int:
        if member == self.broker_id:
            return self.held_end_offset
        return self._progress[member].held_offset

    # -- the in-sync set -------------------------------------------------------------------

    def _know_followers(self, now: float) -> None:
        """Members of the ISR get one lag window to show up; others must catch up first."""
        isr, replicas = self.assignment.isr, self.assignment.replicas
        known = self._progress
        self._progress = {
            follower: known.get(follower)
            or FollowerProgress(caught_up_at=now if follower in isr else NEVER)
            for follower in replicas
            if follower != self.broker_id
        }

    def _after_word_of(self, follower: int, now: float) -> list[LeaderEffect]:
        self._now = now
        self._progress[follower].look(log_end_offset=self.log_end_offset, now=now)
        return self._maybe_expand(follower) + self._raise_high_watermark()

    def _maybe_propose(self) -> list[LeaderEffect]:
        if self._pending:
            return []
        if self.assignment.is_recovering:
            return self._propose(set(self.assignment.isr))  # what is here is all there is
        return self._shrink() or self._expand()

    def _expand(self) -> list[LeaderEffect]:
        """Whoever could not join when it last spoke: of a quiet partition it has no more to say.

        Only who is level: whoever lacks something will speak again, or is dead.
        """
        for follower, progress in self._progress.items():
            is_level = progress.held_offset >= self.log_end_offset
            if is_level and (effects := self._maybe_expand(follower)):
                return effects
        return []

    def _maybe_expand(self, follower: int) -> list[LeaderEffect]:
        """It holds all that was committed, and all that is older than this epoch."""
        if self._pending or not self._may_join(follower):
            return []
        needed = max(self.high_watermark, self.epoch_start_offset)
        if self._progress[follower].held_offset < needed:
            return []
        return self._propose({*self.assignment.isr, follower})

    def _may_join(self, follower: int) -> bool:
        if self.assignment.is_recovering or follower in self.assignment.isr:
            return False
        progress = self._progress[follower]
        return progress.has_fetched and progress.broker_epoch == self._epoch_of(follower)

    def _is_about_to_join(self, follower: int) -> bool:
        return self._may_join(follower) and not self._lags(follower)

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
        """Of whom joins, the incarnation that caught up; of others, the one that is registered."""
        if member != self.broker_id and member not in self.assignment.isr:
            return self._progress[member].broker_epoch or NO_EPOCH
        epoch = self._epoch_of(member)
        return NO_EPOCH if epoch is None else epoch
