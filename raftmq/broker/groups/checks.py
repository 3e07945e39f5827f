"""Checks of group requests before anything is done: names, emptiness, room, late deletions.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from immutables import Map

from raftmq.errors import InvalidGroupId, InvalidUpdateVersion, NonEmptyGroup, QuorumBusy
from raftmq.metadata.commands import FeatureLevel, SeenOffset
from raftmq.model import GROUP_CHARS_MAX
from raftmq.wire.bodies import clip_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.coordinator import OwnedSlot
    from raftmq.errors import RaftmqError
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import CommittedOffset, MetadataImage

NO_OFFSETS: Map[PartitionId, CommittedOffset] = Map()
SEEN_MAX = 10_000  # offsets that a deletion names, as one command has them
# Limits of what every node of the cluster keeps in memory.
GROUPS_WITH_OFFSETS_MAX = 100_000
OFFSETS_OF_GROUP_MAX = 100_000  # partitions


def check_name(group: str) -> None:
    """Raises InvalidGroupId."""
    if not 1 <= len(group) <= GROUP_CHARS_MAX:
        raise InvalidGroupId(
            f"group name of {len(group)} characters: allowed are 1 to {GROUP_CHARS_MAX}"
        )


def told(error: RaftmqError) -> dict[str, Any]:
    """The fields of a reply body that report the error."""
    return {"error": error.code, "message": clip_message(str(error))}


def check_unchanged(slot: OwnedSlot, group: str, last_change: int) -> None:
    """For a deletion by a client that read the group then. Raises InvalidUpdateVersion."""
    if slot.order.is_changed_since(group, last_change):
        raise InvalidUpdateVersion(
            f"group {group} was changed, or offsets were committed for it, after it was read for"
            " this deletion; nothing was deleted: look again"
        )


def check_memberless(slot: OwnedSlot, group: str) -> None:
    """Raises NonEmptyGroup."""
    hosted = slot.groups.get(group)
    count = 0 if hosted is None else hosted.group.listed().member_count
    if count:  # deleting would take the offsets that members go on from
        raise NonEmptyGroup(f"group {group} has {count} members: have them leave first")


def check_room(image: MetadataImage, group: str, keys: Iterable[PartitionId]) -> None:
    """For a commit of offsets of these partitions. Known ones may always be committed again,
    however many there are. Raises QuorumBusy.
    """
    known = image.offsets.get(group)
    if known is None:  # a group that is new in the metadata
        if len(image.offsets) >= GROUPS_WITH_OFFSETS_MAX:
            raise QuorumBusy(
                f"group {group} is new, and {len(image.offsets)} groups have committed offsets:"
                " delete groups that are not needed any more"
            )
    elif len(known) >= OFFSETS_OF_GROUP_MAX and any(key not in known for key in keys):
        raise QuorumBusy(
            f"group {group} has committed offsets of {len(known)} partitions: delete those that are"
            " not needed any more"
        )


def check_as_read(slot: OwnedSlot, group: str, last_change: int, image: MetadataImage) -> None:
    """As `check_unchanged`, of transactions, which commit past the line of the group. Raises
    InvalidUpdateVersion.
    """
    if image.feature_level < FeatureLevel.TRANSACTIONS:
        return
    if not slot.order.is_as_read(group, last_change, image.offsets.get(group, NO_OFFSETS)):
        raise InvalidUpdateVersion(
            f"group {group}: offsets were committed for it after it was read for this deletion, or"
            " somebody else reads it for one; nothing was deleted: look again"
        )


def seen_offsets(
    image: MetadataImage, name: str, keys: Iterable[PartitionId]
) -> tuple[SeenOffset, ...] | None:
    """What a deletion compares: an offset that a transaction has moved since, past the line of the
    group, stays (decision 0038). None where nodes may not know the field, and would pass over it.
    """
    if image.feature_level < FeatureLevel.TRANSACTIONS:
        return None
    offsets = image.offsets.get(name, NO_OFFSETS)
    found = ((key, offsets[key]) for key in sorted(keys))
    return tuple(SeenOffset(*key, one.offset, one.committed_at_ms) for key, one in found)
