"""Effects of the controller (proposals, probes), its in-flight proposals, and its work budget.

Owns no decision. The caller that performs an effect must always report its outcome, with
`on_result` or `on_probe`: until then the controller asks for nothing else about the same subject
(a broker, a slot, a partition).
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from raftmq.metadata.commands import (
    AssignSlot,
    BeginControlledShutdown,
    ElectLeader,
    FenceBroker,
    FinishReview,
    PartitionId,
    ReassignPartition,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Proposal: TypeAlias = (
    FenceBroker | UnfenceBroker | BeginControlledShutdown | ReviewPartitions | FinishReview
    | AssignSlot | ElectLeader | SetFeatureLevel | ReassignPartition
)  # fmt: skip


class ProposeCommand(NamedTuple):
    """Have `command` committed. It carries the epochs that were seen, so a repetition is safe."""

    command: Proposal


class ProbeBroker(NamedTuple):
    """Open a connection to the broker and close it, not before `not_before` (in seconds)."""

    broker_id: int
    broker_epoch: int
    not_before: float


class ProbeOutcome(Enum):
    """REFUSED: no process listens on the port; TIMED_OUT proves nothing about the process."""

    ACCEPTED = auto()
    REFUSED = auto()
    TIMED_OUT = auto()


Effect: TypeAlias = ProposeCommand | ProbeBroker


# -- Looks ----------------------------------------------------------------------------------------
# The budget of partitions that one call may visit, and iterators that continue in the next call.
#
# There may be 100,000 partitions, and the controller shares an event loop with the broker: a scan
# of all of them is spread over many calls. The maps are immutable, so a walk visits each key of its
# image once even if the metadata changes meanwhile; the value is read from the newest image.


# Partitions visited in one call: a few milliseconds of the event loop. At a tenth, a scan of
# 100,000 partitions would take 20 s of ticks instead of 2 s.
LOOKS_MAX = 5_000

T = TypeVar("T")


class ScanBudget:
    """How many partitions may still be visited in this call."""

    def __init__(self, left: int = LOOKS_MAX) -> None:
        self.left = left


class ResumableScan(Generic[T]):
    """An iteration that continues where the previous call stopped.

    Attributes:
        is_over: whether the end was reached.
    """

    def __init__(self, keys: Iterable[T]) -> None:
        self._keys = iter(keys)
        self.is_over = False

    def go(self, looks: ScanBudget) -> Iterator[T]:
        """The next keys, until the budget is used up or the caller stops iterating."""
        for key in islice(self._keys, looks.left):
            looks.left -= 1
            yield key
        if looks.left > 0:  # the keys ended before the budget did
            self.is_over = True


# -- Under way ------------------------------------------------------------------------------------
# Proposals of the controller in flight, one for each subject.
#
# A subject is a broker, a slot, a partition, a feature level. So a controller never has two
# commands in flight that depend on each other, and one that failed backs off before it is tried
# again.
#
# Invariant: every proposal ends with `on_result`; until then its subject is taken.


# Back-off of a subject after a failed proposal: a few ticks, so that a quorum without a majority is
# not flooded, and a fence is not late either.
RETRY_SECONDS = 0.5
FORBIDDEN_SECONDS = 10.0  # of one that the rules of the metadata do not allow, such as a move

Subject: TypeAlias = tuple[str, int | PartitionId]


class InFlightProposals:
    """The in-flight proposals of one term, by subject."""

    def __init__(self) -> None:
        self._proposals: dict[Subject, Proposal] = {}
        self._rests_until: dict[Subject, float] = {}

    def is_free(self, subject: Subject, *, now: float) -> bool:
        return subject not in self._proposals and self._rests_until.get(subject, now) <= now

    def propose(self, command: Proposal) -> ProposeCommand:
        subject = subject_of(command)
        assert subject not in self._proposals, f"two proposals about {subject}"
        self._proposals[subject] = command
        return ProposeCommand(command)

    def on_result(
        self, command: Proposal, *, succeeded: bool, now: float, rest: float = RETRY_SECONDS
    ) -> None:
        subject = subject_of(command)
        assert self._proposals.get(subject) == command, f"not proposed: {command}"
        del self._proposals[subject]
        if not succeeded:
            self._rests_until[subject] = now + rest

    def forget_rests(self, *, now: float) -> None:
        """Drop back-offs that are over: subjects such as partitions come and go without end."""
        self._rests_until = {key: end for key, end in self._rests_until.items() if end > now}

    def slots(self) -> list[AssignSlot]:
        return [it for it in self._proposals.values() if isinstance(it, AssignSlot)]

    def has_fence(self) -> bool:
        return any(isinstance(it, FenceBroker) for it in self._proposals.values())

    def moves(self) -> list[ReassignPartition]:
        return [it for it in self._proposals.values() if isinstance(it, ReassignPartition)]

    def elections(self) -> int:
        return sum(isinstance(it, ElectLeader) for it in self._proposals.values())


def subject_of(command: Proposal) -> Subject:
    match command:
        case AssignSlot():
            return "slot", command.slot
        case ElectLeader() | ReassignPartition():
            return "partition", PartitionId(command.topic_id, command.partition)
        case SetFeatureLevel():
            return "feature level", command.level
        case _:  # all other commands are about a broker
            return "broker", command.broker_id
