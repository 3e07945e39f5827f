"""What a controller wants done: proposals for the quorum, and probes of brokers.

Owns these words only. Whoever carries out an effect tells the controller how it ended, always,
with `on_result` or `on_probe`: until then it asks for nothing else about the same subject.
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
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Proposal: TypeAlias = (
    FenceBroker | UnfenceBroker | BeginControlledShutdown | ReviewPartitions | FinishReview
    | AssignSlot | ElectLeader | SetFeatureLevel
)  # fmt: skip


class ProposeCommand(NamedTuple):
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


Effect: TypeAlias = ProposeCommand | ProbeBroker


# -- Looks ----------------------------------------------------------------------------------------
# Looks at partitions, a bounded number in one call.
#
# Owns the bound. There may be 100,000 partitions, and a controller shares its process with
# everything else: whatever must see all of them walks through the map in many calls. The maps are
# immutable, so a walk sees each key once whatever happens meanwhile; what stands behind the key is
# looked up in the newest image.


LOOKS_MAX = 5_000  # in one call

T = TypeVar("T")


class Looks:
    """How many partitions may still be looked at in this call."""

    def __init__(self, left: int = LOOKS_MAX) -> None:
        self.left = left


class Walk(Generic[T]):
    """Goes on where it stopped in the call before.

    Attributes:
        is_over: whether it was found that nothing is left.
    """

    def __init__(self, keys: Iterable[T]) -> None:
        self._keys = iter(keys)
        self.is_over = False

    def go(self, looks: Looks) -> Iterator[T]:
        """The next ones, as long as looks are left and somebody asks for more."""
        for key in islice(self._keys, looks.left):
            looks.left -= 1
            yield key
        if looks.left > 0:
            self.is_over = True


# -- Under way ------------------------------------------------------------------------------------
# What a controller has proposed and not heard of since.
#
# Owns one place for each subject: a broker, a slot, a partition, a feature level. So a controller
# never has two commands under way that depend on each other, and one that fails is not tried again
# at once.
#
# Invariant: every proposal ends with `on_result`; until then its subject is taken.


RETRY_SECONDS = 0.5  # a subject rests for so long after a proposal that failed

Subject: TypeAlias = tuple[str, int | PartitionId]


class UnderWay:
    """The proposals of one term, by subject."""

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
