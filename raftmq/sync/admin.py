"""Blocking admin: the calls of `raftmq.client.administration.Admin`, run in the loop's thread.

Adds nothing but the wait: each call has the arguments, results and errors of the asynchronous one.
All but the head of the class is written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Literal, Never

    from raftmq.client.administration.admin import Admin as AsyncAdmin
    from raftmq.client.administration.admin import When
    from raftmq.client.administration.groups.calls import To
    from raftmq.client.administration.moves import (
        CancelledMove,
        PartitionMove,
        ReplicationChange,
        RequestedMove,
    )
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
        OpenInTopic,
        PartitionLag,
        PartitionLeader,
        TopicDetails,
        TopicPartition,
        TopicSize,
        TopicSummary,
        TransactionDetails,
    )
    from raftmq.client.administration.scheduled import TopicSchedule
    from raftmq.client.scheduling.handles import ScheduleHandle
    from raftmq.errors import RaftmqError
    from raftmq.sync.loop import Loop


class Admin:
    """`client.admin`: topics, their configuration and records, groups, leaders, and the state of
    the cluster.

    Every call repeats what may be repeated until its time is over, 30 s unless `with_timeout` says
    otherwise; Ctrl-C ends it at once.

    All calls raise TypeError for an argument of a wrong type, and otherwise a RaftmqError:
    `Unreachable` if no broker has answered; `OutcomeUnknown` (indefinite) if a change may have
    happened, or may yet. After any other error nothing was changed (definite). Calls on groups
    raise InvalidGroupId for an invalid name, and CoordinatorNotAvailable if no broker coordinated
    the group until the time was over.
    """

    def __init__(self, loop: Loop, admin: AsyncAdmin) -> None:
        self._loop, self._admin = loop, admin

    def __repr__(self) -> str:
        return repr(self._admin)

    def with_timeout(self, seconds: float) -> Admin:
        """The same admin for calls with another time limit.

        Args:
            seconds: for all attempts of one call together.
        """
        return Admin(self._loop, self._admin.with_timeout(seconds))

    # -- topics ----------------------------------------------------------------------------

    def create_topic(
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
        return self._loop.call(
            lambda: self._admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                if_not_exists=if_not_exists,
                **unknown,
            )
        )

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete the topic that has this name now, with all of its records. When this returns, no
        broker that answers acknowledges records of it any more; one that is silent is waited for,
        for 5 s at most.

        Args:
            missing_ok: no topic of this name is no error.

        Raises:
            UnknownTopicOrPartition: there is none; not with `missing_ok`. Definite.
            OutcomeUnknown: it may be gone, or soon be. Indefinite.
        """
        self._loop.call(lambda: self._admin.delete_topic(name, missing_ok=missing_ok))

    def list_topics(self, names: Collection[str] | None = None) -> tuple[TopicSummary, ...]:
        """All topics, by name.

        Args:
            names: only those of these that exist. None: all.
        """
        return self._loop.call(lambda: self._admin.list_topics(names))

    def topic_sizes(self, topics: Collection[str] | None = None) -> dict[str, TopicSize]:
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
        return self._loop.call(lambda: self._admin.topic_sizes(topics))

    def describe_topic(self, name: str) -> TopicDetails:
        """A topic's partitions with leaders, replicas, epochs and offsets, and its configuration.

        Raises:
            UnknownTopicOrPartition: there is none. Definite.
        """
        return self._loop.call(lambda: self._admin.describe_topic(name))

    def create_partitions(self, name: str, total: int) -> None:
        """Let a topic grow to `total` partitions, and wait until all of them have leaders.

        Records stay where they are, but the partition of a key may be another one from then on.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidPartitions: it has as many already, or more; a topic never shrinks. Definite.
            OutcomeUnknown: it may have grown; or it has, and some of it cannot be used yet.
                Indefinite.
        """
        self._loop.call(lambda: self._admin.create_partitions(name, total))

    # -- configuration ---------------------------------------------------------------------

    def describe_config(self, name: str) -> dict[str, ConfigValue]:
        """The effective value of each key of a topic, with whether it is the default.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
        """
        return self._loop.call(lambda: self._admin.describe_config(name))

    def alter_config(self, name: str, changes: Mapping[str, str | int | bool | None]) -> None:
        """Set some keys of a topic, all of them or none; other keys stay as they are.

        Args:
            changes: None resets a key to its default.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidConfig: names every bad key, and the key that may have been meant. Definite.
            OutcomeUnknown: they may have been set, or soon be. Indefinite.
        """
        self._loop.call(lambda: self._admin.alter_config(name, changes))

    # -- records ---------------------------------------------------------------------------

    def offsets(
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
        return self._loop.call(
            lambda: self._admin.offsets(
                topic, at, partitions=partitions, isolation_level=isolation_level
            )
        )

    def delete_records(
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
        return self._loop.call(lambda: self._admin.delete_records(topic, before))

    # -- the cluster -----------------------------------------------------------------------

    def elect_leaders(
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
        return self._loop.call(
            lambda: self._admin.elect_leaders(topic, partitions, unclean=unclean)
        )

    def restart_empty(
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
        return self._loop.call(lambda: self._admin.restart_empty(topic, partitions))

    def partition_leaders(self) -> tuple[PartitionLeader, ...]:
        """The leader of each partition, and its preferred one, which `elect_leaders` elects."""
        return self._loop.call(self._admin.partition_leaders)

    def describe_cluster(self) -> ClusterDetails:
        """Its name, its controller, and its brokers with addresses, racks and states."""
        return self._loop.call(self._admin.describe_cluster)

    def broker_loads(self) -> dict[int, BrokerLoad]:
        """How many partitions each broker leads and holds; those that hold none are left out."""
        return self._loop.call(self._admin.broker_loads)

    def health(self) -> Health:
        """Which brokers are down, and which partitions are affected."""
        return self._loop.call(self._admin.health)

    # -- groups ----------------------------------------------------------------------------

    def list_groups(self) -> tuple[GroupSummary, ...]:
        """All groups, by name. Every broker is asked, as each one knows only the groups that it
        coordinates.
        """
        return self._loop.call(self._admin.list_groups)

    def describe_group(self, name: str) -> GroupDetails:
        """Its state, its coordinator, and its members with what each of them reads.

        Raises:
            GroupIdNotFound: there is none. Definite.
        """
        return self._loop.call(lambda: self._admin.describe_group(name))

    def group_offsets(self, name: str) -> dict[TopicPartition, GroupOffset]:
        """The group's committed offsets, by topic and partition.

        A deleted topic is named by its id in hexadecimal.

        Raises:
            GroupIdNotFound: there is no such group. Definite.
        """
        return self._loop.call(lambda: self._admin.group_offsets(name))

    def group_lag(self, name: str, *, with_ages: bool = False) -> tuple[PartitionLag, ...]:
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
        return self._loop.call(lambda: self._admin.group_lag(name, with_ages=with_ages))

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
        return self._loop.call(
            lambda: self._admin.reset_group_offsets(
                name, to=to, shift=shift, topics=topics, partitions=partitions, dry_run=dry_run
            )
        )

    def alter_group_offsets(
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
        self._loop.call(lambda: self._admin.alter_group_offsets(name, offsets, expected=expected))

    def delete_group(self, name: str) -> None:
        """Delete a group without members, with its committed offsets.

        Raises:
            GroupIdNotFound: there is none. Definite.
            NonEmptyGroup: the group has members: stop them first. Definite.
            InvalidUpdateVersion: the group has changed during the call: describe it again.
                Definite.
            OutcomeUnknown: it may be gone, or soon be. Indefinite.
        """
        self._loop.call(lambda: self._admin.delete_group(name))

    def delete_group_offsets(self, name: str, partitions: Collection[TopicPartition]) -> None:
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
        self._loop.call(lambda: self._admin.delete_group_offsets(name, partitions))

    def list_transactions(
        self, *, unsettled: bool = False, idle_seconds: float = 0.0
    ) -> tuple[TransactionDetails, ...]:
        """Transaction ids, in their order.

        Args:
            unsettled: only those with commits that some partitions have not marked yet.
            idle_seconds: only those whose last transaction ended so long ago, by this machine's
                clock.
        """
        return self._loop.call(
            lambda: self._admin.list_transactions(unsettled=unsettled, idle_seconds=idle_seconds)
        )

    def describe_transaction(self, transaction_id: str) -> TransactionDetails:
        """What the quorum knows of a transaction id.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
        """
        return self._loop.call(lambda: self._admin.describe_transaction(transaction_id))

    def open_transactions(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> tuple[OpenInTopic, ...]:
        """The transactions that are open in a topic, by partition and first offset: what readers
        with `read_committed` wait for.

        Args:
            partitions: None: all of them.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            LeaderNotAvailable: some partition has no leader. Definite.
        """
        return self._loop.call(lambda: self._admin.open_transactions(topic, partitions))

    def abort_transaction(self, transaction_id: str) -> None:
        """Abort what is open under the id, and let its producer know. One that has ended by itself
        meanwhile stays as it is.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
            OutcomeUnknown: it may be aborted, or soon be. Indefinite.
        """
        self._loop.call(lambda: self._admin.abort_transaction(transaction_id))

    def forget_transaction(self, transaction_id: str, *, with_unsettled: bool = False) -> None:
        """Abort what is open under the id, and forget the id with its versions: a version that was
        committed before can be committed again afterwards.

        Args:
            with_unsettled: also with commits that some partitions have not marked yet. There they
                are aborted then: such a transaction is torn. For partitions that are lost for good.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
            InvalidTransaction: commits are not settled yet. Definite.
            OutcomeUnknown: it may be forgotten, or soon be. Indefinite.
        """
        self._loop.call(
            lambda: self._admin.forget_transaction(transaction_id, with_unsettled=with_unsettled)
        )

    def cancel_scheduled(
        self, handles: ScheduleHandle | Iterable[ScheduleHandle]
    ) -> dict[ScheduleHandle, RaftmqError]:
        """Cancel records that are scheduled: consumers never get them. Answered once that holds for
        every later leader.

        Args:
            handles: one, or several of any topics. Each record is cancelled by itself.

        Returns:
            Of several handles those whose records are not, or not certainly, cancelled, and why;
            nothing for a single one.

        Raises:
            CannotCancel: of a single handle: the record was delivered, or cancelled before, its
                transaction was aborted, or there is no such scheduled record. Definite.
            UnknownTopicId: likewise: its topic was deleted. Definite.
            InvalidRequest: a handle was made by hand, of something else. Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: it may be cancelled, or soon be. Indefinite.
        """
        return self._loop.call(lambda: self._admin.cancel_scheduled(handles))

    def scheduled(
        self, topic: str, partition: int | None = None, *, limit: int = 100
    ) -> TopicSchedule:
        """What is scheduled in a topic and not delivered yet.

        Args:
            partition: only this one; None: all of them.
            limit: so many records are listed at the most; 0: none, only the counts.

        Returns:
            Counts, the next due time, and records with their handles.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            LeaderNotAvailable: some partition has no leader. Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
        """
        return self._loop.call(lambda: self._admin.scheduled(topic, partition, limit=limit))

    def move_partitions(
        self, moves: Mapping[TopicPartition, Collection[int]]
    ) -> tuple[RequestedMove, ...]:
        """Give partitions replicas on other brokers. Returns when the moves are planned; the
        cluster carries them out, a few at a time, and goes on when brokers or this program end:
        see `moves`.

        New replicas are copied while the present ones serve; these are dropped when all new ones
        are in sync. A plan takes the place of an earlier one for the same partition.

        Args:
            moves: by topic and partition the ids of the brokers that are to have it, the preferred
                leader first, like {("orders", 3): [2, 4, 5]}.

        Returns:
            The outcome for each partition; where it has a definite error, nothing was planned.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition; nothing was planned.
                Definite.
            InvalidReplicaAssignment: no broker, or one twice, or too many. Definite. For a broker
                that does not exist it is the error of the outcome.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some moves may be planned, or soon be. Indefinite.
        """
        return self._loop.call(lambda: self._admin.move_partitions(moves))

    def cancel_moves(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> tuple[CancelledMove, ...]:
        """Take back moves that wait or are under way: the partitions keep the replicas that they
        had before. One under way is refused while that would leave no replica in sync, as when the
        brokers that had the partition are down.

        Args:
            partitions: by topic and number. None: all that wait or are under way.

        Returns:
            The outcome for each partition.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition; nothing was cancelled.
                Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some may be cancelled, or soon be. Indefinite.
        """
        return self._loop.call(lambda: self._admin.cancel_moves(partitions))

    def moves(self) -> tuple[PartitionMove, ...]:
        """The moves that are under way, with how far they are, then those that wait for their
        turn, in the order in which they will begin.

        Raises:
            UnsupportedVersion: some voter or broker is of an older version. Definite.
        """
        return self._loop.call(self._admin.moves)

    def alter_replication_factor(
        self, topic: str, replication_factor: int, *, dry_run: bool = False
    ) -> ReplicationChange:
        """Give each partition of a topic so many replicas. Returns when the moves are planned; see
        `move_partitions`.

        More replicas come to the active brokers that have the fewest, of other racks first. Fewer:
        those go first that are not in sync, never the leader while there is another, and last those
        that are alone in their rack.

        Args:
            dry_run: only say what would be planned.

        Returns:
            The moves, each with its outcome; a topic that has so many replicas has none.

        Raises:
            UnknownTopicOrPartition: there is no such topic. Definite.
            InvalidReplicationFactor: not so many brokers are active; names those that are.
                Definite.
            UnsupportedVersion: some voter or broker is of an older version. Definite.
            OutcomeUnknown: some moves may be planned, or soon be. Indefinite.
        """
        return self._loop.call(
            lambda: self._admin.alter_replication_factor(topic, replication_factor, dry_run=dry_run)
        )
