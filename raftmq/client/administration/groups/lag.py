"""How far a group is behind: what it has committed, beside the ends of the logs.

All partitions count of topics in which the group has committed something, or to which a member has
subscribed: where nothing is committed, all that the log holds is still to be read. Nobody waits for
long for a log whose leader does not answer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from raftmq.client.administration.groups.checks import find_names
from raftmq.client.administration.groups.committed import fetch_offsets
from raftmq.client.administration.groups.descriptions import describe_group
from raftmq.client.administration.offsets import ends_of
from raftmq.client.administration.results import PartitionLag
from raftmq.errors import GroupIdNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.client.administration.groups.checks import TopicNames
    from raftmq.client.administration.offsets import Ends
    from raftmq.client.administration.results import GroupMember, TopicPartition
    from raftmq.client.routing.cluster import Cluster


async def group_lag(cluster: Cluster, name: str, *, deadline: float) -> tuple[PartitionLag, ...]:
    """By topic and partition. The ends are asked for last: no lag is shown too small.

    Raises:
        GroupIdNotFound, RaftmqError
    """
    committed = await fetch_offsets(cluster, name, deadline=deadline)
    try:
        members = (await describe_group(cluster, name, deadline=deadline)).members
    except GroupIdNotFound:
        if not committed:
            raise
        members = ()
    names = await find_names(cluster, deadline=deadline)
    offsets = {(names.name_of(key[0]), key[1]): one.offset for key, one in committed.items()}
    readers = {key: member for member in members for key in member.partitions or ()}
    topics = {topic for topic, _ in (*offsets, *readers)}
    topics.update(*(member.topics or () for member in members))
    keys = sorted({*offsets, *readers, *_partitions(names, topics)})
    ends = await _ends_of(cluster, names, keys, deadline=deadline)
    return tuple(_row(key, offsets.get(key), ends.get(key), readers.get(key)) for key in keys)


def _partitions(names: TopicNames, topics: Iterable[str]) -> Iterator[TopicPartition]:
    """Of those that are there."""
    for topic in topics:
        if topic in names:
            yield from ((topic, partition) for partition in names.partitions_of(topic))


async def _ends_of(
    cluster: Cluster, names: TopicNames, keys: Iterable[TopicPartition], *, deadline: float
) -> dict[TopicPartition, Ends]:
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in keys:
        if topic in names and partition in names.partitions_of(topic):
            wanted[topic].append(partition)
    found: dict[TopicPartition, Ends] = {}
    for topic, partitions in wanted.items():
        ends = await ends_of(cluster, topic, partitions, deadline=deadline)
        found |= {(topic, partition): one for partition, one in ends.items()}
    return found


def _row(
    key: TopicPartition, committed: int | None, ends: Ends | None, member: GroupMember | None
) -> PartitionLag:
    lag = None if ends is None else max(ends.end - max(committed or 0, ends.start), 0)
    return PartitionLag(*key, committed, ends.end if ends else None, lag, member)
