"""How large a group may be, and for how long its members may be silent. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.metadata.apply.limits import MEMBERS_MAX
from raftmq.metadata.commands import COMMAND_BYTES_MAX

# Of all members, each with its longest: with as much again for the plan it fits into one command.
SUBSCRIPTION_BYTES_MAX = COMMAND_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Attributes:
    session_timeout_ms_min, session_timeout_ms_max: what members may ask for.
    initial_rebalance_delay_ms: how long the first members of an empty group wait for others.
    size_max: members of one group.
    """

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = MEMBERS_MAX

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max, "no timeout fits"
        assert self.initial_rebalance_delay_ms >= 0, "nobody can have waited before now"
        assert 1 <= self.size_max <= MEMBERS_MAX, "the metadata would refuse to keep the group"
