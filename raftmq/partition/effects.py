"""What the rules of a replica ask their surroundings to do. Data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from raftmq.partition.assignment import IsrMember


class HighWatermarkRose(NamedTuple):
    """Everything before `high_watermark` is held by the in-sync set: it may be read."""

    high_watermark: int


class ProposeIsr(NamedTuple):
    """Ask the controller for another in-sync set: a compare-and-set on both epochs."""

    isr: tuple[IsrMember, ...]  # in the order of the replicas
    leader_epoch: int
    partition_epoch: int


class Fetch(NamedTuple):
    """Ask the leader for what comes after the own log. `token` comes back with the answer."""

    token: int
    fetch_offset: int
    last_fetched_epoch: int


class Truncate(NamedTuple):
    """Everything from `offset` on is not in the leader's log: forget it."""

    offset: int


class Trim(NamedTuple):
    """Everything before `offset` was deleted: forget it."""

    offset: int


class StartOver(NamedTuple):
    """Nothing of the log counts any more: begin a new one at `offset`."""

    offset: int


LeaderEffect: TypeAlias = HighWatermarkRose | ProposeIsr
