"""Offsets of groups that a transaction commits: given by batch, by consumer, or by numbers.

Owns what is committed for each group, and by whom. A member commits in its present generation, and
only what it has owned without interruption, so that the quorum can refuse it (decision 0038).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raftmq.client.administration.checks import check_topic
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.group_consumption import member_that_read
from raftmq.client.routing.routes import no_topic
from raftmq.errors import InvalidConfig, UnknownTopicOrPartition
from raftmq.wire.messages.group_offsets import OffsetToCommit
from raftmq.wire.messages.transactions import GroupOffsets

if TYPE_CHECKING:
    from raftmq.client.consumer.batch import Work
    from raftmq.client.consumer.group_commits import GroupProgress
    from raftmq.client.consumer.group_consumption import GroupConsumption
    from raftmq.client.routing.cluster import Cluster

# For the metadata of topics that this client has not used yet.
METADATA_SECONDS_MAX = 10.0


def member_behind(given: Consumer | Work) -> GroupConsumption:
    """The member whose progress a transaction commits: a consumer, or who has handed it out.

    Raises:
        InvalidConfig: a consumer without a group.
        InvalidRequest, IllegalGeneration, TypeError: see `member_that_read`.
    """
    if isinstance(given, Consumer):
        return given._group("commit_offsets")
    return member_that_read(given)


class TransactionProgress:
    """Of one transaction."""

    def __init__(self) -> None:
        self._members: dict[GroupConsumption, GroupProgress] = {}
        self._numbers: dict[str, dict[tuple[str, int], int]] = {}  # by group
        self._generations: dict[GroupConsumption, int] = {}  # of the last call of `groups`

    @property
    def are_given(self) -> bool:
        return bool(self._numbers) or any(self._members.values())

    def add(self, given: Any, group: str | None) -> None:  # noqa: ANN401  # checked here
        """Raises InvalidConfig, IllegalGeneration; see `Transaction.commit_offsets`."""
        if isinstance(given, Mapping):
            self._add_numbers(given, group)
            return
        member = member_behind(given)
        progress = self._members.get(member) or member.transaction_progress()
        if group not in (None, progress.group):
            raise InvalidConfig([f"group = {group!r}: its consumer is in {progress.group!r}"])
        self._members[member] = progress
        if isinstance(given, Consumer):
            progress.add_all()
        else:
            progress.add(given)

    async def groups(
        self,
        cluster: Cluster,
        is_again: bool,  # of a function that is handed on
    ) -> tuple[GroupOffsets, ...]:
        """As the commit carries them, in the members' present generations.

        Args:
            is_again: those of the last call were refused: wait for newer generations. The caller
                bounds the time.

        Raises:
            UnknownTopicOrPartition: of offsets given by numbers.
            IllegalGeneration: a partition is another member's by now.
            RaftmqError: a member cannot say it.
        """
        found = [
            GroupOffsets(group, offsets=await _offsets(cluster, numbers))
            for group, numbers in self._numbers.items()
        ]
        for member, progress in self._members.items():
            if progress:
                refused = self._generations.get(member) if is_again else None
                offsets = await progress.take(newer_than=refused)
                self._generations[member] = offsets.generation
                found.append(offsets)
        return tuple(found)

    def on_committed(self) -> None:
        """The members need not commit these any more."""
        for progress in self._members.values():
            progress.on_committed()

    def _add_numbers(self, given: Mapping[tuple[str, int], int], group: str | None) -> None:
        if group is None:
            raise InvalidConfig(["offsets by numbers without group: say whose they are"])
        for place, offset in given.items():
            if not (isinstance(place, tuple) and len(place) == 2):
                raise InvalidConfig(
                    [
                        f"offsets by {place!r}: expected a topic and a partition, as in"
                        ' {("orders", 0): 42}'
                    ]
                )
            topic, partition = place
            check_topic(topic)
            if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
                raise InvalidConfig([f"partition of {topic} = {partition!r}: expected 0 up"])
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise InvalidConfig([f"offset of {topic}-{partition} = {offset!r}: expected 0 up"])
        self._numbers.setdefault(group, {}).update(given)


async def _offsets(
    cluster: Cluster, numbers: Mapping[tuple[str, int], int]
) -> tuple[OffsetToCommit, ...]:
    found = []
    for (topic, partition), offset in numbers.items():
        place = cluster.routes.find(topic, partition)
        if place is None:
            await cluster.refresh(topic, deadline=cluster.now() + METADATA_SECONDS_MAX)
            place = cluster.routes.find(topic, partition)
        if place is None:
            raise UnknownTopicOrPartition(no_topic(topic))
        found.append(OffsetToCommit(place.topic_id, partition, offset))
    return tuple(found)
