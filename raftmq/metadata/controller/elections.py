"""Elects partition leaders, balances preferred leaders, moves coordinator slots, drains brokers.

Owns the controller's scans and queues for each of these, one section each; the rules of an election
are in `metadata.election`. Leaderless partitions: the image has no list of them, so the partitions
of a broker that becomes active are scanned, and those found otherwise (`add`) go to one of their
active hosts, whose review elects. If that host becomes inactive, or its review is refused, another
host gets them.

Invariant: a partition that was found is proposed, or has a leader, or has no active host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    ElectionKind,
    ElectLeader,
    FinishReview,
    PartitionId,
    ReviewPartitions,
)
from raftmq.metadata.controller.effects import ResumableScan, ScanBudget

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState, SlotState


class _Candidate:
    """Leaderless partitions that one active broker may lead.

    Attributes:
        command: the review in flight, if any.
    """

    def __init__(self, hosted: ResumableScan[PartitionId]) -> None:
        self._hosted = hosted
        self._given: dict[PartitionId, None] = {}  # found elsewhere; a dict as each is kept once
        self.command: ReviewPartitions | None = None

    def give(self, key: PartitionId) -> None:
        self._given[key] = None

    def next_keys(self, image: MetadataImage, looks: ScanBudget) -> tuple[PartitionId, ...]:
        found = []
        for key in self._candidates(looks):
            partition = image.partitions.get(key)
            # It may have got a leader since it was found.
            if partition is not None and is_leaderless(image, partition):
                found.append(key)
                if len(found) >= SLICE_PARTITIONS_MAX:
                    break
        return tuple(sorted(set(found)))

    def _candidates(self, looks: ScanBudget) -> Iterator[PartitionId]:
        # First those that were found elsewhere, then the scan of what the broker hosts.
        while self._given and looks.left > 0:
            looks.left -= 1
            yield self._given.popitem()[0]
        yield from self._hosted.go(looks)

    def all_keys(self) -> Iterator[PartitionId]:
        """All partitions that were given to it, and have no result yet."""
        proposed = self.command.partitions if self.command else ()
        return chain((PartitionId(*parts) for parts in proposed), self._given)


class Elections:
    """Leaderless partitions by the active broker whose review elects."""

    def __init__(self) -> None:
        self._candidates: dict[int, _Candidate] = {}
        # Each with the broker that failed to elect it, which gets it again only if no other can.
        self._unassigned: deque[tuple[PartitionId, int]] = deque()

    def on_active(self, image: MetadataImage, broker_id: int) -> None:
        """It may lead partitions without a leader: scan all that it hosts."""
        self._candidates[broker_id] = _Candidate(ResumableScan(image.hosted_by(broker_id)))

    def on_inactive(self, broker_id: int) -> None:
        """Another host must elect the partitions that were given to it."""
        candidate = self._candidates.pop(broker_id, None)
        if candidate:  # it may have had nothing to do
            self._unassigned.extend((key, broker_id) for key in candidate.all_keys())

    def add(self, image: MetadataImage, key: PartitionId, *, but: int = NO_BROKER) -> None:
        """Give a partition that may be leaderless to an active host; to `but` only if it is the
        only one.
        """
        partition = image.partitions.get(key)
        active = [b for b in partition.replicas if image.is_active(b)] if partition else []
        # The first active host that is not `but`: among the first two at the latest.
        for broker_id in sorted(active[:2], key=lambda host: host == but)[:1]:
            # Active since before this term, or `on_active` is still to come.
            if broker_id not in self._candidates:
                self._candidates[broker_id] = _Candidate(ResumableScan(()))
            self._candidates[broker_id].give(key)

    def assign(self, image: MetadataImage, looks: ScanBudget) -> None:
        """Find other hosts for partitions whose host became inactive or was refused."""
        while self._unassigned and looks.left > 0:  # the rest in the next call
            looks.left -= 1
            key, left_by = self._unassigned.popleft()
            self.add(image, key, but=left_by)

    def of(
        self, image: MetadataImage, broker: BrokerState, looks: ScanBudget
    ) -> ReviewPartitions | None:
        """The next review of leaderless partitions of this broker, if there is one."""
        candidate = self._candidates.get(broker.broker_id)
        if candidate is None:
            return None
        if candidate.command is None:  # the last one has a result
            keys = candidate.next_keys(image, looks)
            if keys:
                name = (broker.broker_id, broker.broker_epoch)
                candidate.command = ReviewPartitions(*name, keys)
        return candidate.command

    def on_result(self, command: ReviewPartitions, *, succeeded: bool) -> None:
        """The quorum has applied or refused `command`."""
        candidate = self._candidates.get(command.broker_id)
        if candidate is None or candidate.command != command:
            return  # a pending review of `Reviews`, or the broker has become inactive since
        candidate.command = None
        if not succeeded:  # another host may succeed
            keys = (PartitionId(*parts) for parts in command.partitions)
            self._unassigned.extend((key, command.broker_id) for key in keys)


def is_leaderless(image: MetadataImage, partition: PartitionState) -> bool:
    """Whether no active broker leads it; a fenced leader stays in the image until its review."""
    return partition.leader == NO_BROKER or not image.is_active(partition.leader)


# -- Drains ---------------------------------------------------------------------------------------
# Controlled shutdown: whether a stopping broker still leads partitions that another could lead.
#
# Owns the scans of what such brokers host. A partition that is found goes to the elections; a
# broker is drained when a whole scan has found none. Partitions that no other broker could lead
# stay with it, and become unavailable when it stops.


@dataclass
class _Drain:
    broker_epoch: int
    walk: ResumableScan[PartitionId]
    has_found: bool = False
    version: int | None = None  # of the image in which it was found to be drained


class ControlledShutdowns:
    """The scans, one for each broker epoch that is stopping, after its review."""

    def __init__(self) -> None:
        self._drains: dict[int, _Drain] = {}

    def look(
        self, image: MetadataImage, broker: BrokerState, looks: ScanBudget
    ) -> list[PartitionId]:
        """Continue the scan; the partitions found that another broker could lead now."""
        drain = self._drains.get(broker.broker_id)
        # The first call for this process.
        if drain is None or drain.broker_epoch != broker.broker_epoch:
            drain = self._drains[broker.broker_id] = _begun(image, broker)
        # Drained: it stays so, as a stopping broker is elected only where no other can be.
        if drain.version is not None:
            return []
        if not image.led_count(broker.broker_id):  # it leads nothing: no scan is needed
            drain.version = image.version
            return []
        found = [
            key
            for key in drain.walk.go(looks)
            if _could_move(image, image.partitions.get(key), broker.broker_id)
        ]
        drain.has_found |= bool(found)
        if drain.walk.is_over and drain.has_found:  # scan again: were they elected elsewhere?
            self._drains[broker.broker_id] = _begun(image, broker)
        elif drain.walk.is_over:  # a whole scan has found nothing that could move
            drain.version = image.version
        return found

    def drained_at(self, broker: BrokerState) -> int | None:
        """The version in which it led nothing that another could lead; None: it still does."""
        drain = self._drains.get(broker.broker_id)
        is_mine = drain is not None and drain.broker_epoch == broker.broker_epoch
        return drain.version if drain and is_mine else None


def _begun(image: MetadataImage, broker: BrokerState) -> _Drain:
    return _Drain(broker.broker_epoch, ResumableScan(image.hosted_by(broker.broker_id)))


def _could_move(image: MetadataImage, partition: PartitionState | None, broker_id: int) -> bool:
    """Whether the broker leads it, and an active replica could take over without loss."""
    if partition is None or partition.leader != broker_id:  # deleted or moved since the walk began
        return False
    return any(map(image.is_active, (*partition.isr, *partition.eligible)))


# -- Leaders --------------------------------------------------------------------------------------
# Preferred leader election: moves leadership back to the first replica of each partition (Kafka:
# auto.leader.rebalance.enable).
#
# Owns the periodic survey of all partitions, and the queue of elections that follows from it. A
# broker gets its leaderships back only if it misses more than a tenth of them, and only a few
# elections are in flight at once. An election that is not needed any more when its turn comes is
# dropped.


# Period of the survey; as Kafka's leader.imbalance.check.interval.seconds. Each move interrupts the
# producers and consumers of a partition, so balance may be late.
BALANCE_SECONDS = 300.0
# Share of its preferred leaderships that a broker may lack; as Kafka's
# leader.imbalance.per.broker.percentage.
IMBALANCE_MAX = 0.1
# Preferred elections in flight at once: each makes clients and followers of a partition look for
# their new leader, and thousands at once would be felt in all topics.
ELECTIONS_MAX = 8


class Survey:
    """A scan of all partitions, in many calls, as they were when it began."""

    def __init__(self, image: MetadataImage) -> None:
        self._walk: ResumableScan[tuple[PartitionId, PartitionState]] = ResumableScan(
            image.partitions.items()
        )
        self._preferred: dict[int, int] = {}
        self._missed: dict[int, list[PartitionId]] = {}

    @property
    def is_over(self) -> bool:
        return self._walk.is_over

    def go(self, image: MetadataImage, looks: ScanBudget) -> Iterator[PartitionId]:
        """Continue the scan; yields partitions without an active leader."""
        for key, partition in self._walk.go(looks):
            first = partition.replicas[0]
            self._preferred[first] = self._preferred.get(first, 0) + 1
            if _can_return(image, partition):
                self._missed.setdefault(first, []).append(key)
            if is_leaderless(image, partition):
                yield key

    def misplaced(self) -> list[PartitionId]:
        """Partitions to give back to their preferred leader, of brokers that lack too many; in no
        order.
        """
        assert self.is_over, "not all partitions were seen"
        return [
            key
            for broker_id, keys in self._missed.items()
            if len(keys) > IMBALANCE_MAX * self._preferred[broker_id]
            for key in keys
        ]


class PreferredLeaders:
    """The queue of preferred leader elections, by partition id."""

    def __init__(self) -> None:
        # A heap: sorting 100,000 ids at once would block the event loop.
        self._queue: list[PartitionId] = []

    def on_survey(self, survey: Survey) -> None:
        """The survey is complete: queue the partitions that should have another leader."""
        self._queue = survey.misplaced()
        heapify(self._queue)

    def take(self, image: MetadataImage, looks: ScanBudget) -> ElectLeader | None:
        """The next election that is still needed, or None."""
        # Entries that are not needed any more cost budget, too.
        while self._queue and looks.left > 0:
            looks.left -= 1
            key = heappop(self._queue)
            partition = image.partitions.get(key)
            # The image may have changed since the survey.
            if partition and _can_return(image, partition):
                return ElectLeader(*key, ElectionKind.PREFERRED, partition.leader_epoch)
        return None


def misplaced(image: MetadataImage) -> list[PartitionId]:
    """The misplaced partitions of a survey of the whole image in one call; in order."""
    survey = Survey(image)
    for _ in survey.go(image, ScanBudget(len(image.partitions) + 1)):
        pass
    return sorted(survey.misplaced())


def _can_return(image: MetadataImage, partition: PartitionState) -> bool:
    """Whether the preferred leader does not lead, but is in sync and active."""
    first = partition.replicas[0]
    return partition.leader != first and first in partition.isr and image.is_active(first)


# -- Reviews --------------------------------------------------------------------------------------
# Reviews: the consequences of a change of one broker for its partitions, slice by slice.
#
# Owns the progress of reviews. Fencing a broker can concern 100,000 partitions: one command marks
# the broker, and review commands follow (decision 0013). A review that ended with its controller is
# begun again by the next one, from `pending` in the image; a slice that is proposed twice changes
# nothing the second time.
#
# Invariant: a review is finished only after each of its slices has a result.


# Partitions of one command, which blocks the event loop of every node while it is applied. Smaller
# slices would need more round trips of the quorum before the last partition has a leader.
SLICE_PARTITIONS_MAX = 500

AnyReview: TypeAlias = ReviewPartitions | FinishReview


class Review:
    """One scan of the partitions that a broker hosts; those that it leads are proposed first.

    Attributes:
        broker: as it was when the review began.
    """

    def __init__(self, image: MetadataImage, broker: BrokerState) -> None:
        self.broker = broker
        self._walk: ResumableScan[PartitionId] = ResumableScan(image.hosted_by(broker.broker_id))
        self._others: deque[PartitionId] = deque()  # scanned; follower roles, less urgent
        self._command: AnyReview | None = None  # without a result yet

    def is_about(self, broker: BrokerState) -> bool:
        """Whether nothing more has become pending of the broker since the review began."""
        mine = self.broker
        return (broker.broker_epoch, broker.pending_since) == (
            mine.broker_epoch,
            mine.pending_since,
        )

    def next_command(self, image: MetadataImage, looks: ScanBudget) -> AnyReview | None:
        """The command to propose, the same until `on_applied`; None if the budget is used up."""
        if self._command is None:  # the last one has a result: make the next
            self._command = self._made(image, looks)
        return self._command

    def _made(self, image: MetadataImage, looks: ScanBudget) -> AnyReview | None:
        name = (self.broker.broker_id, self.broker.broker_epoch)
        keys = self._led(image, looks)
        # Fill the slice with less urgent ones.
        while self._others and len(keys) < SLICE_PARTITIONS_MAX:
            keys.append(self._others.popleft())
        if keys:  # else the scan has not found any yet
            # Sorted, as the order of a map differs from process to process (decision 0010).
            return ReviewPartitions(*name, tuple(sorted(keys)))
        return FinishReview(*name, self.broker.pending_since) if self._walk.is_over else None

    def _led(self, image: MetadataImage, looks: ScanBudget) -> list[PartitionId]:
        """Partitions that the broker leads: these are unavailable until another leads. Others in
        which it has a role are kept in `_others`.
        """
        keys: list[PartitionId] = []
        broker_id = self.broker.broker_id
        leads = image.led_count(broker_id) > 0
        for key in self._walk.go(looks):
            partition = image.partitions.get(key)
            if partition is None:  # deleted since the review began
                continue
            if partition.leader == broker_id:
                keys.append(key)
            elif _trusts(partition, broker_id):
                self._others.append(key)
            # While it leads any partition, scan on for those; a slice of others can wait.
            if len(keys if leads else self._others) >= SLICE_PARTITIONS_MAX:
                break
        return keys

    def on_applied(self, command: AnyReview) -> None:
        """The quorum has applied the command of `next_command`."""
        assert command == self._command, f"not of this review: {command}"
        self._command = None

    def is_waiting_for(self, command: AnyReview) -> bool:
        return command == self._command


class Reviews:
    """The reviews in progress, of brokers with something `pending` in the image."""

    def __init__(self) -> None:
        self._reviews: dict[int, Review] = {}

    def of(self, image: MetadataImage, broker: BrokerState, looks: ScanBudget) -> AnyReview | None:
        """The next command of the broker's review; a new review if more has become pending."""
        review = self._reviews.get(broker.broker_id)
        if review is None or not review.is_about(broker):  # more has become pending: begin again
            review = self._reviews[broker.broker_id] = Review(image, broker)
        return review.next_command(image, looks)

    def on_result(self, command: AnyReview, *, succeeded: bool) -> None:
        """The quorum has applied `command`, or refused it: then the image has changed, and a new
        review begins from it.
        """
        review = self._reviews.get(command.broker_id)
        if review is None or not review.is_waiting_for(command):
            return  # of an earlier review, or of `Elections`
        if succeeded:
            review.on_applied(command)
        # Finished, or begin a new review from the present image.
        if isinstance(command, FinishReview) or not succeeded:
            del self._reviews[command.broker_id]


def _trusts(partition: PartitionState, broker_id: int) -> bool:
    return (
        broker_id in partition.isr
        or broker_id in partition.eligible
        or broker_id in partition.last_known_eligible
    )


# -- Slots ----------------------------------------------------------------------------------------
# Coordinator slots: which broker is the group coordinator of which consumer groups.
#
# Owns the assignment (decision 0021). A slot whose broker is not active moves at once; among active
# brokers slots move only while one has two more than another, a few at a time, because after a move
# all members of its groups must find their coordinator again.
#
# Invariant: a slot with a move in flight counts for its new broker, so that it is not moved twice
# for one reason.


BALANCING_MOVES_MAX = 4  # in flight at once, of 64 slots: few groups change coordinator at a time


def assign_slots(
    slots: Sequence[SlotState], active: Collection[int], under_way: Sequence[AssignSlot]
) -> list[AssignSlot]:
    """The moves to propose in addition to those in flight."""
    if not active:  # no broker to move a slot to
        return []
    owners = [slot.broker_id for slot in slots]
    for move in under_way:
        owners[move.slot] = move.broker_id
    counts = dict.fromkeys(sorted(active), 0)
    for owner in owners:
        if owner in counts:  # an inactive owner's slots are moved by `_adopt`
            counts[owner] += 1
    moving = {move.slot for move in under_way}
    moves = _adopt(slots, owners, counts, moving)
    if not moves:  # groups without a coordinator come first
        moves = _balance(slots, owners, counts, moving)
    return moves


def _adopt(
    slots: Sequence[SlotState], owners: list[int], counts: dict[int, int], moving: set[int]
) -> list[AssignSlot]:
    """Move the slots of inactive brokers, each to the broker that has the fewest."""
    moves = []
    for number, owner in enumerate(owners):
        # A move in flight already gives it a new owner.
        if owner not in counts and number not in moving:
            fewest = min(counts, key=counts.__getitem__)
            counts[fewest] += 1
            moves.append(AssignSlot(number, slots[number].epoch, fewest))
    return moves


def _balance(
    slots: Sequence[SlotState], owners: list[int], counts: dict[int, int], moving: set[int]
) -> list[AssignSlot]:
    moves: list[AssignSlot] = []
    while len(moving) + len(moves) < BALANCING_MOVES_MAX:
        most = max(counts, key=counts.__getitem__)
        fewest = min(counts, key=counts.__getitem__)
        if counts[most] - counts[fewest] < 2:  # balanced: another move would only swap the two
            break
        settled = [n for n, owner in enumerate(owners) if owner == most and n not in moving]
        if not settled:  # all slots of this broker are moves in flight to it
            break
        owners[settled[0]] = fewest
        counts[most] -= 1
        counts[fewest] += 1
        moves.append(AssignSlot(settled[0], slots[settled[0]].epoch, fewest))
    return moves
