"""Preferred leaders: bringing leadership back to where placement wanted it.

Owns the rare look at all partitions, and the queue of elections that follows from it. Gentle: a
broker gets its leaderships back only if it misses more than a tenth of them, and only a few
elections are under way at once. A move that makes no sense any more when its turn comes is dropped.
"""

from __future__ import annotations

from heapq import heapify, heappop
from typing import TYPE_CHECKING

from raftmq.metadata.commands import ElectionKind, ElectLeader, PartitionId
from raftmq.metadata.controller.elections import is_leaderless
from raftmq.metadata.controller.looks import Looks, Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.metadata.image import MetadataImage, PartitionState

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
