"""How far a group is with dealing out its partitions: the words that users see.

Empty ──join──> PreparingRebalance ──all have joined──> CompletingRebalance ──plan saved──> Stable
  ^                  │      ^                                  │                              │
  └──nobody left─────┘      └──────────somebody comes, goes or changes────────────────────────┘
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Empty: no members. Preparing: members join. Completing: the leader plans. Stable: all know
    what is theirs.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
