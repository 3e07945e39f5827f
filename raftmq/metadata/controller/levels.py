"""The feature level: raised by the controller itself, as soon as every node knows the next one.

Owns that choice (docs/decisions/0024). Voters are no part of the image, so they are handed in: each
registers as a broker, too, and says then what it knows. Whoever knows less than the level that was
reached can neither register nor go past the command that raised it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.commands import SUPPORTED_LEVEL, SetFeatureLevel

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.image import MetadataImage


def next_level(image: MetadataImage, voters: Collection[int]) -> SetFeatureLevel | None:
    """What to propose; one level after the other."""
    now, brokers = image.feature_level, image.brokers
    level = now + 1
    if now >= SUPPORTED_LEVEL or not brokers or any(voter not in brokers for voter in voters):
        return None
    if all(b.feature_level_min <= level <= b.feature_level_max for b in brokers.values()):
        return SetFeatureLevel(now, level)
    return None
