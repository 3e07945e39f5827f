"""The roles of nodes (leaders, controller, coordinators) as last observed, for the nemesis.

Owns one snapshot, which is replaced as a whole, so that any thread may read it. Sends no requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jepsen_like.workloads.keys import key_of
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.wire.messages.metadata import MetadataReply, PartitionMetadata


@dataclass(frozen=True)
class Snapshot:
    """Attributes:
    partition_count, led_count, whole_count: all, those that have a leader, and those of which
        every replica is in sync and on a broker that is there.
    """

    leaders: Mapping[str, int] = field(default_factory=dict)
    controller: int | None = None
    partition_count: int = 0
    led_count: int = 0
    whole_count: int = 0

    @property
    def is_whole(self) -> bool:
        return self.whole_count == self.partition_count

    @property
    def told(self) -> dict[str, int]:
        """As the history says it."""
        return {
            "partitions": self.partition_count,
            "led": self.led_count,
            "whole": self.whole_count,
        }


def snapshot_of(reply: MetadataReply) -> Snapshot:
    """`reply` tells of all topics."""
    found = [(topic.name, one) for topic in reply.topics for one in topic.partitions]
    leaders = {
        key_of(topic, one.partition): one.leader for topic, one in found if one.leader != ABSENT
    }
    return Snapshot(
        leaders,
        None if reply.controller_id == ABSENT else reply.controller_id,
        partition_count=len(found),
        led_count=len(leaders),
        whole_count=sum(_is_whole(one) for _, one in found),
    )


def _is_whole(partition: PartitionMetadata) -> bool:
    missing = set(partition.replicas) - set(partition.isr)
    return partition.leader != ABSENT and not missing and not partition.offline


class LiveView:
    """A `View` for the nemesis: written by the watcher's task, read by any thread."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._coordinators: dict[str, int] = {}
        self._is_doubted = True

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot, self._is_doubted = snapshot, False

    def show_coordinators(self, coordinators: Mapping[str, int]) -> None:
        """By group."""
        self._coordinators = dict(coordinators)

    def doubt(self) -> None:
        """No broker has answered."""
        self._is_doubted = True

    def leaders(self) -> dict[str, int]:
        snapshot = self._snapshot
        return {} if snapshot is None else dict(snapshot.leaders)

    def controller(self) -> int | None:
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.controller

    def coordinators(self) -> dict[str, int]:
        return dict(self._coordinators)

    def in_sync(self) -> bool:
        snapshot = self._snapshot
        return snapshot is not None and snapshot.is_whole and not self._is_doubted
