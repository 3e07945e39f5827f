"""Offset resets of a group: from which offsets to which, compare-and-set; and its lag.

A new offset lies within the log; where another one was requested, the plan says so. Each one is
committed only if the old offset is still the committed one: of two resets at the same time one is
refused, and their offsets do not mix.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.administration.groups.ages import Unread, find_ages
from raftmq.client.administration.groups.checks import find_names
from raftmq.client.administration.groups.committed import NAMED_MAX, Commit, commit, fetch_offsets
from raftmq.client.administration.groups.descriptions import check_no_members, describe_group
from raftmq.client.administration.offsets import ends_of, find_offsets
from raftmq.client.administration.results import OffsetReset, PartitionLag
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import GroupIdNotFound, InvalidRequest
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from raftmq.client.administration.groups.checks import (
        PartitionSelection,
        ResetTarget,
        TopicNames,
    )
    from raftmq.client.administration.offsets import Ends
    from raftmq.client.administration.results import GroupMember, TopicPartition
    from raftmq.client.routing.cluster import Cluster
    from raftmq.errors import RaftmqError


class Log(NamedTuple):
    """Offsets of one log: of the oldest record, up to where a group gets records, and of a time.

    `at_time` is None where no record is so young, or no time is requested.
    """

    start: int
    end: int
    at_time: int | None = None


class Reset:
    """One reset of one group."""

    def __init__(
        self, cluster: Cluster, group: str, target: ResetTarget, *, deadline: float
    ) -> None:
        self._cluster, self._group, self._target = cluster, group, target
        self._deadline = deadline

    async def run(
        self, wanted: PartitionSelection, *, is_dry: bool
    ) -> dict[TopicPartition, OffsetReset]:
        """The changes, made or planned.

        Raises:
            NonEmptyGroup: not for a dry run. Definite.
            GroupIdNotFound, InvalidRequest, UnknownTopicOrPartition: definite.
            InvalidUpdateVersion: an offset has changed meanwhile; nothing was committed. Definite.
            OutcomeUnknown: some were committed, or may have been. Indefinite.
        """
        cluster, group, deadline = self._cluster, self._group, self._deadline
        if not is_dry:
            # Members would commit their own positions over the new ones.
            await check_no_members(cluster, group, "reset its offsets", deadline=deadline)
        # Read before the plan is made: the commit below compares with these.
        offsets = await fetch_offsets(cluster, group, deadline=deadline)
        names = await find_names(cluster, deadline=deadline)
        old = {(names.name_of(key[0]), key[1]): one.offset for key, one in offsets.items()}
        plan = await self._plan(self._keys(wanted, names, old), old)
        if not is_dry:
            commits = [_commit(names, key, one) for key, one in plan.items()]
            await commit(cluster, group, commits, repeats=RepeatEffect.ACCEPTED, deadline=deadline)
        return plan

    # -- which partitions ------------------------------------------------------------------

    def _keys(
        self, wanted: PartitionSelection, names: TopicNames, old: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """The partitions of the reset, in order."""
        if wanted.partitions is not None:
            found = set(wanted.partitions)
            for topic, partition in sorted(found):
                names.id_of(topic, partition)
        elif wanted.topics is not None:  # also partitions without a committed offset
            found = {(name, one) for name in wanted.topics for one in names.partitions_of(name)}
        else:
            found = {key for key in old if key[0] in names}
            if not found:
                raise self._nothing_there(has_offsets=bool(old))
        is_exact = wanted.partitions is not None
        return self._shiftable(sorted(found), old, is_exact=is_exact)

    def _nothing_there(self, *, has_offsets: bool) -> RaftmqError:
        if has_offsets:  # the group exists, but its topics do not
            return InvalidRequest(
                f"group {self._group!r} has committed offsets of deleted topics only: name topics"
            )
        return GroupIdNotFound(
            f"group {self._group!r} is not there, or has committed nothing: name topics, and it"
            " begins with them"
        )

    def _shiftable(
        self, keys: list[TopicPartition], old: Mapping[TopicPartition, int], *, is_exact: bool
    ) -> list[TopicPartition]:
        """Partitions with a committed offset, from which a shift counts. An error if one without
        was named, or if there is none.
        """
        if self._target.shift is None:  # only a shift needs a committed offset
            return keys
        found = [key for key in keys if key in old]
        lacking = [f"{topic}-{number}" for topic, number in keys if (topic, number) not in old]
        if lacking and (is_exact or not found):
            raise InvalidRequest(
                f"group {self._group!r} has committed nothing for {', '.join(lacking[:NAMED_MAX])},"
                " so there is nothing to shift from: say where to go instead"
            )
        return found

    # -- where they lead -------------------------------------------------------------------

    async def _plan(
        self, keys: Sequence[TopicPartition], old: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetReset]:
        logs = await self._logs(keys)
        plan = {}
        for key in keys:
            log = logs[key]
            aim = self._aim(log, old.get(key))
            # Beyond either end a consumer would only meet OffsetOutOfRange.
            new = min(max(aim, log.start), log.end)
            asked = None if new == aim else aim
            plan[key] = OffsetReset(old.get(key), new, log.start, log.end, asked)
        return plan

    def _aim(self, log: Log, old: int | None) -> int:
        target = self._target
        if target.shift is not None:
            assert old is not None, "a shift from nowhere"
            return old + target.shift
        if target.offset is not None:
            return target.offset
        if target.timestamp == EARLIEST:
            return log.start
        return log.end if log.at_time is None else log.at_time

    async def _logs(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, Log]:
        found: dict[TopicPartition, Log] = {}
        for topic, pairs in groupby(keys, key=itemgetter(0)):
            partitions = [partition for _, partition in pairs]
            logs = await self._logs_of(topic, partitions)
            found |= {(topic, partition): logs[partition] for partition in partitions}
        return found

    async def _logs_of(self, topic: str, partitions: Sequence[int]) -> dict[int, Log]:
        """The ends are read last, so that no offset of a time lies beyond them."""
        time = self._target.timestamp
        starts = await self._find(topic, EARLIEST, partitions)
        is_time = time is not None and time not in (EARLIEST, LATEST)
        times = await self._find(topic, time or 0, partitions) if is_time else {}
        # the log may have grown since the lookups above
        ends = await self._find(topic, LATEST, partitions)
        return {one: Log(starts[one] or 0, ends[one] or 0, times.get(one)) for one in partitions}

    async def _find(
        self, topic: str, timestamp: int, partitions: Sequence[int]
    ) -> dict[int, int | None]:
        deadline = self._deadline
        return await find_offsets(self._cluster, topic, timestamp, partitions, deadline=deadline)


def _commit(names: TopicNames, key: TopicPartition, change: OffsetReset) -> Commit:
    topic, partition = key
    expected = ABSENT if change.old is None else change.old
    return Commit(topic, names.id_of(topic), partition, change.new, expected)


# -- Lag ------------------------------------------------------------------------------------------
# How far a group is behind: its committed offsets beside the ends of the logs.
#
# Covers all partitions of topics in which the group has committed something, or to which a member
# has subscribed: where nothing is committed, the whole log is still to be read. A leader that does
# not answer is not waited for long.


async def group_lag(
    cluster: Cluster, name: str, *, with_ages: bool, deadline: float
) -> tuple[PartitionLag, ...]:
    """By topic and partition. The ends are read last, so that no lag is shown too small.

    Raises:
        GroupIdNotFound: there is no such group.
        RaftmqError: of the last attempt.
    """
    committed = await fetch_offsets(cluster, name, deadline=deadline)
    try:
        members = (await describe_group(cluster, name, deadline=deadline)).members
    # Offsets without a group: it was deleted between the two requests.
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
    unread = {key: _unread(offsets.get(key), found) for key, found in ends.items()}
    ages = await find_ages(cluster, unread, deadline=deadline) if with_ages else {}
    return tuple(
        _row(key, offsets.get(key), unread.get(key), readers.get(key), ages.get(key))
        for key in keys
    )


def _partitions(names: TopicNames, topics: Iterable[str]) -> Iterator[TopicPartition]:
    """Of topics that exist."""
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


def _unread(committed: int | None, log: Ends) -> Unread:
    """Committed offsets may lie before the log, and behind it after an unclean election."""
    return Unread(max(committed or 0, log.start), log.end)


def _row(
    key: TopicPartition,
    committed: int | None,
    unread: Unread | None,
    member: GroupMember | None,
    age_seconds: float | None,
) -> PartitionLag:
    if unread is None:
        return PartitionLag(*key, committed, None, None, member)
    lag = max(unread.end - unread.start, 0)
    return PartitionLag(*key, committed, unread.end, lag, member, age_seconds)
