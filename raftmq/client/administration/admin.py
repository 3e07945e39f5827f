"""`Admin`: everything that is done to topics, groups and clusters, in the words of a user.

Checks what it is given before anything is sent (`checks`), then calls the modules beside it. Keeps
nothing: two calls know nothing of each other. What is done to groups, its parent knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from raftmq.client.admin import delete_topic
from raftmq.client.administration import checks, clusters, offsets, topics
from raftmq.client.administration.groups.calls import GroupCalls
from raftmq.client.administration.questions import naming
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from raftmq.client.administration.results import (
        BrokerLoad,
        ClusterDetails,
        ConfigValue,
        CreatedTopic,
        Election,
        Health,
        TopicDetails,
        TopicSummary,
    )
    from raftmq.client.routing.cluster import Cluster

    When: TypeAlias = Literal["earliest", "latest"] | datetime | int

TIMEOUT_SECONDS = 30.0


class Admin(GroupCalls):
    """`mq.admin`: topics, their configuration and records, groups, leaders, and how the cluster is.

    Every call tries again what may be tried again until `timeout_seconds` are over, and can be
    cancelled at any time: put a shorter limit around it, like `with anyio.fail_after(5)`.

    All of them raise TypeError for an argument of a wrong type, and else errors of the tree, of
    which `Unreachable` says that no broker has answered. Where nothing is known of a change that
    was asked for, `OutcomeUnknown` says so: it may have happened, or may yet. After any other
    error nothing was changed.
    """

    def __init__(self, cluster: Cluster, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        super().__init__(cluster, timeout_seconds=timeout_seconds)

    def with_timeout(self, seconds: float) -> Admin:
        """The same for calls that are to give up earlier, or later."""
        return Admin(self._cluster, timeout_seconds=seconds)

    # -- topics ----------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
    ) -> CreatedTopic:
        """Make a topic, and wait until all of its partitions have leaders, so that it can be used.

        Args:
            partitions: None: the cluster's default.
            replication_factor: copies of each partition, on as many brokers. None: the cluster's
                default, or the number of its nodes where there are fewer; the result says which.
            config: by dotted key, like {"retention.ms": 86_400_000}. The rest has its defaults.

        Raises:
            TopicAlreadyExists: definite, like the next four.
            InvalidTopic: not a name that a topic may have.
            InvalidPartitions: too many.
            InvalidReplicationFactor: fewer brokers are active than that, or than there are nodes
                for the default; the message names those that are missing.
            InvalidConfig: names every bad key, and what it may have meant.
            OutcomeUnknown: it may exist now, or soon; or it does, and cannot be used yet.
        """
        checks.check_topic(name)
        if partitions is not None:
            checks.check_partition_count(partitions)
        if replication_factor is not None:
            checks.check_replication_factor(replication_factor)
        return await topics.make_topic(
            self._cluster,
            name,
            partition_count=ABSENT if partitions is None else partitions,
            replication_factor=ABSENT if replication_factor is None else replication_factor,
            configs=checks.check_config({} if config is None else config),
            deadline=self._deadline(),
        )

    async def delete_topic(self, name: str) -> None:
        """Delete the topic that has this name now, with all of its records.

        Raises:
            UnknownTopicOrPartition: there is none. Definite.
            OutcomeUnknown: it may be gone, or soon be.
        """
        checks.check_topic(name)
        with naming(name):
            await delete_topic(self._cluster, name, timeout_seconds=self._timeout_seconds)

    async def list_topics(self) -> tuple[TopicSummary, ...]:
        """All topics, by name."""
        return await topics.list_topics(self._cluster, deadline=self._deadline())

    async def describe_topic(self, name: str) -> TopicDetails:
        """Its partitions with leaders, replicas, epochs and offsets, and its configuration.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        checks.check_topic(name)
        return await topics.topic_details(self._cluster, name, deadline=self._deadline())

    async def create_partitions(self, name: str, total: int) -> None:
        """Let a topic grow to `total` partitions, and wait until all of them have leaders.

        Records stay where they are, but the partition of a key may be another one from then on.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidPartitions: it has as many already, or more; a topic never shrinks. Definite.
            OutcomeUnknown: it may have grown; or it has, and some of it cannot be used yet.
        """
        checks.check_topic(name)
        checks.check_partition_count(total)
        await topics.grow_topic(self._cluster, name, total, deadline=self._deadline())

    # -- configuration ---------------------------------------------------------------------

    async def describe_config(self, name: str) -> dict[str, ConfigValue]:
        """What holds for each key of a topic, whether it was set or not.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        checks.check_topic(name)
        return await topics.describe_config(self._cluster, name, deadline=self._deadline())

    async def alter_config(self, name: str, changes: Mapping[str, str | int | bool | None]) -> None:
        """Set some keys of a topic, all of them or none; the others stay as they are.

        Args:
            changes: None brings a key back to its default.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidConfig: names every bad key, and what it may have meant. Definite.
            OutcomeUnknown: they may have been set, or soon be.
        """
        checks.check_topic(name)
        checked = checks.check_changes(changes)
        await topics.alter_config(self._cluster, name, checked, deadline=self._deadline())

    # -- records ---------------------------------------------------------------------------

    async def offsets(
        self, topic: str, at: When, *, partitions: Collection[int] | None = None
    ) -> dict[int, int | None]:
        """Where a time lies in each partition of a topic.

        Args:
            at: "earliest": the oldest record. "latest": after the newest committed record. A
                datetime with a time zone, or milliseconds since 1970-01-01 UTC: the first record
                at or after that time, None where no record is so young.
            partitions: None: all of them.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition.
            LeaderNotAvailable: nobody leads some partition.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        return await offsets.find_offsets(
            self._cluster, topic, checks.timestamp_of(at), wanted, deadline=self._deadline()
        )

    async def delete_records(
        self, topic: str, before: Mapping[int, int | Literal["latest"]]
    ) -> dict[int, int]:
        """Delete the oldest records for good.

        Args:
            before: for each partition the offset with which it is to begin; "latest": delete all
                that is committed. A partition that begins later already stays as it is.

        Returns:
            The offset with which each of them begins now.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            OffsetOutOfRange: beyond what is committed. Definite.
            UnsupportedVersion: some voter or broker is of an older version, or was never started.
                Definite.
            OutcomeUnknown: something was deleted, or may have been; says where.
        """
        checks.check_topic(topic)
        checked = checks.check_before_offsets(before)
        return await offsets.delete_records(
            self._cluster, topic, checked, deadline=self._deadline()
        )

    # -- the cluster -----------------------------------------------------------------------

    async def elect_leaders(
        self, topic: str, partitions: Collection[int] | None = None, *, unclean: bool = False
    ) -> tuple[Election, ...]:
        """Give partitions back to their preferred leaders, as after a restart.

        Args:
            partitions: None: all of them.
            unclean: elect anybody who is there, where nobody else is left. Committed records may
                be lost.

        Returns:
            What became of each partition; where it failed, its leader is the one from before.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            OutcomeUnknown: leaders may have changed.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        return await clusters.elect(
            self._cluster, topic, wanted, is_unclean=unclean, deadline=self._deadline()
        )

    async def describe_cluster(self) -> ClusterDetails:
        """Its name, its controller, and its brokers with addresses, racks and states."""
        return await clusters.cluster_details(self._cluster, deadline=self._deadline())

    async def broker_loads(self) -> dict[int, BrokerLoad]:
        """How many partitions each broker leads and holds; those that hold none are left out."""
        return await clusters.broker_loads(self._cluster, deadline=self._deadline())

    async def health(self) -> Health:
        """Which brokers are down, and which partitions suffer from it."""
        return await clusters.find_health(self._cluster, deadline=self._deadline())
