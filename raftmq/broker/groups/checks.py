"""Checks of group requests before anything is done: names, emptiness, room, late deletions.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.errors import InvalidGroupId, InvalidUpdateVersion, NonEmptyGroup, QuorumBusy
from raftmq.model import GROUP_CHARS_MAX
from raftmq.wire.bodies import clip_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.coordinator import OwnedSlot
    from raftmq.errors import RaftmqError
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import MetadataImage

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
