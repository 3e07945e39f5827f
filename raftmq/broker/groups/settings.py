"""What a broker is told about coordinating groups: values only (docs/CONFIGURATION.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from raftmq.broker.groups.phases import GroupSettings

OFFSETS_RETENTION_MS = 604_800_000


@dataclass(frozen=True)
class CoordinatorSettings:
    """Attributes:
    rules: of every group.
    offsets_retention_ms: how long the offsets of a group without members are kept.
    """

    rules: GroupSettings = field(default_factory=GroupSettings)
    offsets_retention_ms: int = OFFSETS_RETENTION_MS
