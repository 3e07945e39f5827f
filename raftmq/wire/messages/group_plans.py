"""Partitions in subscriptions and assignments of groups, which coordinators read, too. Pure.

For brokers these bytes are opaque but for what a member may work on: it is counted if the member
crashes. A format version comes first: an unknown version is not read, as its meaning is not known;
fields that are added at the end are skipped. Partitions of a topic are encoded as the steps from
one to the next, beginning at -1: so they are sorted, none is there twice, and most take one byte.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import ID_MAX, Generation
from raftmq.wire.messages.groups import SUBSCRIPTION_VERSION, Interest, Numbered, TopicName
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable

Key: TypeAlias = tuple[str, int]  # topic and number
Step: TypeAlias = Annotated[int, Meta(ge=1, le=ID_MAX + 1)]
Steps: TypeAlias = dict[TopicName, Annotated[tuple[Step, ...], Meta(min_length=1)]]

ASSIGNMENT_VERSION = 1  # the only one so far; readers refuse others
NOTHING: frozenset[Key] = frozenset()


class Claimed(Interest, frozen=True):
    """A subscription. `owned`: what the member got in `generation`, or has kept of that;
    `is_holding`: it works on it during the rebalance.
    """

    owned: Steps
    generation: Generation
    is_holding: bool


class Dealt(Numbered, frozen=True):
    """The beginning of an assignment."""

    partitions: Steps


def steps_of(partitions: Iterable[Key]) -> Steps:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return {
        topic: tuple([after - before for before, after in pairwise([-1, *numbers])])
        for topic, numbers in by_topic.items()
    }


def partitions_in(steps: Steps, *, what: str) -> frozenset[Key]:
    """Raises RemoteProtocolError, naming `what`: a number that no partition may have."""
    found: set[Key] = set()
    for topic, each in steps.items():
        last = sum(each) - 1
        if last > ID_MAX:
            raise RemoteProtocolError(f"{what}: {topic}-{last} is beyond {topic}-{ID_MAX}")
        found.update([(topic, number - 1) for number in accumulate(each)])
    return frozenset(found)


def held_by_claim(subscription: bytes) -> frozenset[Key]:
    """What a member that joins works on meanwhile; nothing, if it is of another kind of client."""
    try:
        claimed: Claimed = _claimed.decode(subscription)
        if claimed.format_version != SUBSCRIPTION_VERSION or not claimed.is_holding:
            return NOTHING
        return partitions_in(claimed.owned, what="subscription")
    except (ValueError, RemoteProtocolError):  # msgspec's errors are ValueErrors
        return NOTHING


def held_by_assignment(assignment: bytes) -> frozenset[Key]:
    """What a member works on once it has it; nothing, if it is of another kind of client."""
    try:
        dealt: Dealt = _dealt.decode(assignment)
        if dealt.format_version != ASSIGNMENT_VERSION:
            return NOTHING
        return partitions_in(dealt.partitions, what="assignment")
    except (ValueError, RemoteProtocolError):
        return NOTHING


_claimed = Decoder[Claimed](Claimed)
_dealt = Decoder[Dealt](Dealt)
