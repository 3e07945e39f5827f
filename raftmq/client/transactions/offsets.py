"""Offsets of groups that a transaction commits: given by batch, by consumer, or by numbers.

Owns what is committed for each group, and by whom: a member commits in its present generation, and
only what it has owned without interruption, so that the quorum can refuse it (decision 0038).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.client.administration.checks import check_topic
from raftmq.client.routing.routes import no_topic
from raftmq.errors import InvalidConfig, UnknownTopicOrPartition
from raftmq.wire.messages.group_offsets import OffsetToCommit
from raftmq.wire.messages.transactions import GroupOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.routing.cluster import Cluster

# For the metadata of topics that this client has not used yet.
METADATA_SECONDS_MAX = 10.0


class TransactionProgress:
    """Of one transaction."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[tuple[str, int], int]] = {}  # by group

    @property
    def are_given(self) -> bool:
        return bool(self._numbers)

    def add(self, given: Any, group: str | None) -> None:  # noqa: ANN401  # checked here
        """Raises InvalidConfig, IllegalGeneration; see `Transaction.commit_offsets`."""
        self._add_numbers(given, group)

    async def groups(self, cluster: Cluster, is_again: bool) -> tuple[GroupOffsets, ...]:
        """As the commit tells them, in the members' present generations. `is_again`: those of the
        last call were refused.

        Raises:
            UnknownTopicOrPartition: of offsets given by numbers.
            IllegalGeneration: a partition is another member's by now.
        """
        return tuple(
            [
                GroupOffsets(group, offsets=await _offsets(cluster, numbers))
                for group, numbers in self._numbers.items()
            ]
        )

    def _add_numbers(self, given: Mapping[tuple[str, int], int], group: str | None) -> None:
        if group is None:
            raise InvalidConfig(["offsets by numbers without group: say whose they are"])
        for (topic, partition), offset in given.items():
            check_topic(topic)
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
