"""Starts the moves that are planned, in their order, as far as the limits allow (decision 0044).

Owns the limits, and why a move waits. What is planned and under way stands in the image, so a new
controller goes on where the old one stopped. The limits are for the load, and not exact: a start
that comes late, from a controller that was deposed, is applied all the same.

Invariant: a move that cannot begin holds up no other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from raftmq.metadata.commands import PartitionId, ReassignPartition
from raftmq.metadata.controller.effects import ResumableScan, ScanBudget
from raftmq.metadata.image import EMPTY_IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from raftmq.metadata.image import MetadataImage, PartitionState, PlannedMove

# Moves under way at once. A broker copies several partitions hardly faster than two, and each that
# is under way has one replica more on its disks, and holds up what is behind it.
INTO_BROKER_MAX = 2
OUT_OF_LEADER_MAX = 2
CLUSTER_MAX = 20
# Plans looked at in one call: about a millisecond of the event loop. More are gone through in
# several, and from the front again whenever a move has begun or ended.
PLANS_AT_ONCE = 500
# A line of more plans is put in order once in this time: that of 10,000 takes 10 ms.
LONG_LINE_SECONDS = 1.0


class CopiesUnderWay:
    """The moves that copy now, counted by broker and leader.

    One that stands still, as its new broker is down or nobody leads, counts for nothing: it would
    hold up all others of its leader, maybe for ever. When it goes on there are more for a while.

    Args:
        starting: proposed, and maybe not in the image yet.
    """

    def __init__(self, image: MetadataImage, starting: Iterable[ReassignPartition] = ()) -> None:
        self._image = image
        self._copies: dict[PartitionId, list[int]] = {}  # the new brokers that are active
        self._into, self._out_of = Counter[int](), Counter[int]()
        for key, adding in image.moving.items():
            if adding:  # what only drops replicas copies nothing
                self.add(key, adding)
        for command in starting:
            plan = image.moves.get(key := partition_of(command))
            if plan is not None and plan.planned_at == command.planned_at:
                self.add(key, added_by(image.partitions[key], plan))

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, key: PartitionId, brokers: Collection[int]) -> None:
        """In place of what the partition copies now, if it does."""
        leader = self._image.partitions[key].leader
        before = self._copies.pop(key, None)
        if before is not None:
            self._into.subtract(before)
            self._out_of[leader] -= 1
        copies = [broker_id for broker_id in brokers if self._image.is_active(broker_id)]
        if copies and self._image.is_unfenced(leader):
            self._copies[key] = copies
            self._into.update(copies)
            self._out_of[leader] += 1

    def limit_reached(self, key: PartitionId, brokers: Collection[int]) -> str:
        """What is in the way of these copies, in words; empty: nothing is."""
        # A move that takes the place of another one has its place already.
        own = self._copies.get(key, ())
        for broker_id in brokers:
            if self._into[broker_id] >= INTO_BROKER_MAX and broker_id not in own:
                return f"{self._into[broker_id]} moves into broker {broker_id} are under way"
        leader = self._image.partitions[key].leader
        if own:
            return ""
        if self._out_of[leader] >= OUT_OF_LEADER_MAX:
            return f"{self._out_of[leader]} moves out of broker {leader} are under way"
        return f"{len(self)} moves are under way" if len(self) >= CLUSTER_MAX else ""


def why_planned_waits(image: MetadataImage, key: PartitionId, under_way: CopiesUnderWay) -> str:
    """Why a planned move does not begin now, in words; empty: it does."""
    partition = image.partitions[key]
    added = added_by(partition, image.moves[key])
    if not added:  # it drops or reorders replicas, and copies nothing
        return ""
    return _why_nothing_is_copied(image, partition, added) or under_way.limit_reached(key, added)


def why_under_way_waits(image: MetadataImage, key: PartitionId) -> str:
    """Why a move that has begun does not go on, in words; empty: it does."""
    partition = image.partitions[key]
    return _why_nothing_is_copied(image, partition, partition.target)


def _why_nothing_is_copied(
    image: MetadataImage, partition: PartitionState, brokers: Iterable[int]
) -> str:
    if not image.is_unfenced(partition.leader):
        return "no leader"
    for broker_id in brokers:
        if not image.is_active(broker_id):
            is_stopping = image.is_unfenced(broker_id)
            what = "is stopping: start it again" if is_stopping else "is down: start it"
            return f"broker {broker_id} {what}"
    return ""


def added_by(partition: PartitionState, plan: PlannedMove) -> list[int]:
    """The brokers that get a replica by this plan."""
    original = partition.original
    return [broker_id for broker_id in plan.replicas if broker_id not in original]


def partition_of(command: ReassignPartition) -> PartitionId:
    return PartitionId(command.topic_id, command.partition)


def in_line(image: MetadataImage) -> list[PartitionId]:
    """The partitions with a plan, in the order in which they have their turn."""
    return [key for key, _ in sorted(image.moves.items(), key=lambda item: item[1].planned_at)]


class PlannedMoves:
    """The line of plans, and how far it was gone through since anything has changed."""

    def __init__(self) -> None:
        self._line: list[PartitionId] = []
        self._listed, self._listed_at = EMPTY_IMAGE.moves, 0.0  # what is in the line, since when
        self._walk: ResumableScan[PartitionId] = ResumableScan(())
        self._image = EMPTY_IMAGE  # when the walk began
        self._is_idle = True  # nothing was begun by this walk, nor passed over for a moment

    def starts(
        self,
        image: MetadataImage,
        looks: ScanBudget,
        starting: Collection[ReassignPartition],
        is_free: Callable[[PartitionId], bool],
        *,
        now: float,
    ) -> Iterator[ReassignPartition]:
        """The moves to begin now, in addition to `starting`, which are proposed."""
        self._follow(image, now=now)
        if not self._line or not self._has_more_to_look_at(image):
            return
        under_way = CopiesUnderWay(image, starting)
        for key in self._walk.go(ScanBudget(min(looks.left, PLANS_AT_ONCE))):
            plan = image.moves.get(key)
            # Gone since the line was made; or it has to wait.
            if plan is None or why_planned_waits(image, key, under_way):
                continue
            self._is_idle = False
            if is_free(key):
                partition = image.partitions[key]
                under_way.add(key, added_by(partition, plan))
                epoch = partition.partition_epoch
                yield ReassignPartition(*key, epoch, plan.replicas, plan.planned_at)

    def _follow(self, image: MetadataImage, *, now: float) -> None:
        is_due = len(image.moves) <= PLANS_AT_ONCE or now - self._listed_at >= LONG_LINE_SECONDS
        if image.moves is not self._listed and is_due:
            self._line, self._listed, self._listed_at = in_line(image), image.moves, now
            self._begin(image)

    def _has_more_to_look_at(self, image: MetadataImage) -> bool:
        before = self._image
        if image.moves is not before.moves or image.moving is not before.moving:
            self._begin(image)  # the first in the line come first
        elif self._walk.is_over:
            is_same = image.brokers is before.brokers and image.partitions is before.partitions
            if is_same and self._is_idle:
                return False
            self._begin(image)
        return True

    def _begin(self, image: MetadataImage) -> None:
        self._image, self._walk, self._is_idle = image, ResumableScan(self._line), True
