"""Crashes of members as the metadata count them: by topic id, bounded, from a feature level on.

Pure. What a crash counts for is decided by `metadata/apply/crashes.py`.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from immutables import Map

from raftmq.metadata.apply.limits import CRASHED_PARTITIONS_MAX
from raftmq.metadata.commands import CrashedMember, FeatureLevel, PartitionId, PartitionsHeld
from raftmq.model import ACCIDENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.phases import Crash
    from raftmq.metadata.image import CommittedOffset, MetadataImage

NO_OFFSETS: Map[PartitionId, CommittedOffset] = Map()


def counts_crashes(image: MetadataImage) -> bool:
    """Whether all nodes know how to: else they would come to different images."""
    return image.feature_level >= FeatureLevel.SCHEDULED


def crashed_members(
    group: str, crashes: Iterable[Crash], image: MetadataImage
) -> tuple[CrashedMember, ...]:
    """Those with partitions that exist. Of more partitions than a command may name, the first are
    those whose record was handled alone, then those whose count has begun, and goes on.
    """
    if not counts_crashes(image):
        return ()
    offsets = image.offsets.get(group, NO_OFFSETS)
    found = []
    for number, crash in enumerate(crashes):
        for topic, partition in sorted(crash.held):
            topic_id = image.topic_ids.get(topic)
            if topic_id is None or PartitionId(topic_id, partition) not in image.partitions:
                continue
            urgency = _urgency(offsets.get(PartitionId(topic_id, partition)), crash.member_id)
            found.append((urgency, number, crash.member_id, topic_id, partition))
    found.sort(key=itemgetter(0))
    held: dict[str, dict[bytes, list[int]]] = {}
    for _, _, member_id, topic_id, partition in sorted(
        found[:CRASHED_PARTITIONS_MAX], key=itemgetter(1)
    ):
        held.setdefault(member_id, {}).setdefault(topic_id, []).append(partition)
    return tuple(
        CrashedMember(
            member_id, tuple(PartitionsHeld(one, tuple(numbers)) for one, numbers in parts.items())
        )
        for member_id, parts in held.items()
    )


def _urgency(there: CommittedOffset | None, member_id: str) -> int:
    if there is None or there.crashes is None:
        return 2
    if there.crashes.alone_by == member_id:
        return 0
    return 1 if there.crashes.count < ACCIDENTS_MAX else 3  # one crash more changes nothing there
