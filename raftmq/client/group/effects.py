"""Effects that the rules of a group member return: requests, assignments, revocations. Data only.

They must be carried out in the order in which they are returned. Partitions are pairs of a topic's
name and a number, sorted. Also the program's `Rebalance`, what is committed by which member, and
the states of a member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup

    GroupRequest: TypeAlias = JoinGroup | SyncGroup | Heartbeat | LeaveGroup


@dataclass(frozen=True, slots=True)
class AskCoordinator:
    """Send a request to the coordinator, and pass the answer to `GroupMembership.on_answer` with
    `token`.

    All requests go to one coordinator, over one connection and in order, until ForgetCoordinator:
    an answer to a later one shows that the earlier ones have arrived.

    Attributes:
        deadline: after it no answer is waited for.
    """

    token: int
    request: GroupRequest
    deadline: float


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Look up the coordinator before the next request; requests in flight may be cancelled."""

    error: RaftmqError


@dataclass(frozen=True, slots=True)
class WatchTopics:
    """The topics whose partition counts the member needs from now on: its own, and those of the
    members for which it plans. `GroupMembership.on_metadata` takes them as soon as known, and
    whenever they change.
    """

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """A rebalance is over. Read these, too, from the group's committed offsets.

    Comes with each completed rebalance, so there may be none; partitions that are not named stay.
    """

    partitions: tuple[Key, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Hand out nothing more of these, wait until what was handed out is finished, and commit it;
    then call `GroupMembership.on_revoked` with `token`.

    A later one names everything that is being revoked by then, and replaces this one.

    Attributes:
        deadline: from then on another member may own them, and they are Lost.
    """

    token: int
    partitions: tuple[Key, ...]
    deadline: float


class LossCause(Enum):
    """NOT_ASKED, NOT_FINISHED: the program took too long to ask for more records, or to finish
    those of revoked partitions. OTHER: any other cause.
    """

    NOT_ASKED = auto()
    NOT_FINISHED = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Lost:
    """Other members may read these already: hand out nothing more of them, commit nothing. A
    revocation of them is not waited for any longer.

    Attributes:
        cause: for the program's error message.
    """

    partitions: tuple[Key, ...]
    cause: LossCause = field(default=LossCause.OTHER, compare=False)


@dataclass(frozen=True, slots=True)
class Left:
    """What `GroupMembership.leave` has begun is done: nothing follows."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The membership has ended with an error that no repetition resolves: nothing follows.

    A LeaveGroup sent right before is a courtesy: its answer is not waited for.
    """

    error: RaftmqError


Effect: TypeAlias = (
    AskCoordinator | ForgetCoordinator | WatchTopics | Assign | Revoke | Lost | Left | Fail
)


# -- Rebalance ------------------------------------------------------------------------------------
# What `on_rebalance` gets when a member's partitions change. Pure.


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of what a member reads; partitions are pairs of topic and number.

    Attributes:
        revoked: go to other members once the callback returns; finished records were committed
            before it is called, as the commit mode says.
        assigned: are read from now on.
        lost: other members may read them already: the member was silent for too long, or was
            fenced. Records finished since its last commit are handed out again.
        generation: of the group, as this member knows it.
    """

    revoked: tuple[tuple[str, int], ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    generation: int = -1


OnRebalance: TypeAlias = "Callable[[Rebalance], Awaitable[None] | None]"


# -- Commits --------------------------------------------------------------------------------------
# What is committed, and by which member.


class Position(NamedTuple):
    """Offset of the next record; `leader_epoch` of the record before, -1: not known."""

    topic_id: bytes
    offset: int
    leader_epoch: int = ABSENT


class CommitIdentity(NamedTuple):
    """Whose commit it is. `is_member` False: a program with `assign`, which may commit only while
    the group has no members.
    """

    member_id: str = ""
    generation: int = ABSENT
    instance_id: str | None = None
    is_member: bool = True


# -- States ---------------------------------------------------------------------------------------
# The states of a group member.


class State(Enum):
    """OUTSIDE: no member. JOINING, SYNCING: a rebalance is under way; it waits for the other
    members, or for the plan. STABLE: it reads. REVOKING: it reads, and the program finishes records
    of partitions that it gives up. LEAVING: LeaveGroup is in flight. FENCED: ended with an error.
    """

    OUTSIDE = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    REVOKING = auto()
    LEAVING = auto()
    FENCED = auto()
