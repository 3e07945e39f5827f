"""Who reads which partition, from what members tell, and what a rebalance has moved.

Pure. Members of several processes tell in any order: what somebody has lost counts only as long as
nobody else has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Owned(NamedTuple):
    """Of one partition. `first_at`: when its owner was handed out a record; None: not yet."""

    member: str
    assigned_at: float
    first_at: float | None = None


class Moved(NamedTuple):
    """What happened since a moment.

    Attributes:
        seconds: from that moment until the last of the partitions that have moved was read.
        partitions: how many have another owner, or the same one anew.
        pauses: of each, seconds from when it was given up to the first record.
    """

    seconds: float
    partitions: int
    pauses: list[float]


class Ownership:
    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._owned: dict[int, Owned] = {}
        self._free_since: dict[int, float] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        member, at = event["member"], event["at"]
        if event["event"] == "record":
            self._on_record(event["partition"], member, at)
            return
        for partition in event["gone"]:
            self._free(partition, member, at)
        for partition in event["assigned"]:
            self._owned[partition] = Owned(member, at)

    def _on_record(self, partition: int, member: str, at: float) -> None:
        owned = self._owned.get(partition)
        if owned is not None and owned.member == member and owned.first_at is None:
            self._owned[partition] = owned._replace(first_at=at)

    def _free(self, partition: int, member: str, at: float) -> None:
        owned = self._owned.get(partition)
        self._free_since[partition] = at
        if owned is not None and owned.member == member:
            del self._owned[partition]

    def of_member(self, member: str) -> list[int]:
        return [partition for partition, one in self._owned.items() if one.member == member]

    def drop(self, member: str, at: float) -> None:
        """It tells nothing any more."""
        for partition in self.of_member(member):
            self._free(partition, member, at)

    @property
    def members(self) -> set[str]:
        """Who has something."""
        return {one.member for one in self._owned.values()}

    @property
    def is_whole(self) -> bool:
        """Each partition is read by somebody, who was handed out a record of it."""
        owned = self._owned.values()
        return len(owned) == self._partitions and all(one.first_at is not None for one in owned)

    def moved_since(self, moment: float) -> Moved:
        """Once it is whole again."""
        assert self.is_whole, f"{len(self._owned)} of {self._partitions} partitions are owned"
        moved = {
            partition: one.first_at
            for partition, one in self._owned.items()
            if one.assigned_at >= moment and one.first_at is not None
        }
        assert moved, "nothing has moved"
        pauses = [at - self._free_since.get(partition, moment) for partition, at in moved.items()]
        return Moved(max(moved.values()) - moment, len(moved), pauses)
