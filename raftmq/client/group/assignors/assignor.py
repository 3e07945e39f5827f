"""What an assignor is told, and what it answers. Pure.

An assignor deals out the partitions of topics among the members of a group. It runs at one member,
the leader, and must say the same wherever it runs: from the same input, in whatever order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Key: TypeAlias = tuple[str, int]  # topic and number
Plan: TypeAlias = "Mapping[str, Sequence[Key]]"  # by member id


class Subscribed(NamedTuple):
    """A member, as it describes itself.

    Attributes:
        owned: what it got in `generation`, or has kept of that.
        generation: -1: it owns nothing.
        is_holding: it reads what it owns while the group deals anew; else it has stopped.
        user_data: whatever its program says to an assignor of its own.
        rack: where it runs; empty: not said.
    """

    member_id: str
    topics: frozenset[str]
    owned: frozenset[Key] = frozenset()
    generation: int = ABSENT
    is_holding: bool = False
    instance_id: str | None = None
    user_data: bytes = b""
    rack: str = ""


class Assignor(Protocol):
    """Attributes:
    name: by which the members of a group agree on one.
    is_cooperative: members may go on reading while it deals anew: it gives nobody what another
        one holds.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_cooperative(self) -> bool: ...

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """Deal out all partitions of `partitions`, which says how many each topic has.

        A topic that is subscribed and not named there has none.
        """
        ...


def in_order(members: Iterable[Subscribed]) -> list[Subscribed]:
    """Static members by the names that they keep when they restart, then the others."""
    return sorted(
        members,
        key=lambda one: (one.instance_id is None, one.instance_id or one.member_id, one.member_id),
    )


def subscribers_of(topic: str, members: Iterable[Subscribed]) -> list[Subscribed]:
    """In the order of `members`."""
    return [member for member in members if topic in member.topics]
