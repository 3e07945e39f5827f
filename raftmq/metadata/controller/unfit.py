"""Brokers that live and must not rule: their disk is frozen, or their metadata stands still.

Owns who is fenced for that. It takes somebody else who is fit: else all would stop. For frozen
disks it is one broker at a time, and none without which a partition that it hosts would be below
min ISR: two slow disks of three are better than one disk.

A partition that the broker holds alone does not count: it is stuck either way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from raftmq.config import min_isr_in
from raftmq.metadata.controller.looks import Walk
from raftmq.metadata.election import min_isr_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.controller.looks import Looks
    from raftmq.metadata.image import MetadataImage

BEHIND_SECONDS = 10.0  # a broker that does not know what was committed by then stands still


class Versions:
    """Which version of the metadata everybody should know by now."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # when a version was the newest, in order
        self._expected = -1

    def note(self, version: int, *, now: float) -> None:
        """Called at each tick, with the newest version."""
        while self._seen and self._seen[0][0] <= now - BEHIND_SECONDS:
            self._expected = self._seen.popleft()[1]
        self._seen.append((now, version))

    def on_pause(self, seconds: float) -> None:
        """The controller did not listen for so long: nobody could tell what he knows."""
        self._seen = deque((when + seconds, version) for when, version in self._seen)

    @property
    def expected(self) -> int:
        """-1 before the controller is long enough in office."""
        return self._expected


class FrozenDisks:
    """Which one of the brokers whose disks are frozen may be fenced."""

    def __init__(self) -> None:
        self._checks: dict[int, _Check] = {}

    def choose(self, image: MetadataImage, frozen: Iterable[int], looks: Looks) -> int | None:
        """The first without which no partition is below min ISR; None: nobody, or not known yet."""
        frozen = sorted(frozen)
        self._checks = {
            broker_id: self._checks.get(broker_id) or _Check(image, broker_id)
            for broker_id in frozen
        }
        for broker_id in frozen:
            is_needed = self._checks[broker_id].is_needed(image, looks)
            if is_needed is None:
                return None
            if not is_needed:
                del self._checks[broker_id]
                return broker_id
        return None


class _Check:
    """A walk through what a broker hosts, which stops where the broker is needed."""

    def __init__(self, image: MetadataImage, broker_id: int) -> None:
        self._broker_id = broker_id
        self._walk: Walk[PartitionId] = Walk(image.hosted_by(broker_id))
        self._stopped_at: PartitionId | None = None

    def is_needed(self, image: MetadataImage, looks: Looks) -> bool | None:
        """Whether a partition would be below min ISR without it; None: not known yet."""
        if self._stopped_at is not None and self._is_needed_for(image, self._stopped_at):
            return True
        self._stopped_at = None
        for key in self._walk.go(looks):
            if self._is_needed_for(image, key):
                self._stopped_at = key
                return True
        return False if self._walk.is_over else None

    def _is_needed_for(self, image: MetadataImage, key: PartitionId) -> bool:
        partition = image.partitions.get(key)
        if partition is None or self._broker_id not in partition.isr:
            return False
        # Who is fenced or stops leaves the ISR soon.
        others = sum(image.is_active(b) for b in partition.isr if b != self._broker_id)
        topic = image.topics.get(key.topic_id)
        min_isr = min_isr_of(partition, min_isr_in(topic.configs if topic else {}))
        return others > 0 and others + 1 == min_isr
