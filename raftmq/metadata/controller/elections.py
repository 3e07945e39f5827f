"""Elections: partitions without a leader that an active broker may win.

Owns whose review elects. The image marks no such partition as the business of anybody; so a
broker that becomes active looks through what it hosts, and what is found elsewhere (`add`) is
given to one of the active hosts. If that one goes, or its review is refused, another host gets it.

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
from raftmq.metadata.controller.effects import Looks, Walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState, SlotState


class _Candidate:
    """What one active broker may win.

    Attributes:
        command: made, and not yet answered.
    """

    def __init__(self, hosted: Walk[PartitionId]) -> None:
        self._hosted = hosted
        self._given: dict[PartitionId, None] = {}  # in order
        self.command: ReviewPartitions | None = None

    def give(self, key: PartitionId) -> None:
        self._given[key] = None

    def next_keys(self, image: MetadataImage, looks: Looks) -> tuple[PartitionId, ...]:
        found = []
        for key in self._candidates(looks):
            partition = image.partitions.get(key)
            if partition is not None and is_leaderless(image, partition):
                found.append(key)
                if len(found) >= SLICE_PARTITIONS_MAX:
                    break
        return tuple(sorted(set(found)))

    def _candidates(self, looks: Looks) -> Iterator[PartitionId]:
        while self._given and looks.left > 0:
            looks.left -= 1
            yield self._given.popitem()[0]
        yield from self._hosted.go(looks)

    def all_keys(self) -> Iterator[PartitionId]:
        """All that was found for it, and not elected yet."""
        proposed = self.command.partitions if self.command else ()
        return chain((PartitionId(*parts) for parts in proposed), self._given)


class Elections:
    """The candidates, and what waits for one."""

    def __init__(self) -> None:
        self._candidates: dict[int, _Candidate] = {}
        # With the broker that should not get it again, if there is another.
        self._unassigned: deque[tuple[PartitionId, int]] = deque()

    def on_active(self, image: MetadataImage, broker_id: int) -> None:
        """It may lead what has no leader."""
        self._candidates[broker_id] = _Candidate(Walk(image.hosted_by(broker_id)))

    def on_inactive(self, broker_id: int) -> None:
        """Somebody else must do what was found for it."""
        candidate = self._candidates.pop(broker_id, None)
        if candidate:
            self._unassigned.extend((key, broker_id) for key in candidate.all_keys())

    def add(self, image: MetadataImage, key: PartitionId, *, but: int = NO_BROKER) -> None:
        """One that may have no leader: an active host gets it, `but` only if nobody else can."""
        partition = image.partitions.get(key)
        active = [b for b in partition.replicas if image.is_active(b)] if partition else []
        for broker_id in sorted(active[:2], key=lambda host: host == but)[:1]:
            if broker_id not in self._candidates:
                self._candidates[broker_id] = _Candidate(Walk(()))
            self._candidates[broker_id].give(key)

    def assign(self, image: MetadataImage, looks: Looks) -> None:
        """Find other hosts for what was left behind."""
        while self._unassigned and looks.left > 0:
            looks.left -= 1
            key, left_by = self._unassigned.popleft()
            self.add(image, key, but=left_by)

    def of(
        self, image: MetadataImage, broker: BrokerState, looks: Looks
    ) -> ReviewPartitions | None:
        """The next step of the elections that this broker may win, if there are any."""
        candidate = self._candidates.get(broker.broker_id)
        if candidate is None:
            return None
        if candidate.command is None:
            keys = candidate.next_keys(image, looks)
            if keys:
                name = (broker.broker_id, broker.broker_epoch)
                candidate.command = ReviewPartitions(*name, keys)
        return candidate.command

    def on_result(self, command: ReviewPartitions, *, succeeded: bool) -> None:
        """The quorum has applied it, or refused."""
        candidate = self._candidates.get(command.broker_id)
        if candidate is None or candidate.command != command:
            return
        candidate.command = None
        if not succeeded:
            keys = (PartitionId(*parts) for parts in command.partitions)
            self._unassigned.extend((key, command.broker_id) for key in keys)


def is_leaderless(image: MetadataImage, partition: PartitionState) -> bool:
    return partition.leader == NO_BROKER or not image.is_active(partition.leader)


# -- Drains ---------------------------------------------------------------------------------------
# Brokers that stop: whether they still lead what another could lead.
#
# Owns the walks through what they host. A partition that is found on the way is for the elections;
# a broker is drained when one whole walk has found none. What no other broker could lead stays with
# it to the end, and stops with it.


@dataclass
class _Drain:
    broker_epoch: int
    walk: Walk[PartitionId]
    has_found: bool = False
    version: int | None = None  # of the image in which it was drained


class Drains:
    """One for each incarnation that stops, after its review."""

    def __init__(self) -> None:
        self._drains: dict[int, _Drain] = {}

    def look(self, image: MetadataImage, broker: BrokerState, looks: Looks) -> list[PartitionId]:
        """Go on, if it is not drained; what another broker could lead at once."""
        drain = self._drains.get(broker.broker_id)
        if drain is None or drain.broker_epoch != broker.broker_epoch:
            drain = self._drains[broker.broker_id] = _begun(image, broker)
        if drain.version is not None:
            return []
        if not image.led_count(broker.broker_id):
            drain.version = image.version
            return []
        found = [
            key
            for key in drain.walk.go(looks)
            if _could_move(image, image.partitions.get(key), broker.broker_id)
        ]
        drain.has_found |= bool(found)
        if drain.walk.is_over and drain.has_found:
            self._drains[broker.broker_id] = _begun(image, broker)
        elif drain.walk.is_over:
            drain.version = image.version
        return found

    def drained_at(self, broker: BrokerState) -> int | None:
        """The version in which it led nothing that another could lead; None: not yet."""
        drain = self._drains.get(broker.broker_id)
        is_mine = drain is not None and drain.broker_epoch == broker.broker_epoch
        return drain.version if drain and is_mine else None


def _begun(image: MetadataImage, broker: BrokerState) -> _Drain:
    return _Drain(broker.broker_epoch, Walk(image.hosted_by(broker.broker_id)))


def _could_move(image: MetadataImage, partition: PartitionState | None, broker_id: int) -> bool:
    """Whether it leads this one, and another broker could at once, losing nothing."""
    if partition is None or partition.leader != broker_id:
        return False
    return any(map(image.is_active, (*partition.isr, *partition.eligible)))


# -- Leaders --------------------------------------------------------------------------------------
# Preferred leaders: bringing leadership back to where placement wanted it.
#
# Owns the rare look at all partitions, and the queue of elections that follows from it. Gentle: a
# broker gets its leaderships back only if it misses more than a tenth of them, and only a few
# elections are under way at once. A move that makes no sense any more when its turn comes is
# dropped.


BALANCE_SECONDS = 300.0
IMBALANCE_MAX = 0.1  # part of a broker's preferred leaderships that it may miss
ELECTIONS_MAX = 8  # under way at once


class Survey:
    """One look at all partitions, in many calls, as they were when it began."""

    def __init__(self, image: MetadataImage) -> None:
        self._walk: Walk[tuple[PartitionId, PartitionState]] = Walk(image.partitions.items())
        self._preferred: dict[int, int] = {}
        self._missed: dict[int, list[PartitionId]] = {}

    @property
    def is_over(self) -> bool:
        return self._walk.is_over

    def go(self, image: MetadataImage, looks: Looks) -> Iterator[PartitionId]:
        """Those of the next ones that have no leader."""
        for key, partition in self._walk.go(looks):
            first = partition.replicas[0]
            self._preferred[first] = self._preferred.get(first, 0) + 1
            if _can_return(image, partition):
                self._missed.setdefault(first, []).append(key)
            if is_leaderless(image, partition):
                yield key

    def misplaced(self) -> list[PartitionId]:
        """Whose preferred leader could lead, of brokers that miss too many; in no order."""
        assert self.is_over, "not all partitions were seen"
        return [
            key
            for broker_id, keys in self._missed.items()
            if len(keys) > IMBALANCE_MAX * self._preferred[broker_id]
            for key in keys
        ]


class PreferredLeaders:
    """The leaderships that should move, in order."""

    def __init__(self) -> None:
        self._queue: list[PartitionId] = []  # a heap: to sort all of them at once takes long

    def on_survey(self, survey: Survey) -> None:
        """It is over: queue those that should have another leader."""
        self._queue = survey.misplaced()
        heapify(self._queue)

    def take(self, image: MetadataImage, looks: Looks) -> ElectLeader | None:
        """The next election that still makes sense, or None."""
        while self._queue and looks.left > 0:
            looks.left -= 1
            key = heappop(self._queue)
            partition = image.partitions.get(key)
            if partition and _can_return(image, partition):
                return ElectLeader(*key, ElectionKind.PREFERRED, partition.leader_epoch)
        return None


def misplaced(image: MetadataImage) -> list[PartitionId]:
    """What a survey of the whole image finds; in order."""
    survey = Survey(image)
    for _ in survey.go(image, Looks(len(image.partitions) + 1)):
        pass
    return sorted(survey.misplaced())


def _can_return(image: MetadataImage, partition: PartitionState) -> bool:
    """Whether the preferred leader does not lead, but could at once and losing nothing."""
    first = partition.replicas[0]
    return partition.leader != first and first in partition.isr and image.is_active(first)


# -- Reviews --------------------------------------------------------------------------------------
# Reviews: the consequences of a change of one broker, slice by slice.
#
# Owns how far a review has come. Fencing a broker can touch 100,000 partitions: one command marks
# the broker, and these follow. A review that is lost with its controller is begun again by the next
# one, from `pending` in the image; a slice that is proposed twice changes nothing the second time.
#
# Invariant: a review is finished only after each of its slices was answered.


SLICE_PARTITIONS_MAX = 500  # of one command: it blocks every node while it is applied

AnyReview: TypeAlias = ReviewPartitions | FinishReview


class Review:
    """One walk over the partitions that a broker hosts: first those that it leads.

    Attributes:
        broker: as it was when the review began.
    """

    def __init__(self, image: MetadataImage, broker: BrokerState) -> None:
        self.broker = broker
        self._walk: Walk[PartitionId] = Walk(image.hosted_by(broker.broker_id))
        self._others: deque[PartitionId] = deque()  # seen already, and not as urgent
        self._command: AnyReview | None = None  # made, and not yet answered

    def is_about(self, broker: BrokerState) -> bool:
        """Whether it still answers what the image says of the broker."""
        mine = self.broker
        return (broker.broker_epoch, broker.pending_since) == (
            mine.broker_epoch,
            mine.pending_since,
        )

    def next_command(self, image: MetadataImage, looks: Looks) -> AnyReview | None:
        """What to propose now, the same until it was answered; None if that takes more looks."""
        if self._command is None:
            self._command = self._made(image, looks)
        return self._command

    def _made(self, image: MetadataImage, looks: Looks) -> AnyReview | None:
        name = (self.broker.broker_id, self.broker.broker_epoch)
        keys = self._led(image, looks)
        while self._others and len(keys) < SLICE_PARTITIONS_MAX:
            keys.append(self._others.popleft())
        if keys:
            # Sorted, as the order of a map is another one in each process.
            return ReviewPartitions(*name, tuple(sorted(keys)))
        return FinishReview(*name, self.broker.pending_since) if self._walk.is_over else None

    def _led(self, image: MetadataImage, looks: Looks) -> list[PartitionId]:
        """Some that it leads: they wait for another leader. What it has another part in waits."""
        keys: list[PartitionId] = []
        broker_id = self.broker.broker_id
        leads = image.led_count(broker_id) > 0
        for key in self._walk.go(looks):
            partition = image.partitions.get(key)
            if partition is None:
                continue
            if partition.leader == broker_id:
                keys.append(key)
            elif _trusts(partition, broker_id):
                self._others.append(key)
            if len(keys if leads else self._others) >= SLICE_PARTITIONS_MAX:
                break
        return keys

    def on_applied(self, command: AnyReview) -> None:
        """The quorum has applied what `next_command` said."""
        assert command == self._command, f"not of this review: {command}"
        self._command = None

    def is_waiting_for(self, command: AnyReview) -> bool:
        return command == self._command


class Reviews:
    """The reviews that brokers wait for (`pending` in the image)."""

    def __init__(self) -> None:
        self._reviews: dict[int, Review] = {}

    def of(self, image: MetadataImage, broker: BrokerState, looks: Looks) -> AnyReview | None:
        """The next step of what is pending, from the beginning if that has grown."""
        review = self._reviews.get(broker.broker_id)
        if review is None or not review.is_about(broker):
            review = self._reviews[broker.broker_id] = Review(image, broker)
        return review.next_command(image, looks)

    def on_result(self, command: AnyReview, *, succeeded: bool) -> None:
        """The quorum has applied it, or refused: then the image has changed, and tells anew."""
        review = self._reviews.get(command.broker_id)
        if review is None or not review.is_waiting_for(command):
            return
        if succeeded:
            review.on_applied(command)
        if isinstance(command, FinishReview) or not succeeded:
            del self._reviews[command.broker_id]


def _trusts(partition: PartitionState, broker_id: int) -> bool:
    return (
        broker_id in partition.isr
        or broker_id in partition.eligible
        or broker_id in partition.last_known_eligible
    )


# -- Slots ----------------------------------------------------------------------------------------
# Coordinator slots: which broker coordinates which consumer groups.
#
# Owns the choice. A slot whose broker is not active moves at once; among active brokers slots move
# only while one has two more than another, a few at a time, because each move makes the clients of
# its groups look for their coordinator anew.
#
# Invariant: slots under way count for where they go, so that no slot is moved twice for one reason.


BALANCING_MOVES_MAX = 4  # under way at once


def assign_slots(
    slots: Sequence[SlotState], active: Collection[int], under_way: Sequence[AssignSlot]
) -> list[AssignSlot]:
    """What to propose beside the moves that are under way."""
    if not active:
        return []
    owners = [slot.broker_id for slot in slots]
    for move in under_way:
        owners[move.slot] = move.broker_id
    counts = dict.fromkeys(sorted(active), 0)
    for owner in owners:
        if owner in counts:
            counts[owner] += 1
    moving = {move.slot for move in under_way}
    moves = _adopt(slots, owners, counts, moving)
    if not moves:
        moves = _balance(slots, owners, counts, moving)
    return moves


def _adopt(
    slots: Sequence[SlotState], owners: list[int], counts: dict[int, int], moving: set[int]
) -> list[AssignSlot]:
    """Slots of brokers that are not active, each to whoever has the fewest."""
    moves = []
    for number, owner in enumerate(owners):
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
        if counts[most] - counts[fewest] < 2:
            break
        settled = [n for n, owner in enumerate(owners) if owner == most and n not in moving]
        if not settled:
            break
        owners[settled[0]] = fewest
        counts[most] -= 1
        counts[fewest] += 1
        moves.append(AssignSlot(settled[0], slots[settled[0]].epoch, fewest))
    return moves
