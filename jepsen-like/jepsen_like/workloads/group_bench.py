"""What the tasks of a groups run share, beside what senders share: progress, clusters of members.

Owns how far each group has come. Nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from jepsen_like.workloads.witness import WitnessedCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.workloads.witness import Notes
    from raftmq.client.network.network import AnyioNetwork


class Progress:
    """The highest positions that members had, by group and key."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], int] = {}

    def on_position(self, group: str, key: str, position: int) -> None:
        known = self._positions.get((group, key), 0)
        self._positions[group, key] = max(known, position)

    def behind(self, group: str, ends: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """Keys that the group has not read to their ends; with where it is, and the end."""
        at = {key: self._positions.get((group, key), 0) for key in ends}
        return [(key, at[key], end) for key, end in ends.items() if at[key] < end]


@dataclass(frozen=True, kw_only=True)
class GroupBench:
    """Attributes:
    network: of the machine of that name; None: of this one.
    """

    bootstrap: str | Sequence[str]
    recorder: Recorder
    random: Random
    notes: Notes
    progress: Progress = field(default_factory=Progress)
    network: Callable[[str], AnyioNetwork] | None = None

    def new_cluster(self, name: str) -> WitnessedCluster:
        """With connections of its own."""
        return WitnessedCluster(
            self.bootstrap,
            self.notes,
            name,
            random=Random(self.random.getrandbits(64)),
            network=None if self.network is None else self.network(name),
        )
