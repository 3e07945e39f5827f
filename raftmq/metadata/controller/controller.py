"""The active controller: fences and unfences brokers, answers heartbeats, drives elections, moves.

Owns one term of the quorum's leader (Kafka: QuorumController). It is a reconciliation loop: each
tick compares the image and the sessions with what should be, so that a predecessor's unfinished
work is continued, and a lost answer only costs a repetition. Apply compares epochs, so a repeated
proposal changes nothing, and neither does a controller that was deposed without knowing it.

Invariants:
  1. Nothing is proposed before `on_office`, which is called after a read barrier.
  2. Images that are passed in never go back, and contain every result that was passed in.
  3. For each subject at most one proposal is in flight (`InFlightProposals`).
  4. A broker is fenced only if its session expired, its process is dead, or it is unfit (frozen
     disk, metadata too old) while another broker is fit.
  5. No call visits more than a few thousand partitions (`ScanBudget`): the next call continues.
"""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import ErrorCode
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX, ClockVerdict
from raftmq.metadata.commands import (
    SUPPORTED_LEVEL,
    BeginControlledShutdown,
    FenceBroker,
    FinishReview,
    Refused,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
)
from raftmq.metadata.controller.effects import (
    FORBIDDEN_SECONDS,
    RETRY_SECONDS,
    InFlightProposals,
    ScanBudget,
    subject_of,
)
from raftmq.metadata.controller.elections import (
    BALANCE_SECONDS,
    ELECTIONS_MAX,
    ControlledShutdowns,
    Elections,
    PreferredLeaders,
    Reviews,
    Survey,
    assign_slots,
)
from raftmq.metadata.controller.moves import PlannedMoves
from raftmq.metadata.controller.probes import Death, FrozenDisks, Probes, Versions
from raftmq.metadata.image import Pending
from raftmq.metadata.liveness import BrokerSessions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from raftmq.metadata.commands import AnyResult, PartitionId
    from raftmq.metadata.controller.effects import (
        Effect,
        ProbeBroker,
        ProbeOutcome,
        Proposal,
        ProposeCommand,
    )
    from raftmq.metadata.image import BrokerState, MetadataImage
    from raftmq.metadata.liveness import BrokerContact


# -- Levels ---------------------------------------------------------------------------------------
# The feature level: raised by the controller itself, as soon as every node knows the next one.
#
# Owns that choice (decision 0024). Voters are not in the image, so the caller passes them in: each
# also registers as a broker, with the levels that it knows. A node that knows less than the level
# reached can neither register nor apply the command that raised it.


def next_level(image: MetadataImage, voters: Collection[int]) -> SetFeatureLevel | None:
    """The next level, if every voter and broker supports it; one level at a time."""
    now, brokers = image.feature_level, image.brokers
    level = now + 1
    # A voter that has not registered may run an older version, which the level would stop.
    if now >= SUPPORTED_LEVEL or not brokers or any(voter not in brokers for voter in voters):
        return None
    if all(b.feature_level_min <= level <= b.feature_level_max for b in brokers.values()):
        return SetFeatureLevel(now, level)
    return None


# -- Controller -----------------------------------------------------------------------------------


# Period of `on_tick`, far below the 6 s session: it delays fencing and unfencing by that much. Each
# tick costs a pass over all brokers.
TICK_SECONDS = 0.1
# Ticks further apart mean that this process did not run (suspended, or a blocked event loop): ten
# missed ticks are no load. Sessions are then extended, see `BrokerSessions.on_pause`.
PAUSE_SECONDS = 1.0


class HeartbeatAnswer(NamedTuple):
    """`code` other than NONE: this incarnation is not registered, and must register again."""

    code: ErrorCode
    is_fenced: bool = True
    may_stop: bool = False  # it wants to shut down, and leads nothing that another could lead
    clocks: ClockVerdict = ClockVerdict()


class Controller:
    """Inputs are the `on_` methods, which return the effects that the caller must perform.

    Args:
        voters: of the quorum; without them the brokers alone decide on the feature level.
        clock_difference_ms_max: by how much wall clocks may differ and still agree.
    """

    def __init__(
        self,
        voters: Collection[int] = (),
        *,
        clock_difference_ms_max: int = DIFFERENCE_MS_MAX,
    ) -> None:
        self._voters, self._clock_difference_ms_max = voters, clock_difference_ms_max
        self._sessions, self._probes = BrokerSessions(), Probes()
        self._reviews, self._elections = Reviews(), Elections()
        self._leaders, self._moves = PreferredLeaders(), PlannedMoves()
        self._survey: Survey | None = None  # a scan of all partitions in progress
        self._balances = False  # whether preferred leaders are elected when the survey is over
        self._frozen_disks, self._versions = FrozenDisks(), Versions()
        self._drains, self._under_way = ControlledShutdowns(), InFlightProposals()
        self._active: dict[int, int] = {}  # broker epochs of the brokers active at the last call
        self._version = -1  # of the newest image that was passed in; -1: before `on_office`
        self._ticked_at = self._balance_at = 0.0

    def on_office(self, *, now: float, image: MetadataImage) -> list[Effect]:
        """The term begins; `image` is what a read barrier returned."""
        assert self._version == -1, "a controller has one term"
        self._version = 0  # `_see` takes images from now on
        self._see(image, now=now)
        self._ticked_at, self._balance_at = now, now + BALANCE_SECONDS
        self._active = _active(image)
        self._begin_survey(image)
        self._go_on_with_survey(image)
        # Resets of connections reached the predecessor, not this controller: probe every broker.
        suspects = [broker for broker in _brokers(image) if not broker.fenced]
        probes = [self._probes.on_suspicion(broker, now=now) for broker in suspects]
        return [*(probe for probe in probes if probe), *self._act(image, now=now)]

    def on_tick(self, *, now: float, image: MetadataImage) -> list[Effect]:
        self._see(image, now=now)
        # This process was suspended: do not take brokers for silent, or behind, for that.
        if now - self._ticked_at > PAUSE_SECONDS:
            self._sessions.on_pause(now - self._ticked_at, now=now)
            self._versions.on_pause(now - self._ticked_at)
        self._ticked_at = now
        self._versions.note(image.version, now=now)
        self._under_way.forget_rests(now=now)
        if now >= self._balance_at:  # time for the periodic preferred leader election
            self._balance_at = now + BALANCE_SECONDS
            self._begin_survey(image, balances=True)
        self._go_on_with_survey(image)
        self._drain(image)
        return [*self._act(image, now=now), *self._start_moves(image, now=now)]

    def on_heartbeat(
        self, heartbeat: BrokerContact, *, now: float, image: MetadataImage
    ) -> HeartbeatAnswer:
        """Record it and answer it; effects that follow from it come with the next tick."""
        self._see(image, now=now)
        broker = image.brokers.get(heartbeat.broker_id)
        if broker is None:  # it never was, or was unregistered: it must register
            return HeartbeatAnswer(ErrorCode.BROKER_ID_NOT_REGISTERED)
        # A former process, or one that has not read its new epoch.
        if broker.broker_epoch != heartbeat.broker_epoch:
            return HeartbeatAnswer(ErrorCode.STALE_BROKER_EPOCH)
        self._sessions.on_heartbeat(heartbeat, now=now)
        may_stop = heartbeat.wants_shutdown and self._may_stop(image, broker)
        clocks = self._sessions.clocks(now, difference_ms_max=self._clock_difference_ms_max)
        verdict = clocks.verdict(heartbeat.broker_id)
        return HeartbeatAnswer(ErrorCode.NONE, broker.fenced, may_stop, verdict)

    def on_connection_reset(
        self, broker_id: int, *, now: float, image: MetadataImage
    ) -> list[Effect]:
        """The broker's kernel reset its connection: probe whether the process is dead."""
        self._see(image, now=now)
        broker = image.brokers.get(broker_id)
        if broker is None or broker.fenced:  # fenced already: its death changes nothing
            return []
        probe = self._probes.on_suspicion(broker, now=now)
        return [probe] if probe else []

    def on_probe(
        self, probe: ProbeBroker, outcome: ProbeOutcome, *, now: float, image: MetadataImage
    ) -> list[Effect]:
        self._see(image, now=now)
        follows = self._probes.on_probe(probe, outcome, now=now)
        if not isinstance(follows, Death):  # the next probe, or None while it is not decided
            return [follows] if follows else []
        broker = image.brokers.get(follows.broker_id)
        if broker is None or broker.broker_epoch != follows.broker_epoch:
            return []  # a new process has registered since: the verdict was about the former one
        self._sessions.on_death(follows.broker_id)
        return list(self._act(image, now=now))

    def on_result(
        self, effect: ProposeCommand, result: AnyResult | None, *, now: float, image: MetadataImage
    ) -> list[Effect]:
        """The result of a proposal; None if it is unknown, or the quorum did not accept it."""
        self._see(image, now=now)
        command = effect.command
        succeeded = not (result is None or isinstance(result, Refused))
        # What the rules forbid now will hardly be allowed in a moment.
        is_forbidden = (
            isinstance(result, Refused) and result.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        )
        rest = FORBIDDEN_SECONDS if is_forbidden else RETRY_SECONDS
        self._under_way.on_result(command, succeeded=succeeded, now=now, rest=rest)
        # Both may have made it: each ignores commands that are not its own. With an unknown
        # result they propose the same command again.
        if isinstance(command, ReviewPartitions | FinishReview) and result is not None:
            self._reviews.on_result(command, succeeded=succeeded)
        if isinstance(command, ReviewPartitions) and result is not None:
            self._elections.on_result(command, succeeded=succeeded)
        if not succeeded:  # the subject backs off; the next ticks go on
            return []
        return list(self._act(image, now=now))

    # Proposals

    def _see(self, image: MetadataImage, *, now: float) -> None:
        assert self._version >= 0, "not in office"
        assert image.version >= self._version, f"image {image.version} after {self._version}"
        self._version = image.version
        self._sessions.track(image.brokers.values(), now=now)

    def _act(self, image: MetadataImage, *, now: float) -> Iterator[ProposeCommand]:
        self._follow_actives(image)
        for command in self._commands(image, ScanBudget(), now=now):
            # Its last proposal has no result yet, or failed a moment ago.
            if self._under_way.is_free(subject_of(command), now=now):
                yield self._under_way.propose(command)

    def _commands(
        self, image: MetadataImage, looks: ScanBudget, *, now: float
    ) -> Iterator[Proposal]:
        self._elections.assign(image, looks)
        unfit = self._unfit(image, looks, now=now)
        for broker in _brokers(image):
            # Computing a command for a busy broker would use up the budget for nothing.
            if self._under_way.is_free(("broker", broker.broker_id), now=now):
                is_unfit = broker.broker_id in unfit
                command = self._broker_command(image, broker, looks, is_unfit=is_unfit, now=now)
                if command:
                    yield command
        raised = next_level(image, self._voters)
        if raised is not None:  # every node knows the next feature level
            yield raised
        yield from assign_slots(image.slots, self._active, self._under_way.slots())
        while self._under_way.elections() < ELECTIONS_MAX:
            election = self._leaders.take(image, looks)
            if election is None:  # none left, or the budget is used up
                break
            yield election

    def _start_moves(self, image: MetadataImage, *, now: float) -> Iterator[ProposeCommand]:
        """With ticks only: there may be thousands, and each result would count what copies anew."""

        def is_free(key: PartitionId) -> bool:
            return self._under_way.is_free(("partition", key), now=now)

        for start in self._moves.starts(image, self._under_way.moves(), is_free, now=now):
            yield self._under_way.propose(start)

    def _broker_command(
        self,
        image: MetadataImage,
        broker: BrokerState,
        looks: ScanBudget,
        *,
        is_unfit: bool,
        now: float,
    ) -> Proposal | None:
        """The first that applies: 1. fence 2. review 3. unfence 4. begin shutdown 5. elect."""
        session = self._sessions[broker.broker_id]
        is_lost = is_unfit or session.is_expired(now)
        if not broker.fenced and is_lost:  # silent, dead or unfit
            return FenceBroker(broker.broker_id, broker.broker_epoch)
        if broker.pending:  # before unfencing: the review takes away roles that it must not have
            return self._reviews.of(image, broker, looks)
        if broker.fenced:
            # An older image might still name it as a leader: it must have seen that it lost that.
            must_know = max(broker.broker_epoch, broker.pending_since)
            if is_lost or not session.is_ready(now, must_know=must_know):
                return None
            return UnfenceBroker(broker.broker_id, broker.broker_epoch)
        # It leaves its leaderships in order before it stops.
        if session.wants_shutdown and not broker.in_controlled_shutdown:
            return BeginControlledShutdown(broker.broker_id, broker.broker_epoch)
        return self._elections.of(image, broker, looks)

    # Unfit brokers: alive, but with a frozen disk or stale metadata

    def _unfit(self, image: MetadataImage, looks: ScanBudget, *, now: float) -> set[int]:
        """Brokers that must be fenced, or stay fenced, although they are alive."""
        sessions, expected = self._sessions, self._versions.expected
        fit = {it for it in self._active if sessions.is_fit(it, expected=expected, now=now)}
        # Only while another broker is fit: fencing the last ones would stop every partition.
        judged = [broker_id for broker_id in image.brokers if fit - {broker_id}]
        behind = {it for it in judged if sessions[it].metadata_version < expected}
        frozen = {it for it in judged if sessions[it].is_frozen(now)} - behind
        fenced = set(filterfalse(image.is_unfenced, frozen))
        is_fencing = self._under_way.has_fence() or any(
            image.is_unfenced(it) for it in {*behind, *sessions.expired(now)}
        )
        if fenced or is_fencing:  # one frozen disk at a time: ISRs first shrink by what goes now
            return behind | fenced
        chosen = self._frozen_disks.choose(image, frozen, looks)
        return behind if chosen is None else behind | {chosen}

    # The survey: partitions without a leader, or without their preferred one

    def _begin_survey(self, image: MetadataImage, *, balances: bool = False) -> None:
        self._survey, self._balances = Survey(image), balances

    def _go_on_with_survey(self, image: MetadataImage) -> None:
        if self._survey is None:  # between two surveys
            return
        for key in self._survey.go(image, ScanBudget()):
            self._elections.add(image, key)
        if self._survey.is_over:
            # The survey at the begin of a term only looks for leaderless partitions.
            if self._balances:
                self._leaders.on_survey(self._survey)
            self._survey = None

    def _follow_actives(self, image: MetadataImage) -> None:
        before, self._active = self._active, _active(image)
        for broker_id, broker_epoch in before.items():
            if self._active.get(broker_id) != broker_epoch:  # fenced, stopping, or registered again
                self._elections.on_inactive(broker_id)
        for broker_id, broker_epoch in self._active.items():
            if before.get(broker_id) != broker_epoch:  # unfenced, or registered and unfenced again
                self._elections.on_active(image, broker_id)

    # Controlled shutdown

    def _drain(self, image: MetadataImage) -> None:
        looks = ScanBudget()
        for broker in image.brokers.values():
            # After its own review, which moves most of them.
            if self._sessions[broker.broker_id].wants_shutdown and _has_left(image, broker):
                for key in self._drains.look(image, broker, looks):
                    self._elections.add(image, key)

    def _may_stop(self, image: MetadataImage, broker: BrokerState) -> bool:
        """Whether all leaderships that can move have moved, and every active broker knows it.

        A broker that is behind with its metadata is not waited for: it may never catch up.
        """
        if not _has_left(image, broker):
            return False
        self._drain(image)
        version, expected = self._drains.drained_at(broker), self._versions.expected
        others = [it for it in _active(image) if self._sessions[it].metadata_version >= expected]
        return version is not None and self._sessions.all_know(version, others)


def _brokers(image: MetadataImage) -> list[BrokerState]:
    return [broker for _, broker in sorted(image.brokers.items())]


def _active(image: MetadataImage) -> dict[int, int]:
    return {
        broker.broker_id: broker.broker_epoch
        for broker in _brokers(image)
        if image.is_active(broker.broker_id)
    }


def _has_left(image: MetadataImage, broker: BrokerState) -> bool:
    """Whether it is out of service, and its review is complete."""
    return not image.is_active(broker.broker_id) and broker.pending is Pending.NOTHING
