"""Phases of a consumer group (Empty, PreparingRebalance, ...), its effects, limits and member ids.

Empty ──join──> PreparingRebalance ──all have joined──> CompletingRebalance ──plan saved──> Stable
  ^                  │      ^                                  │                              │
  └──no members──────┘      └──────────a member comes, leaves or changes──────────────────────┘
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import InvalidSessionTimeout
from raftmq.metadata.apply.limits import MEMBERS_MAX
from raftmq.metadata.commands import SaveGroup
from raftmq.wire.messages.cluster import COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Hashable

    from raftmq.metadata.commands import CrashedMember, GroupMemberRecord
    from raftmq.wire.bodies import Body
    from raftmq.wire.messages.groups import Key


# -- Effects --------------------------------------------------------------------------------------
# What the rules of a group ask the coordinator to do. Data only.


Token: TypeAlias = "Hashable"  # names a request that waits for its answer; no two are the same


class AnswerRequest(NamedTuple):
    """Answer the request under `token`. Each token is answered once, unless it was forgotten."""

    token: Token
    body: Body  # the reply that belongs to the request


class Crash(NamedTuple):
    """A member whose session has ended, and what it may have worked on, by name and number."""

    member_id: str
    held: frozenset[Key]


class SavePlan(NamedTuple):
    """Save this in the metadata, after everything that the group asked for before.

    Owed in return, in the order of the numbers: `on_saved` once it is saved, `on_save_failed` once
    it certainly never will be; neither if the slot is lost, then `abandon`.
    """

    number: int  # counts up during the life of one group object
    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[GroupMemberRecord, ...]  # none: the group is empty
    tags: str
    crashes: tuple[Crash, ...] = ()  # since the save before

    def command(
        self, *, slot_epoch: int, changed_at_ms: int, crashed: tuple[CrashedMember, ...] = ()
    ) -> SaveGroup:
        return SaveGroup(
            slot_epoch=slot_epoch,
            group=self.group,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self.members,
            changed_at_ms=changed_at_ms,
            tags=self.tags,
            crashed=crashed,
        )


GroupEffect: TypeAlias = AnswerRequest | SavePlan


# -- Phases ---------------------------------------------------------------------------------------


class Phase(StrEnum):
    """Empty: no members. Preparing: members join. Completing: the leader makes the plan. Stable:
    the plan is saved, and members have their assignments.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


# -- Limits ---------------------------------------------------------------------------------------
# How large a group may be, and how long its members may be silent. Pure.


# Of all members, each with its longest: the other half of a command is left for the assignments.
SUBSCRIPTION_BYTES_MAX = COMMAND_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Attributes:
    session_timeout_ms_min, session_timeout_ms_max: what members may ask for.
    initial_rebalance_delay_ms: how long the first members of an empty group wait for others.
    size_max: members of one group.
    """

    session_timeout_ms_min: int = 6_000  # a few heartbeats; shorter, a pause looks like a death
    session_timeout_ms_max: int = 1_800_000  # half an hour that a dead member's partitions lie idle
    initial_rebalance_delay_ms: int = 3_000  # for programs that are started together
    size_max: int = MEMBERS_MAX

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max, "no timeout fits"
        assert self.initial_rebalance_delay_ms >= 0, "a delay is not negative"
        assert 1 <= self.size_max <= MEMBERS_MAX, "the metadata would refuse to keep the group"

    def check_session_timeout(self, group: str, timeout_ms: int) -> None:
        """Raises InvalidSessionTimeout."""
        least, most = self.session_timeout_ms_min, self.session_timeout_ms_max
        if not least <= timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"group {group}: session timeout {timeout_ms} ms, allowed are {least} to {most}"
            )


# -- Member ids -----------------------------------------------------------------------------------
# Member ids that show which of two was given out later.
#
# A coordinator may die before the id of a static member's new process is saved. The next
# coordinator knows the process before it: it must fence processes that came earlier than that one,
# and never one that came later, which only has to join again. So an id begins with the slot's epoch
# and the time (decision 0025).


# Epoch and time of `MemberIds.new`; older ids match nothing.
_ID = re.compile(r"([0-9a-f]{8,})-([0-9a-f]{16,})-", re.ASCII)
NO_EPOCH = 0  # of a slot: it is unknown when the id was given out
MICROSECONDS = 1_000_000  # in a second: fine enough to order two processes


class MemberIds:
    """Ids of one group, under one epoch of its slot."""

    def __init__(self, slot_epoch: int) -> None:
        self._slot_epoch, self._number = slot_epoch, 0

    def new(self, name: str, now: float) -> str:
        """`name` was never used before."""
        # Strictly rising, also where the clock stands or this process gives out several at once.
        self._number = max(self._number + 1, round(now * MICROSECONDS))
        return f"{self._slot_epoch:08x}-{self._number:016x}-{name}"


def is_later(member_id: str, other: str) -> bool:
    """Whether `member_id` was certainly given out after `other`."""
    own, its = _order(member_id), _order(other)
    return own is not None and its is not None and own > its


def _order(member_id: str) -> tuple[int, int] | None:
    match = _ID.match(member_id)
    # An id of an older version, or one that a client made up: no order.
    if match is None:
        return None
    slot_epoch, number = int(match[1], 16), int(match[2], 16)
    return None if slot_epoch == NO_EPOCH else (slot_epoch, number)


# -- Group outbox ---------------------------------------------------------------------------------
# Effects of a group, collected while it handles one input.
#
# Owns the numbers of its saves, and knows how many of them have no outcome yet.


class GroupOutbox:
    """Attributes:
    newest_save: number of the last one; outcomes of earlier ones do not matter any more.
    """

    def __init__(self, group: str) -> None:
        self.newest_save = 0
        self._group, self._settled = group, 0
        self._effects: list[GroupEffect] = []
        self._crashes: list[Crash] = []

    @property
    def is_saving(self) -> bool:
        return self._settled < self.newest_save

    def answer(self, token: Token, body: Body) -> None:
        self._effects.append(AnswerRequest(token, body))

    def note_crash(self, crash: Crash) -> None:
        """It goes with the next save, once: in the same command in which the member is gone, so
        that no coordinator counts it again. If that is refused, it is not counted.
        """
        self._crashes.append(crash)

    def save(
        self,
        *,
        generation: int,
        protocol_type: str,
        protocol: str,
        leader: str,
        members: tuple[GroupMemberRecord, ...],
        tags: str,
    ) -> None:
        self.newest_save += 1
        save = SavePlan(
            self.newest_save,
            self._group,
            generation,
            protocol_type,
            protocol,
            leader,
            members,
            tags,
            tuple(self._crashes),
        )
        self._crashes.clear()
        self._effects.append(save)

    def settle(self, save: SavePlan) -> None:
        assert save.number == self._settled + 1, f"{save.number} is settled out of its turn"
        self._settled = save.number

    def take(self) -> list[GroupEffect]:
        taken, self._effects = self._effects, []
        return taken


# -- Settings -------------------------------------------------------------------------------------
# What a broker is told about coordinating groups: values only (docs/CONFIGURATION.md).


OFFSETS_RETENTION_MS = 604_800_000  # a week, as in Kafka


@dataclass(frozen=True)
class CoordinatorSettings:
    """Attributes:
    rules: of every group.
    offsets_retention_ms: how long the offsets of a group without members are kept.
    """

    rules: GroupSettings = field(default_factory=GroupSettings)
    offsets_retention_ms: int = OFFSETS_RETENTION_MS
