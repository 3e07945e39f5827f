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


class StartOver(NamedTuple):
    """The leader has nothing before `offset` any more: begin a new log there."""

    offset: int


LeaderEffect: TypeAlias = HighWatermarkRose | ProposeIsr
