"""Elections: partitions without a leader that an active broker may win.

Owns whose review elects. The image marks no such partition as the business of anybody; so a
broker that becomes active looks through what it hosts, and what is found elsewhere (`add`) is
given to one of the active hosts. If that one goes, or its review is refused, another host gets it.

Invariant: a partition that was found is proposed, or has a leader, or has no active host.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from raftmq.metadata.commands import NO_BROKER, PartitionId, ReviewPartitions
from raftmq.metadata.controller.looks import Walk
from raftmq.metadata.controller.reviews import SLICE_PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.metadata.controller.looks import Looks
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState


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
