"""Metadata deltas between images, and the resulting duties of a broker: lead, follow, let go.

Owns `ChangeLog`, the bounded log of what recent commands changed, and `MetadataDelta`, the changes
since a version, in O(changes) (Kafka: MetadataDelta, TopicsDelta). `duties` also decides where a
fenced broker stops leading. Invariant: a replica is let go only if an older image had it and a
newer one has not, never merely because an image does not know it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from raftmq.metadata.commands import NO_BROKER
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import MetadataImage, PartitionState, TouchedKey

# Changed objects that a ChangeLog remembers. A reader further behind gets an incomplete delta and
# compares all partitions it hosts instead, so the bound costs time, not correctness. Not ten times
# less: deleting a single topic may change 10,000 partitions.
CHANGES_MAX = 100_000
OF_TRANSACTIONS = (ChangeKind.TRANSACTION, ChangeKind.TRANSACTION_BLOCK)


class MetadataDelta(NamedTuple):
    """What changed in versions (since, image.version].

    `is_complete` is False when `since` is older than the change log, or a snapshot was installed:
    then everything may have changed, and `changes` is empty.
    """

    since: int
    image: MetadataImage
    changes: frozenset[TouchedKey]
    is_complete: bool

    def transactions(self) -> tuple[list[int], list[int]]:
        """Producer ids, and blocks of members, of which something may have been decided."""
        found: dict[ChangeKind, list[int]] = {kind: [] for kind in OF_TRANSACTIONS}
        for kind, key in self.changes:
            if kind in found:
                assert isinstance(key, int), f"{key}"
                found[kind].append(key)
        return found[ChangeKind.TRANSACTION], found[ChangeKind.TRANSACTION_BLOCK]


class ChangeLog:
    """What recent commands changed: at most CHANGES_MAX objects, the oldest are dropped."""

    def __init__(self, *, changes_max: int = CHANGES_MAX) -> None:
        self._changes_max = changes_max
        self.reset(EMPTY_IMAGE)

    def reset(self, image: MetadataImage) -> None:
        """Start again at `image`, which was installed from a snapshot."""
        self._steps: deque[tuple[int, tuple[TouchedKey, ...]]] = deque()
        self._count = 0
        self._start = self._newest = image.version

    def add(self, image: MetadataImage) -> None:
        """The next image; commands apply one by one, so that none is left out."""
        assert image.version > self._newest, f"{image.version} after {self._newest}"
        self._newest = image.version
        if image.changes:  # commands that change nothing need no step
            self._steps.append((image.version, image.changes))
            self._count += len(image.changes)
        # Forget the oldest steps; readers from before them get an incomplete delta.
        while self._count > self._changes_max:
            self._start, forgotten = self._steps.popleft()
            self._count -= len(forgotten)

    def since(self, version: int, image: MetadataImage) -> MetadataDelta:
        """What changed after `version` and up to `image`, the newest one."""
        assert image.version == self._newest, f"asked at {image.version}, not {self._newest}"
        # 1. Older than what is remembered. 2. Newer than this node's image: the caller has seen
        #    the image of a node that is further.
        if not self._start <= version <= self._newest:
            return MetadataDelta(version, image, frozenset(), is_complete=False)
        changes: set[TouchedKey] = set()
        for step_version, touched in reversed(self._steps):
            if step_version <= version:  # the reader has seen it, and all older ones
                break
            changes.update(touched)
        return MetadataDelta(version, image, frozenset(changes), is_complete=True)


# Duties of a broker


class BecomeLeader(NamedTuple):
    """Lead in `state.leader_epoch`; if it leads in that epoch already, adopt the new ISR."""

    partition_id: PartitionId
    state: PartitionState


class BecomeFollower(NamedTuple):
    """Follow `state.leader` in `state.leader_epoch`; NO_BROKER: stop leading, wait for a leader."""

    partition_id: PartitionId
    state: PartitionState


class LetGo(NamedTuple):
    """The partition was deleted, or this broker is not among its replicas any more."""

    partition_id: PartitionId


Duty: TypeAlias = BecomeLeader | BecomeFollower | LetGo


def duties(delta: MetadataDelta, broker_id: int, before: MetadataImage) -> tuple[Duty, ...]:
    """What `broker_id` must do to get from `before` to `delta.image`, in the order of partitions.

    `before` is the image that it has acted upon. The caller passes in no image that lacks the
    registration of its own process.
    """
    if delta.image.version <= before.version:  # from a node that lags behind
        return ()
    found = [
        _duty(key, broker_id, before=before, after=delta.image)
        for key in sorted(_partitions_to_look_at(delta, broker_id, before))
    ]
    return tuple(duty for duty in found if duty is not None)


def duty_of(image: MetadataImage, key: PartitionId, broker_id: int) -> Duty | None:
    """The duty for one partition by `image` alone; None: the broker does not host it."""
    return _duty(key, broker_id, before=EMPTY_IMAGE, after=image)


def _partitions_to_look_at(
    delta: MetadataDelta, broker_id: int, before: MetadataImage
) -> Iterable[PartitionId]:
    # A delta that begins after `before` would miss the changes in between.
    if delta.is_complete and delta.since <= before.version:
        return {key for kind, key in delta.changes if kind is ChangeKind.PARTITION}  # type: ignore[misc]  # Change.key of that kind
    return {*before.hosted_by(broker_id), *delta.image.hosted_by(broker_id)}


def _duty(
    key: PartitionId, broker_id: int, *, before: MetadataImage, after: MetadataImage
) -> Duty | None:
    was, now = before.partitions.get(key), after.partitions.get(key)
    was_here = was is not None and broker_id in was.replicas
    if now is None or broker_id not in now.replicas:  # deleted, or moved to other brokers
        return LetGo(key) if was_here else None
    if was_here and _epochs(was) == _epochs(now):  # each change raises one of the two epochs
        return None
    if now.leader != broker_id:
        return BecomeFollower(key, now)
    if after.is_unfenced(broker_id):  # a fenced broker leads nothing
        return BecomeLeader(key, now)
    # The image still names it as the leader although it is fenced or has registered again: its
    # review is pending, and will raise the leader epoch. In the present epoch its former process
    # may have appended records that this one does not have.
    return BecomeFollower(key, replace(now, leader=NO_BROKER))


def _epochs(state: PartitionState | None) -> tuple[int, int] | None:
    return None if state is None else (state.leader_epoch, state.partition_epoch)
