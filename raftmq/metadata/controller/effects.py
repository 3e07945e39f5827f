"""What a controller wants done: proposals for the quorum, and probes of brokers.

Owns these words only. Whoever carries out an effect tells the controller how it ended, always,
with `on_result` or `on_probe`: until then it asks for nothing else about the same subject.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from raftmq.metadata.commands import (
    AssignSlot,
    BeginControlledShutdown,
    ElectLeader,
    FenceBroker,
    FinishReview,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
)

Proposal: TypeAlias = (
    FenceBroker | UnfenceBroker | BeginControlledShutdown | ReviewPartitions | FinishReview
    | AssignSlot | ElectLeader | SetFeatureLevel
)  # fmt: skip


class Propose(NamedTuple):
    """Have `command` committed. It carries the epochs that were seen: twice is as good as once."""

    command: Proposal


class ProbeBroker(NamedTuple):
    """Open a connection to the broker and close it, not before `not_before` (in seconds)."""

    broker_id: int
    broker_epoch: int
    not_before: float


class ProbeOutcome(Enum):
    """REFUSED says that nobody listens there; TIMED_OUT is silence, and says nothing."""

    ACCEPTED = auto()
    REFUSED = auto()
    TIMED_OUT = auto()


Effect: TypeAlias = Propose | ProbeBroker
