"""What changed between two images, and what a broker must do about it.

Owns `ChangeLog`, the bounded memory of what recent commands touched, and `MetadataDelta`, the
answer to "what is different since version v". A delta costs O(what changed). `duties` says what a
broker must do with the partitions it hosts: lead, follow, or let go. Nothing is let go merely
because an image does not know it: only what an older image had and a newer one has not.
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

CHANGES_MAX = 100_000  # touched things that a ChangeLog remembers


class MetadataDelta(NamedTuple):
    """What was touched in versions (since, image.version].

    `is_complete` is False when that is too long ago to tell, or a snapshot was installed: then
    everything may have changed, and `changes` is empty.
    """

    since: int
    image: MetadataImage
    changes: frozenset[TouchedKey]
    is_complete: bool


class ChangeLog:
    """What was touched since some version, for as long as it is at most CHANGES_MAX things."""

    def __init__(
        self, image: MetadataImage = EMPTY_IMAGE, *, changes_max: int = CHANGES_MAX
    ) -> None:
        self._changes_max = changes_max
        self.reset(image)

    def reset(self, image: MetadataImage) -> None:
        """Start anew at `image`, which came from elsewhere: a snapshot."""
        self._steps: deque[tuple[int, tuple[TouchedKey, ...]]] = deque()
        self._count = 0
        self._start = self._newest = image.version

    def add(self, image: MetadataImage) -> None:
        """The next image; commands apply one by one, so that none is left out."""
        assert image.version > self._newest, f"{image.version} after {self._newest}"
        self._newest = image.version
        if image.changes:
            self._steps.append((image.version, image.changes))
            self._count += len(image.changes)
        while self._count > self._changes_max:
            self._start, forgotten = self._steps.popleft()
            self._count -= len(forgotten)

    def since(self, version: int, image: MetadataImage) -> MetadataDelta:
        """What was touched after `version` and up to `image`, the newest one.

        Somebody who has seen more than there is (of another node, say) gets an incomplete answer.
        """
        assert image.version == self._newest, f"asked at {image.version}, not {self._newest}"
        if not self._start <= version <= self._newest:
            return MetadataDelta(version, image, frozenset(), is_complete=False)
        changes: set[TouchedKey] = set()
        for step_version, touched in reversed(self._steps):
            if step_version <= version:
                break
            changes.update(touched)
        return MetadataDelta(version, image, frozenset(changes), is_complete=True)


# What a broker does about it


class BecomeLeader(NamedTuple):
    """Lead in `state.leader_epoch`; where that epoch is led already, take over the new ISR."""

    partition_id: PartitionId
    state: PartitionState


class BecomeFollower(NamedTuple):
    """Follow `state.leader` in `state.leader_epoch`; NO_BROKER: stop leading, and wait."""

    partition_id: PartitionId
    state: PartitionState


class LetGo(NamedTuple):
    """The partition was deleted, or this broker is not among its replicas any more."""

    partition_id: PartitionId


Duty: TypeAlias = BecomeLeader | BecomeFollower | LetGo


def duties(delta: MetadataDelta, broker_id: int, before: MetadataImage) -> tuple[Duty, ...]:
    """What `broker_id` must do to get from `before` to `delta.image`, in the order of partitions.

    `before` is the image that it has acted upon. An older or equal image asks for nothing: it
    can only come from a node that lags behind. A process acts upon no image that does not know
    its own registration.
    """
    if delta.image.version <= before.version:
        return ()
    found = [
        _duty(key, broker_id, before=before, after=delta.image)
        for key in sorted(_partitions_to_look_at(delta, broker_id, before))
    ]
    return tuple(duty for duty in found if duty is not None)


def duty_of(image: MetadataImage, key: PartitionId, broker_id: int) -> Duty | None:
    """What `image` alone asks of it with one partition; None: it is not hosted there."""
    return _duty(key, broker_id, before=EMPTY_IMAGE, after=image)


def _partitions_to_look_at(
    delta: MetadataDelta, broker_id: int, before: MetadataImage
) -> Iterable[PartitionId]:
    if delta.is_complete and delta.since <= before.version:
        return {key for kind, key in delta.changes if kind is ChangeKind.PARTITION}  # type: ignore[misc]  # Change.key of that kind
    return {*before.hosted_by(broker_id), *delta.image.hosted_by(broker_id)}


def _duty(
    key: PartitionId, broker_id: int, *, before: MetadataImage, after: MetadataImage
) -> Duty | None:
    was, now = before.partitions.get(key), after.partitions.get(key)
    was_here = was is not None and broker_id in was.replicas
    if now is None or broker_id not in now.replicas:
        return LetGo(key) if was_here else None
    if was_here and _epochs(was) == _epochs(now):
        return None
    if now.leader != broker_id:
        return BecomeFollower(key, now)
    if after.is_unfenced(broker_id):
        return BecomeLeader(key, now)
    # It stands there as the leader from before it was fenced or registered anew: its review comes,
    # with another epoch. In this one it may have appended what it does not remember.
    return BecomeFollower(key, replace(now, leader=NO_BROKER))


def _epochs(state: PartitionState | None) -> tuple[int, int] | None:
    return None if state is None else (state.leader_epoch, state.partition_epoch)
