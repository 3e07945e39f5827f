"""Requests that need a feature level: the refusal below it says which nodes are in the way.

Pure. (decision 0024)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import NotController, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.commands import FeatureLevel
    from raftmq.metadata.image import MetadataImage


def check_level(
    image: MetadataImage, level: FeatureLevel, *, voters: Collection[int], what: str
) -> None:
    """`what` is not done below `level`, as nodes of an earlier version could not follow.

    Raises:
        NotController: all nodes know the level, and the controller raises it in a moment.
        UnsupportedVersion: some node does not.
    """
    if image.feature_level >= level:
        return
    older = sorted(b.broker_id for b in image.brokers.values() if b.feature_level_max < level)
    unseen = sorted(set(voters) - set(image.brokers))
    if not (older or unseen):  # all can, and the controller has not raised the level yet
        raise NotController(
            f"{what} needs feature level {level.value}, here it is {image.feature_level}, and all"
            " nodes know it: ask again, the controller raises it in a moment"
        )
    way_out = (
        f"upgrade brokers {older}; one that is gone for good counts, too: start a node of today's"
        " version under its id"
        if older
        else f"voters {unseen} have not registered yet: start them"
    )
    raise UnsupportedVersion(
        f"{what} needs feature level {level.value}, which every voter and every broker has to know"
        f" (raftmq cluster info shows the feature level): {way_out}"
    )
