"""Blocking admin: the calls of `raftmq.client.administration.Admin`, run in the loop's thread.

Adds nothing but the wait: each call has the arguments, results and errors of the asynchronous one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from raftmq.client.administration.admin import Admin as AsyncAdmin
    from raftmq.client.administration.admin import When
    from raftmq.client.administration.groups.calls import GroupCalls as AsyncGroupCalls
    from raftmq.client.administration.groups.calls import To
    from raftmq.client.administration.results import (
        BrokerLoad,
        ClusterDetails,
        ConfigValue,
        CreatedTopic,
        Election,
        GroupDetails,
        GroupOffset,
        GroupSummary,
        Health,
        OffsetReset,
        PartitionLag,
        TopicDetails,
        TopicPartition,
        TopicSummary,
    )
    from raftmq.sync.loop import Loop


# -- Group calls ----------------------------------------------------------------------------------
# The calls on consumer groups.


class GroupCalls:
    """Blocking; arguments, results and errors are those of the asynchronous class."""

    def __init__(self, loop: Loop, calls: AsyncGroupCalls) -> None:
        self._loop, self._calls = loop, calls

    def list_groups(self) -> tuple[GroupSummary, ...]:
        """All groups, by name."""
        return self._loop.call(self._calls.list_groups)

    def describe_group(self, name: str) -> GroupDetails:
        """Its state, its coordinator, and its members with what each of them reads."""
        return self._loop.call(self._calls.describe_group, name)

    def group_offsets(self, name: str) -> dict[TopicPartition, GroupOffset]:
        """Its committed offsets, by topic and partition."""
        return self._loop.call(self._calls.group_offsets, name)

    def group_lag(self, name: str) -> tuple[PartitionLag, ...]:
        """How far it is behind, by topic and partition, and which member reads each of them."""
        return self._loop.call(self._calls.group_lag, name)

    def reset_group_offsets(
        self,
        name: str,
        *,
        to: To | None = None,
        shift: int | None = None,
        topics: Collection[str] | None = None,
        partitions: Collection[TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, OffsetReset]:
        """Move the committed offsets of a group without members."""

        async def run() -> dict[TopicPartition, OffsetReset]:
            return await self._calls.reset_group_offsets(
                name, to=to, shift=shift, topics=topics, partitions=partitions, dry_run=dry_run
            )

        return self._loop.call(run)

    def alter_group_offsets(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        expected: Mapping[TopicPartition, int | None] | None = None,
    ) -> None:
        """Commit offsets for a group without members, like {("orders", 0): 42}."""

        async def run() -> None:
            await self._calls.alter_group_offsets(name, offsets, expected=expected)

        self._loop.call(run)

    def delete_group(self, name: str) -> None:
        """Delete a group without members, with its committed offsets."""
        self._loop.call(self._calls.delete_group, name)

    def delete_group_offsets(self, name: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's committed offsets of some partitions."""
        self._loop.call(self._calls.delete_group_offsets, name, partitions)


# -- Admin ----------------------------------------------------------------------------------------


class Admin(GroupCalls):
    """Blocking; arguments, results and errors are those of the asynchronous class."""

    def __init__(self, loop: Loop, admin: AsyncAdmin) -> None:
        super().__init__(loop, admin)
        self._admin = admin

    def with_timeout(self, seconds: float) -> Admin:
        """The same admin for calls with another time limit, in seconds."""
        return Admin(self._loop, self._admin.with_timeout(seconds))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
    ) -> CreatedTopic:
        """Create a topic, and wait until it can be used."""

        async def run() -> CreatedTopic:
            return await self._admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, config=config
            )

        return self._loop.call(run)

    def delete_topic(self, name: str) -> None:
        """Delete the topic that has this name now, with all of its records."""
        self._loop.call(self._admin.delete_topic, name)

    def list_topics(self) -> tuple[TopicSummary, ...]:
        """All topics, by name."""
        return self._loop.call(self._admin.list_topics)

    def describe_topic(self, name: str) -> TopicDetails:
        """Its partitions with leaders, replicas, epochs and offsets, and its configuration."""
        return self._loop.call(self._admin.describe_topic, name)

    def create_partitions(self, name: str, total: int) -> None:
        """Let a topic grow to `total` partitions."""
        self._loop.call(self._admin.create_partitions, name, total)

    def describe_config(self, name: str) -> dict[str, ConfigValue]:
        """The effective value of each key of a topic, with whether it is the default."""
        return self._loop.call(self._admin.describe_config, name)

    def alter_config(self, name: str, changes: Mapping[str, str | int | bool | None]) -> None:
        """Set some keys of a topic, all of them or none."""
        self._loop.call(self._admin.alter_config, name, changes)

    def offsets(
        self, topic: str, at: When, *, partitions: Collection[int] | None = None
    ) -> dict[int, int | None]:
        """The offset that belongs to a point in time, in each partition of a topic."""

        async def run() -> dict[int, int | None]:
            return await self._admin.offsets(topic, at, partitions=partitions)

        return self._loop.call(run)

    def delete_records(
        self, topic: str, before: Mapping[int, int | Literal["latest"]]
    ) -> dict[int, int]:
        """Delete the oldest records for good."""
        return self._loop.call(self._admin.delete_records, topic, before)

    def elect_leaders(
        self, topic: str, partitions: Collection[int] | None = None, *, unclean: bool = False
    ) -> tuple[Election, ...]:
        """Give partitions back to their preferred leaders, as after a restart."""

        async def run() -> tuple[Election, ...]:
            return await self._admin.elect_leaders(topic, partitions, unclean=unclean)

        return self._loop.call(run)

    def describe_cluster(self) -> ClusterDetails:
        """Its name, its controller, and its brokers with addresses, racks and states."""
        return self._loop.call(self._admin.describe_cluster)

    def broker_loads(self) -> dict[int, BrokerLoad]:
        """How many partitions each broker leads and holds; those that hold none are left out."""
        return self._loop.call(self._admin.broker_loads)

    def health(self) -> Health:
        """Which brokers are down, and which partitions are affected."""
        return self._loop.call(self._admin.health)
