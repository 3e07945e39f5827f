"""`GroupCalls`: the public admin calls on consumer groups.

Checks its arguments before anything is sent (`checks.py`), then calls the modules beside it. Keeps
no state between calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from raftmq.client.administration.groups import checks, committed, descriptions, resets
from raftmq.client.administration.groups.checks import find_names
from raftmq.client.administration.groups.resets import Reset
from raftmq.client.administration.results import GroupOffset
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from raftmq.client.administration.results import (
        GroupDetails,
        GroupSummary,
        OffsetReset,
        PartitionLag,
        TopicPartition,
    )
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.group_offsets import FetchedOffset

    To: TypeAlias = Literal["earliest", "latest"] | int | datetime


class GroupCalls:
    """The group calls of `mq.admin`; see `Admin` for what holds for all calls.

    All of them raise InvalidGroupId for an invalid name, and CoordinatorNotAvailable if no broker
    coordinated the group until the time was over.
    """

    def __init__(self, cluster: Cluster, *, timeout_seconds: float) -> None:
        self._cluster, self._timeout_seconds = cluster, timeout_seconds

    # -- reads -----------------------------------------------------------------------------

    async def list_groups(self) -> tuple[GroupSummary, ...]:
        """All groups, by name. Every broker is asked, as each one knows only the groups that it
        coordinates.
        """
        return await descriptions.list_groups(self._cluster, deadline=self._deadline())

    async def describe_group(self, name: str) -> GroupDetails:
        """Its state, its coordinator, and its members with what each of them reads.

        Raises:
            GroupIdNotFound: there is none. Definite.
        """
        checks.check_group(name)
        return await descriptions.describe_group(self._cluster, name, deadline=self._deadline())

    async def group_offsets(self, name: str) -> dict[TopicPartition, GroupOffset]:
        """The group's committed offsets, by topic and partition.

        A deleted topic is named by its id in hexadecimal.

        Raises:
            GroupIdNotFound: there is no such group. Definite.
        """
        checks.check_group(name)
        deadline = self._deadline()
        found = await committed.fetch_offsets(self._cluster, name, deadline=deadline)
        # No offsets: raises GroupIdNotFound unless the group exists.
        if not found:
            await descriptions.describe_group(self._cluster, name, deadline=deadline)
        # Coordinators know topics by id only.
        names = await find_names(self._cluster, deadline=deadline)
        told = {(names.name_of(key[0]), key[1]): _offset(one) for key, one in found.items()}
        return dict(sorted(told.items()))

    async def group_lag(self, name: str, *, with_ages: bool = False) -> tuple[PartitionLag, ...]:
        """How far the group is behind, by topic and partition, and which member reads each of them.

        All partitions of topics in which it has committed something, or to which its members have
        subscribed. Where nothing is committed, the lag counts from the oldest record. Where no
        leader answers within a few seconds, end and lag are None.

        Args:
            with_ages: also how old the oldest unread record is, as `age_seconds`; one batch is
                fetched from each partition that lags.

        Raises:
            GroupIdNotFound: there is no such group. Definite.
        """
        checks.check_group(name)
        deadline = self._deadline()
        return await resets.group_lag(self._cluster, name, with_ages=with_ages, deadline=deadline)

    # -- changes ---------------------------------------------------------------------------

    async def reset_group_offsets(
        self,
        name: str,
        *,
        to: To | None = None,
        shift: int | None = None,
        topics: Collection[str] | None = None,
        partitions: Collection[TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetReset]:
        """Move the committed offsets of a group without members.

        The new offset lies within the log; where the requested one does not, the result has it as
        `asked`. It is committed only if the old offset is still the committed one, so two resets at
        the same time do not mix.

        Args:
            to: "earliest", "latest", an offset, or a datetime with a time zone: the first record at
                or after that time, or the end where no record is so young.
            shift: in place of `to`: so many offsets forward or, below 0, back.
            topics: all partitions of these; also for a group that does not exist yet.
            partitions: these, as pairs of topic and number. Without both: those with a committed
                offset whose topic exists.
            dry_run: change nothing, and return what would be done; possible with members as well.

        Returns:
            For each partition the old offset and the new one.

        Raises:
            TypeError: neither `to` nor `shift`, or both; both `topics` and `partitions`.
            NonEmptyGroup: the group has members: stop them first. Definite.
            GroupIdNotFound: there is no such group, and no topic was named. Definite.
            InvalidRequest: nothing is committed from which to shift; or `to` is no place in a log,
                or `partitions` no list of pairs. Definite.
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            InvalidUpdateVersion: another program has committed meanwhile; says what. Definite.
            OutcomeUnknown: some offsets were changed, or may have been; says what is known.
                Indefinite.
        """
        checks.check_group(name)
        target = checks.check_target(to, shift)
        wanted = checks.check_wanted(topics, partitions)
        reset = Reset(self._cluster, name, target, deadline=self._deadline())
        return await reset.run(wanted, is_dry=dry_run)

    async def alter_group_offsets(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, int | None] | None = None,
    ) -> None:
        """Commit offsets for a group without members, like {("orders", 0): 42}.

        They are committed as they are, and need not lie within the log: a warning is logged for
        those beyond its end, where a consumer finds nothing and goes on as its `auto_offset_reset`
        says. The group need not exist yet.

        Args:
            expected: the committed offsets that must be there now, None for nothing; an offset is
                changed only if it matches. Such a change is sent only once.

        Raises:
            NonEmptyGroup: the group has members: stop them first. Definite.
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            InvalidUpdateVersion: another offset than `expected` is committed; says which. Definite.
            OutcomeUnknown: some offsets were changed, or may have been; says what is known.
                Indefinite.
        """
        checks.check_group(name)
        wanted = checks.check_offsets(offsets)
        compared = checks.check_expected(expected, wanted)
        deadline = self._deadline()
        names = await find_names(self._cluster, deadline=deadline)
        commits = [
            committed.Commit(topic, names.id_of(topic, number), number, offset, compared.get(key))
            for key, offset in wanted.items()
            for topic, number in [key]
        ]
        # After a success whose answer was lost, a repeated comparison would fail.
        repeats = RepeatEffect.FORBIDDEN if compared else RepeatEffect.ACCEPTED
        await committed.commit(self._cluster, name, commits, repeats=repeats, deadline=deadline)
        await checks.warn_beyond(self._cluster, name, wanted, deadline=deadline)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, with its committed offsets.

        Raises:
            GroupIdNotFound: there is none. Definite.
            NonEmptyGroup: the group has members: stop them first. Definite.
            InvalidUpdateVersion: the group has changed during the call: describe it again.
                Definite.
            OutcomeUnknown: it may be gone, or soon be. Indefinite.
        """
        checks.check_group(name)
        await descriptions.delete_group(self._cluster, name, deadline=self._deadline())

    async def delete_group_offsets(self, name: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's committed offsets of some partitions; those without one count as
        deleted.

        Args:
            partitions: pairs of topic and number; a deleted topic by its id in hexadecimal.

        Raises:
            GroupSubscribedToTopic: members of the group read the topic. Definite.
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidUpdateVersion: the group has committed during the call: read the offsets again.
                Definite.
            OutcomeUnknown: some are gone, or may be; says what is known. Indefinite.
        """
        checks.check_group(name)
        wanted = checks.check_partitions(partitions)
        deadline = self._deadline()
        names = await find_names(self._cluster, deadline=deadline)
        keys = {(names.id_of_any(topic), number): f"{topic}-{number}" for topic, number in wanted}
        await committed.delete_offsets(self._cluster, name, keys, deadline=deadline)

    def _deadline(self) -> float:
        return anyio.current_time() + self._timeout_seconds


def _offset(told: FetchedOffset) -> GroupOffset:
    return GroupOffset(
        told.offset,
        None if told.leader_epoch == ABSENT else told.leader_epoch,
        told.metadata,
        None if told.committed_at_ms == ABSENT else told.committed_at_ms,
    )
