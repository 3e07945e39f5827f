"""What the leader of a group knows of the others, and the plan that it makes for them. Pure.

Owns the check that a plan is whole, whoever made it, and with which partition counts it was made:
once they change, the group has to deal anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.assignment import encode_assignment
from raftmq.client.group.assignors.checking import problems_of
from raftmq.client.group.subscription import decode_subscription
from raftmq.errors import InconsistentGroupProtocol, RemoteProtocolError
from raftmq.wire.messages.groups import JoinedMember, MemberAssignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.client.group.assignors.assignor import Assignor, Subscribed


class Leading:
    """Attributes:
    topics: to which anybody subscribes.
    """

    def __init__(self, members: tuple[Subscribed, ...]) -> None:
        self._members = members
        self.topics = frozenset[str]().union(*[member.topics for member in members])
        self._planned_with: Mapping[str, int] | None = None  # None: nobody has told yet

    @classmethod
    def told(cls, members: Iterable[JoinedMember]) -> Leading:
        """Raises InconsistentGroupProtocol: a member says what this version cannot read."""
        try:
            return cls(
                tuple(
                    decode_subscription(
                        one.subscription, member_id=one.member_id, instance_id=one.instance_id
                    )
                    for one in members
                )
            )
        except RemoteProtocolError as error:
            raise InconsistentGroupProtocol(str(error)) from error

    def missing(self, counts: Mapping[str, int]) -> list[str]:
        """Topics of which nobody has told how many partitions they have."""
        return sorted(self.topics.difference(counts))

    def is_outdated(self, counts: Mapping[str, int]) -> bool:
        """Whether the plan was made with other partition counts. Those not known count as none."""
        planned = self._planned_with
        return planned is not None and any(
            topic in counts and counts[topic] != planned.get(topic, 0) for topic in self.topics
        )

    def plan(
        self, assignor: Assignor, counts: Mapping[str, int], *, leader: str
    ) -> tuple[MemberAssignment, ...]:
        """A part for every member.

        Raises:
            InvalidConfig: a program's own assignor has failed.
        """
        there = {topic: counts[topic] for topic in sorted(self.topics) if counts.get(topic)}
        plan = assignor.assign(there, self._members)
        problems = problems_of(plan, there, self._members, is_partial=assignor.is_cooperative)
        assert not problems, f"{assignor.name}: {problems[0]}"
        self._planned_with = there
        return tuple(
            MemberAssignment(
                member.member_id,
                encode_assignment(
                    part := plan.get(member.member_id, ()),
                    there if member.member_id == leader else None,
                    is_awaited=member.is_holding and not member.owned.issubset(part),
                ),
            )
            for member in self._members
        )

    def on_synced(self, counts: Mapping[str, int]) -> None:
        """The plan that is in force was made with these; one of our own says the same."""
        self._planned_with = counts
