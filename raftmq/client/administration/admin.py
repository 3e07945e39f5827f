"""`Admin`: the public calls on topics, configuration, records and the cluster.

Kafka: Admin (AdminClient). Checks its arguments before anything is sent (`checks.py`), then calls
the modules beside it. Keeps no state between calls. The calls on groups are inherited from
`groups/calls.py`, those on transactions from `transactions.py`, those on scheduled records from
`scheduled.py`, those on moves from `moves.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from raftmq.client.administration import checks, clusters, offsets, sizes, topics
from raftmq.client.administration.groups.calls import GroupCalls
from raftmq.client.administration.moves import MoveCalls
from raftmq.client.administration.scheduled import ScheduledCalls
from raftmq.client.administration.transactions import TransactionCalls
from raftmq.client.options import check_options, isolation_of
from raftmq.errors import UnknownTopicOrPartition
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from typing import Never

    from raftmq.client.administration.results import (
        BrokerLoad,
        ClusterDetails,
        ConfigValue,
        CreatedTopic,
        Election,
        Health,
        PartitionLeader,
        TopicDetails,
        TopicSize,
        TopicSummary,
    )
    from raftmq.client.routing.cluster import Cluster

    When: TypeAlias = Literal["earliest", "latest"] | datetime | int

TOPIC_OPTIONS = ("partitions", "replication_factor", "config", "if_not_exists")
TIMEOUT_SECONDS = 30.0  # for all attempts of a call: covers the election of a new controller


class Admin(GroupCalls, TransactionCalls, ScheduledCalls, MoveCalls):
    """`mq.admin`: topics, their configuration and records, groups, transactions, scheduled records,
    leaders, moves, and the state of the cluster.

    Every call repeats what may be repeated until `timeout_seconds` are over, and can be cancelled
    at any time: put a shorter limit around it, like `with anyio.fail_after(5)`.

    All calls raise TypeError for an argument of a wrong type, and otherwise a RaftmqError:
    `Unreachable` if no broker has answered; `OutcomeUnknown` (indefinite) if a change may have
    happened, or may yet. After any other error nothing was changed (definite).
    """

    def __init__(self, cluster: Cluster, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        super().__init__(cluster, timeout_seconds=timeout_seconds)

    def __repr__(self) -> str:
        brokers = ", ".join(map(str, self._cluster.bootstrap))
        return f"<Admin of {brokers}, timeout {self._timeout_seconds:g} s>"

    def with_timeout(self, seconds: float) -> Admin:
        """The same admin for calls with another time limit.

        Args:
            seconds: for all attempts of one call together.
        """
        return Admin(self._cluster, timeout_seconds=seconds)

    # -- topics ----------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
        if_not_exists: bool = False,
        **unknown: Never,
    ) -> CreatedTopic:
        """Create a topic, and wait until all of its partitions have leaders, so that it can be
        used.

        Args:
            name: 1 to 200 characters of a-z A-Z 0-9 . _ -
            partitions: None: 1.
            replication_factor: replicas of each partition, on as many brokers. None: 3, or the
                number of the cluster's nodes where there are fewer; the result says which.
            config: by dotted key, like {"retention.ms": 86_400_000}. Other keys have their
                defaults.
            if_not_exists: a topic of this name that is there already is no error. It stays as it
                is, also with other partitions, replicas or configuration than asked for: `warning`
                of the result says what differs.

        Returns:
            The topic, with the numbers that it has; `is_new`: whether it was created now.

        Raises:
            TopicAlreadyExists: not with `if_not_exists`. Definite, like the next four.
            InvalidTopic: not a valid topic name.
            InvalidPartitions: too many.
            InvalidReplicationFactor: fewer brokers are active than that, or than there are nodes
                for the default; the message names those that are missing.
            InvalidConfig: names every bad key, and the key that may have been meant.
            OutcomeUnknown: it may exist now, or soon; or it does, and cannot be used yet.
                Indefinite.
        """
        # `Never`: type checkers refuse what this explains at run time.
        check_options("create_topic", unknown, TOPIC_OPTIONS)
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
            is_existing_fine=if_not_exists,
            deadline=self._deadline(),
        )

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete the topic that has this name now, with all of its records. When this returns, no
        broker that answers acknowledges records of it any more; one that is silent is waited for,
        for 5 s at most.

        Args:
            missing_ok: no topic of this name is no error.

        Raises:
            UnknownTopicOrPartition: there is none; not with `missing_ok`. Definite.
            OutcomeUnknown: it may be gone, or soon be. Indefinite.
        """
        checks.check_topic(name)
        try:
            await topics.delete_topic(self._cluster, name, deadline=self._deadline())
        except UnknownTopicOrPartition:
            if not missing_ok:
                raise

    async def list_topics(self, names: Collection[str] | None = None) -> tuple[TopicSummary, ...]:
        """All topics, by name.

        Args:
            names: only those of these that exist. None: all.
        """
        wanted = None if names is None else sorted(checks.check_topics(names))
        return await topics.list_topics(self._cluster, wanted, deadline=self._deadline())

    async def topic_sizes(self, topics: Collection[str] | None = None) -> dict[str, TopicSize]:
        """How many records and bytes topics have, as the brokers that hold them say at this moment.

        A broker that does not answer within 2 s, or is too old for the request, leaves None at the
        numbers that it would know.

        Args:
            topics: names. None: all topics.

        Returns:
            Sizes by name, with those of each partition.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
        """
        wanted = None if topics is None else checks.check_topics(topics)
        return await sizes.topic_sizes(self._cluster, wanted, deadline=self._deadline())

    async def describe_topic(self, name: str) -> TopicDetails:
        """A topic's partitions with leaders, replicas, epochs and offsets, and its configuration.

        Raises:
            UnknownTopicOrPartition: there is none. Definite.
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
                Indefinite.
        """
        checks.check_topic(name)
        checks.check_partition_count(total)
        await topics.grow_topic(self._cluster, name, total, deadline=self._deadline())

    # -- configuration ---------------------------------------------------------------------

    async def describe_config(self, name: str) -> dict[str, ConfigValue]:
        """The effective value of each key of a topic, with whether it is the default.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
        """
        checks.check_topic(name)
        return await topics.describe_config(self._cluster, name, deadline=self._deadline())

    async def alter_config(self, name: str, changes: Mapping[str, str | int | bool | None]) -> None:
        """Set some keys of a topic, all of them or none; other keys stay as they are.

        Args:
            changes: None resets a key to its default.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidConfig: names every bad key, and the key that may have been meant. Definite.
            OutcomeUnknown: they may have been set, or soon be. Indefinite.
        """
        checks.check_topic(name)
        checked = checks.check_changes(changes)
        await topics.alter_config(self._cluster, name, checked, deadline=self._deadline())

    # -- records ---------------------------------------------------------------------------

    async def offsets(
        self,
        topic: str,
        at: When,
        *,
        partitions: Collection[int] | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> dict[int, int | None]:
        """The offset that belongs to a point in time, in each partition of a topic.

        Args:
            at: "earliest": the oldest record. "latest": after the newest committed record. A
                datetime with a time zone, or milliseconds since 1970-01-01 UTC: the first record at
                or after that time, None where no record is so young.
            partitions: None: all of them.
            isolation_level: for which readers: with "read_committed" nothing is found behind the
                beginning of a transaction that is still open, and "latest" is that beginning.

        Returns:
            Offsets by partition.

        Raises:
            InvalidConfig: no such isolation level. Definite.
            InvalidRequest: a datetime without a time zone, or a time before 1970. Definite.
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            LeaderNotAvailable: some partition has no leader. Definite.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        return await offsets.find_offsets(
            self._cluster,
            topic,
            checks.timestamp_of(at),
            wanted,
            deadline=self._deadline(),
            isolation=isolation_of(isolation_level),
        )

    async def delete_records(
        self, topic: str, before: Mapping[int, int | Literal["latest"]]
    ) -> dict[int, int]:
        """Delete the oldest records for good.

        Args:
            before: for each partition the offset at which it is to begin; "latest": delete all
                committed records. A partition that begins later already stays as it is.

        Returns:
            The offset at which each of them begins now.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            OffsetOutOfRange: beyond the committed records. Definite.
            UnsupportedVersion: some voter or broker is of an older version, or was never started.
                Definite.
            OutcomeUnknown: some records were deleted, or may have been; says where. Indefinite.
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
            unclean: elect any live replica where no in-sync one is left. Committed records may be
                lost.

        Returns:
            The outcome for each partition; where it failed, the leader has not changed.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            OutcomeUnknown: leaders may have changed. Indefinite.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        return await clusters.elect(
            self._cluster, topic, wanted, is_unclean=unclean, deadline=self._deadline()
        )

    async def restart_empty(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> tuple[Election, ...]:
        """Let partitions whose brokers are lost for good start again on other brokers, empty.

        All records of these partitions are given up: if one of their brokers comes back later, what
        it has of them is not served any more. A partition with a leader, or with a replica on an
        active broker, is left alone.

        Args:
            topic: its name.
            partitions: None: all of them.

        Returns:
            The outcome for each partition; where it failed with a definite error, nothing is given
            up. "led already": it has a leader, which an earlier try may have elected.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            OutcomeUnknown: some may have started. Indefinite.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        return await clusters.elect(
            self._cluster,
            topic,
            wanted,
            is_unclean=False,  # a broker of an earlier version would elect what lacks records
            starts_empty=True,
            deadline=self._deadline(),
        )

    async def partition_leaders(self) -> tuple[PartitionLeader, ...]:
        """The leader of each partition, and its preferred one, which `elect_leaders` elects."""
        return await clusters.partition_leaders(self._cluster, deadline=self._deadline())

    async def describe_cluster(self) -> ClusterDetails:
        """Its name, its controller, and its brokers with addresses, racks and states."""
        return await clusters.cluster_details(self._cluster, deadline=self._deadline())

    async def broker_loads(self) -> dict[int, BrokerLoad]:
        """How many partitions each broker leads and holds; those that hold none are left out."""
        return await clusters.broker_loads(self._cluster, deadline=self._deadline())

    async def health(self) -> Health:
        """Which brokers are down, and which partitions are affected."""
        return await clusters.find_health(self._cluster, deadline=self._deadline())
