"""Starts the moves that are planned, in their order, as far as the limits allow (decision 0044).

Owns the limits, and why a move waits. What is planned and under way stands in the image, so a new
controller goes on where the old one stopped. The limits are for the load, and not exact: a start
that comes late, from a controller that was deposed, is applied all the same.

Invariant: a move that cannot begin holds up no other. So the walk along the line goes on when moves
begin or end in front of it, and comes around.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.apply.partitions import begun_reassignment
from raftmq.metadata.commands import NO_VERSION, PartitionId, ReassignPartition, Refused
from raftmq.metadata.image import EMPTY_IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from raftmq.metadata.image import MetadataImage, PartitionState, PlannedMove

# Moves under way at once. A broker copies several partitions hardly faster than two, and each that
# is under way has one replica more on its disks, and holds up what is behind it.
INTO_BROKER_MAX = 2
OUT_OF_LEADER_MAX = 2
CLUSTER_MAX = 20
# Starts in flight at once: those that copy nothing wait for no other, and may be thousands, each of
# them a change that clients and followers of a partition learn of.
STARTS_MAX = 20
# Plans looked at in one call: about a millisecond of the event loop. A longer line is gone through
# in several, and some of its front are looked at in each.
PLANS_AT_ONCE, FRONT = 500, 100
# A line of more plans is put in order once in this time: that of 10,000 takes 10 ms.
LONG_LINE_SECONDS = 1.0


class CopiesUnderWay:
    """The moves that copy now, counted by broker and leader.

    A replica that is in sync copies no more, even if the move cannot end, as another one is down.
    One whose broker is down, or that nobody leads, copies nothing either: counted, it would hold up
    all others of its leader, maybe for ever. When it goes on there are more for a while.

    Args:
        starting: proposed, and maybe not in the image yet.
    """

    def __init__(self, image: MetadataImage, starting: Iterable[ReassignPartition] = ()) -> None:
        self._image = image
        self._copies: dict[PartitionId, list[int]] = {}  # the brokers that copy
        self._into, self._out_of = Counter[int](), Counter[int]()
        for key, adding in image.moving.items():
            if adding:  # what only drops replicas copies nothing
                self.add(key, _not_in_sync(image.partitions[key], adding))
        for command in starting:
            plan = image.moves.get(key := partition_of(command))
            if plan is not None and plan.planned_at == command.planned_at:
                self.add(key, copied_by(image.partitions[key], plan))

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
    partition, plan = image.partitions[key], image.moves[key]
    copied = copied_by(partition, plan)
    why = ""
    if copied:  # else it drops or reorders replicas
        why = _why_nothing_is_copied(image, partition, copied)
        why = why or under_way.limit_reached(key, copied)
    if why:
        return why
    begun = begun_reassignment(Draft(image, image.version), key, partition, plan.replicas)
    return begun.message if isinstance(begun, Refused) else ""


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


def copied_by(partition: PartitionState, plan: PlannedMove) -> list[int]:
    """The brokers that get a replica by this plan, and have not got one that is in sync."""
    original = partition.original
    return _not_in_sync(partition, [b for b in plan.replicas if b not in original])


def _not_in_sync(partition: PartitionState, brokers: Iterable[int]) -> list[int]:
    return [broker_id for broker_id in brokers if broker_id not in partition.isr]


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
        # The walk goes around: how many of the line are before it, up to which version they were
        # planned, and how many are still to be looked at since the image was `_image`.
        self._passed, self._passed_until, self._left = 0, NO_VERSION, 0
        self._image = EMPTY_IMAGE
        self._is_idle = True  # nothing was begun by this walk, nor passed over for a moment

    def starts(
        self,
        image: MetadataImage,
        starting: Collection[ReassignPartition],
        is_free: Callable[[PartitionId], bool],
        *,
        now: float,
    ) -> Iterator[ReassignPartition]:
        """The moves to begin now, in addition to `starting`, which are proposed."""
        self._follow(image, now=now)
        room = STARTS_MAX - len(starting)
        if not room or not self._line or not self._has_more_to_look_at(image):
            return
        under_way = CopiesUnderWay(image, starting)
        for key in self._next(image):
            if why_planned_waits(image, key, under_way):
                continue
            self._is_idle = False
            if is_free(key):
                plan, partition = image.moves[key], image.partitions[key]
                under_way.add(key, copied_by(partition, plan))
                epoch = partition.partition_epoch
                yield ReassignPartition(*key, epoch, plan.replicas, plan.planned_at)
                room -= 1
                if not room:
                    return

    def _follow(self, image: MetadataImage, *, now: float) -> None:
        is_due = len(image.moves) <= PLANS_AT_ONCE or now - self._listed_at >= LONG_LINE_SECONDS
        if image.moves is not self._listed and is_due:
            self._line, self._listed, self._listed_at = in_line(image), image.moves, now
            self._passed = bisect_right(
                self._line, self._passed_until, key=lambda key: image.moves[key].planned_at
            )
            self._begin(image)

    def _has_more_to_look_at(self, image: MetadataImage) -> bool:
        before = self._image
        if image.moves is not before.moves or image.moving is not before.moving:
            self._begin(image)
        elif not self._left:
            is_same = image.brokers is before.brokers and image.partitions is before.partitions
            if is_same and self._is_idle:
                return False
            self._begin(image)
        return True

    def _begin(self, image: MetadataImage) -> None:
        """To look at all of the line, from where the walk is; at a short one from its front."""
        self._image, self._left, self._is_idle = image, len(self._line), True
        if self._left <= PLANS_AT_ONCE:
            self._passed = 0

    def _next(self, image: MetadataImage) -> Iterator[PartitionId]:
        """Some from the front, which come first, and then as the walk goes on. What was begun or
        taken back since the line was made costs no look.
        """
        yield from filter(image.moves.__contains__, self._line[: min(self._passed, FRONT)])
        looks = PLANS_AT_ONCE
        while self._left and looks:
            if self._passed >= len(self._line):
                self._passed = 0
            key = self._line[self._passed]
            self._passed, self._left = self._passed + 1, self._left - 1
            plan = image.moves.get(key)
            if plan is not None:
                self._passed_until, looks = plan.planned_at, looks - 1
                yield key
