"""`GroupCalls`: the part of `Admin` that is about consumer groups, in the words of a user.

Checks what it is given before anything is sent (`checks`), then calls the modules beside it. Keeps
nothing: two calls know nothing of each other.
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
    """Calls of `mq.admin`. What holds for all of them, `Admin` says.

    All of them raise InvalidGroupId for a name that no group may have, and CoordinatorNotAvailable
    where nobody coordinated the group until the time was over.
    """

    def __init__(self, cluster: Cluster, *, timeout_seconds: float) -> None:
        self._cluster, self._timeout_seconds = cluster, timeout_seconds

    # -- reads -----------------------------------------------------------------------------

    async def list_groups(self) -> tuple[GroupSummary, ...]:
        """All groups, by name. Every broker is asked, as each one knows only its own."""
        return await descriptions.list_groups(self._cluster, deadline=self._deadline())

    async def describe_group(self, name: str) -> GroupDetails:
        """Its state, its coordinator, and its members with what each of them reads.

        Raises:
            GroupIdNotFound: there is none.
        """
        checks.check_group(name)
        return await descriptions.describe_group(self._cluster, name, deadline=self._deadline())

    async def group_offsets(self, name: str) -> dict[TopicPartition, GroupOffset]:
        """What it has committed, by topic and partition.

        A topic that was deleted is named by its id in hexadecimal.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        checks.check_group(name)
        deadline = self._deadline()
        found = await committed.fetch_offsets(self._cluster, name, deadline=deadline)
        if not found:
            await descriptions.describe_group(self._cluster, name, deadline=deadline)
        names = await find_names(self._cluster, deadline=deadline)
        told = {(names.name_of(key[0]), key[1]): _offset(one) for key, one in found.items()}
        return dict(sorted(told.items()))

    async def group_lag(self, name: str) -> tuple[PartitionLag, ...]:
        """How far it is behind, by topic and partition, and who reads each of them.

        All partitions of topics in which it has committed something, or to which its members have
        subscribed. Where nothing is committed, the lag counts from the oldest record. Where no
        leader answers soon, the end is None, and so is the lag.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        checks.check_group(name)
        return await resets.group_lag(self._cluster, name, deadline=self._deadline())

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
        """Let a group without members go on elsewhere.

        The new offset lies within the log; what was asked for and lies outside, the result tells as
        `asked`. It is committed only if what it
        was worked out from is still there, so two resets at the same time do not mix.

        Args:
            to: "earliest", "latest", an offset, or a datetime with a time zone: the first record
                at or after that time, or the end where no record is so young.
            shift: in place of `to`: so many offsets forward or, below 0, back.
            topics: all partitions of these; also for a group that is not there yet.
            partitions: these, as pairs of topic and number. Without both: those for which the
                group has committed something, and whose topics are there.
            dry_run: change nothing, and tell what would be done; with members as well.

        Returns:
            For each partition the old offset and the new one.

        Raises:
            TypeError: neither `to` nor `shift`, or both; both `topics` and `partitions`.
            NonEmptyGroup: the group has members: stop them first. Definite.
            GroupIdNotFound: there is no such group, and no topic was named. Definite.
            InvalidRequest: nothing is committed from which to shift; or `to` is no place to go, or
                `partitions` no list of pairs. Definite.
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            InvalidUpdateVersion: somebody else has committed meanwhile; says what. Definite.
            OutcomeUnknown: some offsets were changed, or may have been; says what is known.
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
        """Commit offsets in place of a group without members, like {("orders", 0): 42}.

        They are committed as they are, and need not lie within the log: a warning is logged of
        those beyond its end, where a consumer finds nothing and goes on as its `auto_offset_reset`
        says. The group need not be there yet.

        Args:
            expected: what is to be there now, None for nothing; of these partitions an offset is
                changed only if it is. Such a change is asked for once.

        Raises:
            NonEmptyGroup: the group has members: stop them first. Definite.
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            InvalidUpdateVersion: something else than `expected` is there; says what. Definite.
            OutcomeUnknown: some offsets were changed, or may have been; says what is known.
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
        repeats = RepeatEffect.FORBIDDEN if compared else RepeatEffect.ACCEPTED
        await committed.commit(self._cluster, name, commits, repeats=repeats, deadline=deadline)
        await checks.warn_beyond(self._cluster, name, wanted, deadline=deadline)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, with the offsets that it has committed.

        Raises:
            GroupIdNotFound: there is none. Definite.
            NonEmptyGroup: the group has members: stop them first. Definite.
            InvalidUpdateVersion: it was changed while it was asked for: look again. Definite.
            OutcomeUnknown: it may be gone, or soon be.
        """
        checks.check_group(name)
        await descriptions.delete_group(self._cluster, name, deadline=self._deadline())

    async def delete_group_offsets(self, name: str, partitions: Collection[TopicPartition]) -> None:
        """Forget what a group has committed for some partitions. What is not there is gone.

        Args:
            partitions: pairs of topic and number; a deleted topic by its id in hexadecimal.

        Raises:
            GroupSubscribedToTopic: members of the group read the topic. Definite.
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidUpdateVersion: the group has committed while it was asked for: look again.
                Definite.
            OutcomeUnknown: some are gone, or may be; says what is known.
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
