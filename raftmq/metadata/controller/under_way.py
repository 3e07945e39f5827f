"""What a controller has proposed and not heard of since.

Owns one place for each subject: a broker, a slot, a partition, a feature level. So a controller
never has two commands under way that depend on each other, and one that fails is not tried again at
once.

Invariant: every proposal ends with `on_result`; until then its subject is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.metadata.commands import (
    AssignSlot,
    ElectLeader,
    FenceBroker,
    PartitionId,
    SetFeatureLevel,
)
from raftmq.metadata.controller.effects import Propose

if TYPE_CHECKING:
    from raftmq.metadata.controller.effects import Proposal

RETRY_SECONDS = 0.5  # a subject rests for so long after a proposal that failed

Subject: TypeAlias = tuple[str, int | PartitionId]


class UnderWay:
    """The proposals of one term, by subject."""

    def __init__(self) -> None:
        self._proposals: dict[Subject, Proposal] = {}
        self._rests_until: dict[Subject, float] = {}

    def is_free(self, subject: Subject, *, now: float) -> bool:
        return subject not in self._proposals and self._rests_until.get(subject, now) <= now

    def propose(self, command: Proposal) -> Propose:
        subject = subject_of(command)
        assert subject not in self._proposals, f"two proposals about {subject}"
        self._proposals[subject] = command
        return Propose(command)

    def on_result(self, command: Proposal, *, succeeded: bool, now: float) -> None:
        subject = subject_of(command)
        assert self._proposals.get(subject) == command, f"not proposed: {command}"
        del self._proposals[subject]
        if not succeeded:
            self._rests_until[subject] = now + RETRY_SECONDS

    def forget_rests(self, *, now: float) -> None:
        """Drop what is over, so that nothing piles up."""
        self._rests_until = {key: end for key, end in self._rests_until.items() if end > now}

    def slots(self) -> list[AssignSlot]:
        return [it for it in self._proposals.values() if isinstance(it, AssignSlot)]

    def has_fence(self) -> bool:
        return any(isinstance(it, FenceBroker) for it in self._proposals.values())

    def elections(self) -> int:
        return sum(isinstance(it, ElectLeader) for it in self._proposals.values())


def subject_of(command: Proposal) -> Subject:
    match command:
        case AssignSlot():
            return "slot", command.slot
        case ElectLeader():
            return "partition", PartitionId(command.topic_id, command.partition)
        case SetFeatureLevel():
            return "feature level", command.level
        case _:
            return "broker", command.broker_id
