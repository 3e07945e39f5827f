"""Argument checks of the group calls, topic names and ids, warning for offsets beyond the log.

A wrong type, and arguments that contradict each other, are a TypeError; a wrong value is a
RaftmqError, and so is a `to` that is no place in a log, or a malformed partition. The brokers check
again and decide.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.administration.checks import (
    check_mapping,
    check_topic,
    check_topics,
    check_whole,
    timestamp_of,
)
from raftmq.client.administration.offsets import ends_of
from raftmq.client.administration.topics import all_metadata
from raftmq.errors import InvalidGroupId, InvalidRequest, UnknownTopicOrPartition
from raftmq.model import GROUP_CHARS_MAX, IsolationLevel
from raftmq.wire.bodies import ABSENT, ID_BYTES, ID_MAX, NUMBER_MAX
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.client.administration.results import TopicPartition
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.metadata import TopicMetadata


logger = logging.getLogger("raftmq.client")


class ResetTarget(NamedTuple):
    """Where a reset leads; exactly one field is set.

    Attributes:
        timestamp: milliseconds since 1970-01-01 UTC, or EARLIEST or LATEST.
        offset: the same one for all partitions.
        shift: from the committed offset, forward or, below 0, back.
    """

    timestamp: int | None = None
    offset: int | None = None
    shift: int | None = None


class PartitionSelection(NamedTuple):
    """Which partitions: all of some topics, or some; None and None: those with a committed
    offset.
    """

    topics: tuple[str, ...] | None = None
    partitions: tuple[TopicPartition, ...] | None = None


def check_group(name: object) -> str:
    """Raises TypeError, InvalidGroupId."""
    if not isinstance(name, str):
        raise TypeError(f"group name {name!r}: expected str, got {type(name).__name__}")
    if not 1 <= len(name) <= GROUP_CHARS_MAX:
        raise InvalidGroupId(
            f"group name {name[:GROUP_CHARS_MAX]!r} of {len(name)} characters: allowed are 1 to"
            f" {GROUP_CHARS_MAX}"
        )
    return name


def check_target(to: object, shift: object) -> ResetTarget:
    """The target of a reset, from the arguments of the call.

    Raises:
        TypeError: neither, both, or a shift that is no number.
        InvalidRequest: an offset or a time that no record has, or none of them.
    """
    if (to is None) == (shift is None):  # neither, or both
        raise TypeError("give either to='earliest', 'latest', an offset or a datetime, or shift=n")
    if shift is not None:
        return ResetTarget(shift=check_whole("shift", shift))
    if isinstance(to, int) and not isinstance(to, bool):
        return ResetTarget(offset=_offset("to", to))
    if not (isinstance(to, datetime) or (isinstance(to, str) and to in ("earliest", "latest"))):
        raise InvalidRequest(f"to={to!r}: expected 'earliest', 'latest', an offset, or a datetime")
    return ResetTarget(timestamp=timestamp_of(to))


def check_wanted(topics: object, partitions: object) -> PartitionSelection:
    """Each topic, and each partition, once. Raises TypeError, InvalidTopic, InvalidRequest."""
    if topics is not None and partitions is not None:
        raise TypeError("topics= and partitions=: give one of them")
    if topics is not None:
        return PartitionSelection(topics=check_topics(topics))
    return PartitionSelection(
        partitions=None if partitions is None else check_partitions(partitions)
    )


def check_partitions(partitions: object) -> tuple[TopicPartition, ...]:
    """Raises InvalidTopic, InvalidRequest."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise InvalidRequest(f"partitions={partitions!r}: expected a list like [('orders', 0)]")
    found = tuple(dict.fromkeys(_partition(one) for one in partitions))
    if not found:
        raise InvalidRequest("partitions is empty: name some, like ('orders', 0)")
    return found


def check_offsets(offsets: object) -> dict[TopicPartition, int]:
    """By partition. Raises TypeError, InvalidTopic, InvalidRequest."""
    values = check_mapping("offsets", offsets)
    if not values:
        raise InvalidRequest("no partition given: {('orders', 0): 1000} commits offset 1000")
    return {_partition(one): _offset(f"offset of {one}", at) for one, at in values.items()}


def check_expected(
    expected: object, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """-1 in place of None, which is nothing. Raises TypeError, InvalidTopic, InvalidRequest."""
    if expected is None:  # no comparison
        return {}
    found = {
        _partition(one): ABSENT if at is None else _offset(f"expected offset of {one}", at)
        for one, at in check_mapping("expected", expected).items()
    }
    others = sorted(set(found) - set(offsets))
    if others:  # most likely a typing error in a partition
        raise InvalidRequest(f"expected names {others[0]}, for which no offset is given")
    return found


def _partition(one: object) -> TopicPartition:
    if not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[0], str):
        raise InvalidRequest(f"{one!r}: expected a pair like ('orders', 0)")
    number = one[1]
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidRequest(f"partition {number!r} of {one[0]}: expected a whole number")
    if not 0 <= number <= ID_MAX:
        raise InvalidRequest(f"partition {number} of {one[0]}: partitions are counted from 0")
    return check_topic(one[0]), number


def _offset(what: str, value: object) -> int:
    offset = check_whole(what, value)
    if not 0 <= offset <= NUMBER_MAX:
        raise InvalidRequest(f"{what}: {offset}: offsets begin at 0")
    return offset


# -- Offsets beyond the log -----------------------------------------------------------------------
# Offsets that were committed beyond the end of a log: logged as a warning, not changed.
#
# They may be intended: the records may be on their way. A leader that does not answer is not waited
# for long.


LOOK_SECONDS_MAX = 2.0  # only a warning depends on it: the offsets are committed already


async def warn_beyond(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, deadline: float
) -> None:
    """One warning for each of them; none where no leader has answered."""
    soon = min(deadline, anyio.current_time() + LOOK_SECONDS_MAX)
    by_topic: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), offset in offsets.items():
        if offset:  # no log ends before 0
            by_topic[topic][partition] = offset
    for topic, wanted in by_topic.items():
        # A group that reads open transactions, too, may have gone as far.
        level = IsolationLevel.READ_UNCOMMITTED
        ends = await ends_of(cluster, topic, list(wanted), deadline=soon, isolation=level)
        for partition, (_, end) in ends.items():
            if wanted[partition] > end:
                logger.warning(
                    "group %s: %s-%d: offset %d is committed, beyond the end of the log, %d: a"
                    " consumer finds nothing there, and goes on as its auto_offset_reset= says",
                    group, topic, partition, wanted[partition], end,
                )  # fmt: skip


# -- Topic names ----------------------------------------------------------------------------------
# Names of topics for their ids, and the other way round: coordinators know only ids.
#
# A deleted topic has no name any more; its id in hexadecimal is shown instead. A later topic of the
# same name is another one.


class TopicNames:
    """All topics, as of one moment."""

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
        """The topic's id.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or it has no such partition.
        """
        if name not in self._ids:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        count = self._counts[name]
        if partition is not None and partition >= count:
            has = counted(count, "partition")
            raise UnknownTopicOrPartition(
                f"topic {name} has {has}, counted from 0: there is no {partition}"
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
    except ValueError:  # not hexadecimal: a name
        return None
    return found if len(found) == ID_BYTES else None


async def find_names(cluster: Cluster, *, deadline: float) -> TopicNames:
    """From a broker whose metadata are not behind any version seen."""
    return TopicNames((await all_metadata(cluster, deadline=deadline)).topics)
