"""Crashes of members as the metadata count them: by topic id, bounded, from a feature level on.

Pure. What a crash counts for is decided by `metadata/apply/crashes.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.apply.limits import CRASHED_PARTITIONS_MAX
from raftmq.metadata.commands import CrashedMember, FeatureLevel, PartitionId, PartitionsHeld

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.phases import Crash
    from raftmq.metadata.image import MetadataImage


def counts_crashes(image: MetadataImage) -> bool:
    """Whether all nodes know how to: else they would come to different images."""
    return image.feature_level >= FeatureLevel.SCHEDULED


def crashed_members(crashes: Iterable[Crash], image: MetadataImage) -> tuple[CrashedMember, ...]:
    """Those with partitions that exist. Of more partitions than a command may name, the rest is not
    counted.
    """
    if not counts_crashes(image):
        return ()
    found, room = [], CRASHED_PARTITIONS_MAX
    for crash in crashes:
        held: dict[bytes, list[int]] = {}
        for topic, partition in sorted(crash.held):
            topic_id = image.topic_ids.get(topic)
            if topic_id is None or PartitionId(topic_id, partition) not in image.partitions:
                continue
            if room:
                held.setdefault(topic_id, []).append(partition)
                room -= 1
        if held:
            parts = tuple(PartitionsHeld(one, tuple(numbers)) for one, numbers in held.items())
            found.append(CrashedMember(crash.member_id, parts))
    return tuple(found)
