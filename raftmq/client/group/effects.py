"""What the rules of a member ask their surroundings to do. Data only.

They are to be done in the order in which they are given. Partitions are pairs of a topic's name and
a number, sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup

    GroupRequest: TypeAlias = JoinGroup | SyncGroup | Heartbeat | LeaveGroup
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, slots=True)
class AskCoordinator:
    """Ask the coordinator, and hand what it says to `Membership.on_answer` with `token`.

    All requests go to one coordinator, over one connection and in order, until ForgetCoordinator:
    an answer to a later one shows that the earlier ones have arrived.

    Attributes:
        deadline: nobody waits for an answer any longer.
    """

    token: int
    request: GroupRequest
    deadline: float


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Find out who coordinates before anything is asked again; what was asked may be broken off."""

    error: RaftmqError


@dataclass(frozen=True, slots=True)
class WatchTopics:
    """The topics whose partition counts it needs from now on: its own, and those of the members
    for which it plans. Told to `Membership.on_metadata` as soon as known, and whenever they change.
    """

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assign:
    """A rebalance is over. Read these, too, from where the group has committed.

    Told of each rebalance that is completed, so they may be none; what is not named stays.
    """

    partitions: tuple[Key, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Hand out nothing more of these, see what was handed out finished, and commit it; then call
    `Membership.on_revoked` with `token`.

    A later one says everything that is being revoked by then, and takes the place of this one.

    Attributes:
        deadline: from then on somebody else may have them, and they are Lost.
    """

    token: int
    partitions: tuple[Key, ...]
    deadline: float


class LossCause(Enum):
    """NOT_ASKED, NOT_FINISHED: the program took too long to ask for more, or to finish with what is
    being revoked. OTHER: whatever else.
    """

    NOT_ASKED = auto()
    NOT_FINISHED = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else may read these already: hand out nothing more of them, commit nothing. Whatever
    was being revoked of them is not waited for any longer.

    Attributes:
        cause: to be told to the program.
    """

    partitions: tuple[Key, ...]
    cause: LossCause = field(default=LossCause.OTHER, compare=False)


@dataclass(frozen=True, slots=True)
class Left:
    """What `Membership.leave` has begun is done: nothing follows."""


@dataclass(frozen=True, slots=True)
class Fail:
    """This member is at its end, for a reason that no repetition mends: nothing follows.

    A LeaveGroup asked right before is a courtesy: nobody waits for what is answered.
    """

    error: RaftmqError


Effect: TypeAlias = (
    AskCoordinator | ForgetCoordinator | WatchTopics | Assign | Revoke | Lost | Left | Fail
)


# -- Rebalance ------------------------------------------------------------------------------------
# What a program is told when its partitions change. Pure.


class Rebalance(NamedTuple):
    """One change of what a member reads; partitions are pairs of topic and number.

    Attributes:
        revoked: are given to others once the callback returns; what was done of them is committed,
            as the commit mode says, before it is called.
        assigned: are read from now on.
        lost: belong to others already, perhaps: the member was silent for too long, or was put
            out. What it did of them since its last commit will be done again.
        generation: of the group, as this member knows it.
    """

    revoked: tuple[tuple[str, int], ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    generation: int = -1


OnRebalance: TypeAlias = "Callable[[Rebalance], Awaitable[None] | None]"


# -- States ---------------------------------------------------------------------------------------
# What a member of a group may be doing.


class State(Enum):
    """OUTSIDE: nothing. JOINING, SYNCING: the group deals anew; it waits for the others, or for
    the plan. STABLE: it reads. REVOKING: it reads, and the program finishes what it gives up.
    FENCED: it is at its end.
    """

    OUTSIDE = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    REVOKING = auto()
    LEAVING = auto()
    FENCED = auto()
