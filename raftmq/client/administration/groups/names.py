"""Names of topics for their ids, and the other way round: coordinators know ids alone.

A topic that was deleted has no name any more, and its id in hexadecimal stands in place of it. A
topic made later under the same name is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.administration.topics import all_metadata
from raftmq.errors import UnknownTopicOrPartition
from raftmq.wire.bodies import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.metadata import TopicMetadata


class TopicNames:
    """All topics that there are, as of one moment."""

    def __init__(self, topics: Iterable[TopicMetadata]) -> None:
        there = [(one.name, one.topic_id, len(one.partitions)) for one in topics]
        self._ids = {name: topic_id for name, topic_id, _ in there if topic_id is not None}
        self._names = {topic_id: name for name, topic_id in self._ids.items()}
        self._counts = {name: count for name, _, count in there}

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def name_of(self, topic_id: bytes) -> str:
        return self._names.get(topic_id) or topic_id.hex()

    def id_of(self, name: str, partition: int | None = None) -> bytes:
        """
        Raises:
            UnknownTopicOrPartition: it is not there, or has no such partition.
        """
        if name not in self._ids:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        count = self._counts[name]
        if partition is not None and partition >= count:
            raise UnknownTopicOrPartition(
                f"topic {name} has {count} partitions, counted from 0: there is no {partition}"
            )
        return self._ids[name]

    def keys(self) -> Iterator[tuple[bytes, int]]:
        """All partitions of all topics, by topic id."""
        for name, topic_id in self._ids.items():
            for partition in range(self._counts[name]):
                yield topic_id, partition

    def id_of_any(self, name: str) -> bytes:
        """Also of one that was deleted. Raises UnknownTopicOrPartition."""
        if name not in self._ids and (topic_id := _id_in(name)) is not None:
            return topic_id
        return self.id_of(name)

    def partitions_of(self, name: str) -> range:
        """Raises UnknownTopicOrPartition."""
        self.id_of(name)
        return range(self._counts[name])


def _id_in(name: str) -> bytes | None:
    try:
        found = bytes.fromhex(name)
    except ValueError:
        return None
    return found if len(found) == ID_BYTES else None


async def find_names(cluster: Cluster, *, deadline: float) -> TopicNames:
    """Of a broker that is not behind any other that was heard of."""
    return TopicNames((await all_metadata(cluster, deadline=deadline)).topics)
