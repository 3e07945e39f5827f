"""The values that `Admin` returns: frozen dataclasses on topics, brokers, health and groups.

Sends nothing. Broker ids and offsets are ints, times are milliseconds; None means not known, or
that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from raftmq.topic_config import topic_warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.errors import RaftmqError
    from raftmq.model import Address


BrokerState: TypeAlias = Literal["active", "down", "stopping"]
ElectionOutcome: TypeAlias = Literal["elected", "led already", "failed"]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it is now. Numbers that were not given are the cluster's choice.

    Attributes:
        replication_factor: 3 if it was not given, or the number of nodes where there are fewer.
        warning: where a topic that was there differs from what was asked for; and what one broker
            that is down does to the topic, where another choice would have kept it available.
            Empty: nothing.
        is_new: this call has made it. With `if_not_exists` False where it was there already, which
            may be the work of an earlier attempt of this call whose answer was lost.
    """

    name: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    warning: str = ""
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        replication_factor: of the partition with the most replicas.
        under_replicated: partitions with a replica that is not in sync, or offline.
        leaderless: partitions without a leader: they can be neither written nor read.
    """

    name: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    under_replicated: int
    leaderless: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """How large one partition is. None: a broker that would know has not answered, or is too old.

    Attributes:
        record_count: offsets of the leader's log, from its start to its end. Control batches take
            offsets, too, and records that are not committed yet count.
        log_bytes: of the leader's log on its disk, without indexes.
        replica_bytes: of the logs of all replicas together.
    """

    partition: int
    record_count: int | None
    log_bytes: int | None
    replica_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopicSize:
    """How large a topic is: the sums of its partitions. None where that of a partition is None."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionSize, ...]

    @property
    def record_count(self) -> int | None:
        return _sum(one.record_count for one in self.partitions)

    @property
    def log_bytes(self) -> int | None:
        return _sum(one.log_bytes for one in self.partitions)

    @property
    def replica_bytes(self) -> int | None:
        return _sum(one.replica_bytes for one in self.partitions)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """One partition.

    Attributes:
        leader: None: it has none.
        leader_epoch: grows with each election.
        partition_epoch: grows with each change of leader, replicas or in-sync set.
        replicas: broker ids, the preferred leader first.
        isr: the replicas that are in sync.
        start_offset: of the oldest record; None: no leader has answered.
        end_offset: after the newest committed record; None: no leader has answered.
        is_recovering: its last election was unclean, and records may have been lost.
        last_stable_offset: up to where readers of committed transactions get records: below the end
            while a transaction is open, or rot may hide one; None: no leader has answered.
        adding, removing: of the replicas, while it moves (`moves` says how far it is): those that
            were not there before, and those that go when these are in sync.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None
    is_recovering: bool
    last_stable_offset: int | None = None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The effective value of one key, as text; `is_default`: it is not set for this topic."""

    value: str
    is_default: bool


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic with all of its partitions, in the order of their numbers, and its configuration."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionDetails, ...]
    config: Mapping[str, ConfigValue]

    @property
    def replication_factor(self) -> int:
        """Of the partition with the most replicas."""
        return max((len(one.replicas) for one in self.partitions), default=0)

    @property
    def warning(self) -> str:
        """As in `CreatedTopic`, for the partition with the fewest replicas."""
        fewest = min((len(one.replicas) for one in self.partitions), default=0)
        return topic_warning(fewest, {key: one.value for key, one in self.config.items()})


@dataclass(frozen=True, slots=True)
class Election:
    """The outcome of a requested leader election in one partition; `error`: why it failed."""

    partition: int
    outcome: ElectionOutcome
    error: RaftmqError | None = None


@dataclass(frozen=True, slots=True)
class BrokerDetails:
    """One broker.

    Attributes:
        address: where programs reach it; None: it has no listener for them.
        listeners: all addresses, by the names of the listeners.
        rack: None: not configured.
        state: "down": the cluster does not count on it; "stopping": it hands over its leaderships.
        clock_ahead_ms: of a clock that is wrong, see `WrongClock`; None for all others.
        software_version: the version of raftmq that it runs, or ran when it was last up; None: too
            old to report it.
    """

    broker_id: int
    address: Address | None
    listeners: Mapping[str, Address]
    rack: str | None
    state: BrokerState
    clock_ahead_ms: int | None = None
    software_version: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """The cluster and its brokers.

    Attributes:
        controller_id: the leader of the quorum; None: none is known.
        metadata_version: number of metadata changes so far.
        feature_level: what all nodes understand.
        brokers: all that ever registered, by id.
        voters: of the quorum, with the addresses at which they listen for each other; empty: the
            brokers are too old to report them.
    """

    cluster_id: str
    controller_id: int | None
    metadata_version: int
    feature_level: int
    brokers: tuple[BrokerDetails, ...]
    voters: Mapping[int, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Numbers of partitions that a broker leads and holds, and of these in which it is not in
    sync.
    """

    leads: int
    replicas: int
    not_in_sync: int


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """The leader of one partition. `leader`: None: it has none; `preferred`: its first replica."""

    topic: str
    partition: int
    leader: int | None
    preferred: int
    isr: tuple[int, ...]

    @property
    def is_preferred(self) -> bool:
        return self.leader == self.preferred


@dataclass(frozen=True, slots=True)
class AilingPartition:
    """A partition with missing replicas. `missing`: those that are not in sync."""

    topic: str
    partition: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DamagedReplica:
    """A replica whose bytes on disk are not what was written, as its broker has found, or whose
    disk takes nothing more, as a full one.

    Attributes:
        offset: the first that it cannot read, or write.
        what: the place, and what is wrong.
    """

    topic: str
    partition: int
    broker_id: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class FragileTopic:
    """A topic that becomes unavailable, in part or as a whole, when one broker is down.

    Attributes:
        replication_factor: of the partition with the fewest replicas.
        min_insync_replicas: as configured; all replicas, where there are fewer.
        warning: what that means, in words.
    """

    topic: str
    replication_factor: int
    min_insync_replicas: int
    warning: str


@dataclass(frozen=True, slots=True)
class WrongClock:
    """A broker with a wrong clock. `ahead_ms`: of most other brokers' clocks; negative: behind
    them.
    """

    broker_id: int
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition with a transaction that is open for longer than it may.

    Attributes:
        transaction_id: of the oldest one there; None: the quorum knows none (any more).
        open_seconds: for how long the present leader has had it open.
    """

    topic: str
    partition: int
    transaction_id: str | None
    open_seconds: float


@dataclass(frozen=True, slots=True)
class UnsettledTransaction:
    """A transaction id with commits that are not settled: in some partition they have no marker.

    Attributes:
        commits: how many.
        oldest_seconds: since its present coordinator knows of the oldest.
    """

    transaction_id: str
    commits: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the cluster.

    Attributes:
        brokers_down: broker ids; includes voters of the quorum that never registered.
        leaderless: partitions that can be neither written nor read.
        under_replicated: partitions that can be used; one more failed broker may change that.
        fragile: topics that one broker that is down makes unavailable, by their configuration. No
            fault: it may be intended, so `is_healthy` ignores it.
        wrong_clocks: brokers that delete nothing for its age until their clocks agree again.
        silent: ids of brokers on which the cluster counts, and which do not answer this client:
            their processes may have just ended, as all of them may where the quorum has no leader.
        addresses: where clients reach each broker, by its id.
        damaged: replicas, as reported by the brokers until they are repaired; 500 of each broker at
            most.
        damaged_count: of all.
        held: partitions whose readers of committed records wait for a transaction that is open for
            longer than any timeout; 100 of each broker at most.
        unsettled: transaction ids with commits that have not been settled for a minute; likewise.
        voters_together: ids of voters of the quorum that share a host, and so fail together, by
            that host. No fault, as `fragile`; loopback addresses are no host here.
    """

    cluster_id: str
    controller_id: int | None
    broker_count: int
    topic_count: int
    partition_count: int
    brokers_down: tuple[int, ...]
    leaderless: tuple[AilingPartition, ...]
    under_replicated: tuple[AilingPartition, ...]
    fragile: tuple[FragileTopic, ...] = ()
    wrong_clocks: tuple[WrongClock, ...] = ()
    silent: tuple[int, ...] = ()
    addresses: Mapping[int, Address] = field(default_factory=dict)
    damaged: tuple[DamagedReplica, ...] = ()
    damaged_count: int = 0
    held: tuple[HeldPartition, ...] = ()
    unsettled: tuple[UnsettledTransaction, ...] = ()
    voters_together: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        has_controller = self.controller_id is not None
        return has_controller and not (
            self.brokers_down
            or self.leaderless
            or self.under_replicated
            or self.wrong_clocks
            or self.silent
            or self.damaged_count
            or self.held
            or self.unsettled
        )


# -- Groups ---------------------------------------------------------------------------------------
# What the calls on consumer groups return.
#
# A committed offset is that of the next record to read.


TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list.

    Attributes:
        state: Empty, PreparingRebalance, CompletingRebalance or Stable.
        protocol_type: "consumer"; empty: no member ever joined, its offsets were committed by other
            programs.
        coordinator: id of the coordinating broker.
    """

    name: str
    state: str
    protocol_type: str
    member_count: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        instance_id: None: it is not a static member.
        client_id: what the program calls itself.
        host: where its connection comes from.
        topics: to which it has subscribed; None: its subscription has an unknown format.
        partitions: that it reads; None likewise.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...] | None
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with its members, in the order of their ids.

    Attributes:
        generation: grows with each rebalance.
        protocol: the assignor that its members have agreed on; empty without members.
        leader: the member that plans the assignment; empty without members.
        coordinator: id of the coordinating broker.
        tags: the filter by which all members read, as an expression; None: they read all records,
            or there are none.
    """

    name: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: int
    members: tuple[GroupMember, ...]
    tags: str | None = None


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset.

    Attributes:
        offset: of the next record to read.
        leader_epoch: of the record before it; None: not known.
        metadata: the text that was committed with it.
        committed_at_ms: milliseconds since 1970-01-01 UTC; None: not known.
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    committed_at_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is in one partition.

    Attributes:
        committed: None: nothing yet.
        end_offset: up to where the group gets records: after the newest committed one, or where
            the first transaction begins that is still open; None: no leader has answered.
        lag: offsets, not records, from the committed offset to the end; from the oldest record if
            that is later, or if nothing is committed. Control batches take offsets, too: behind the
            last record the lag stays above 0 until a member has passed and committed them. None:
            the end is not known.
        member: the member that reads it now.
        age_seconds: since the timestamp of the oldest record that is not read, by this machine's
            clock; 0 where none is left, or that time is in the future. None: it was not asked for,
            or is not known: no leader has answered, the record was deleted meanwhile, cannot be
            decoded, or has no timestamp.
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    lag: int | None
    member: GroupMember | None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The change of one committed offset.

    Attributes:
        old: the committed offset before; None: nothing.
        new: the committed offset now, or after a real run.
        start_offset, end_offset: of the log; `new` lies between them, or at one of them.
        asked: the requested offset, where it lies outside of the log; None: it does not.
    """

    old: int | None
    new: int
    start_offset: int
    end_offset: int
    asked: int | None = None


# -- Transactions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """A transaction id, as the quorum knows it. Whether records of its present transaction stand in
    a log is known by that log alone: see `Admin.open_transactions`.

    Attributes:
        producer_id, producer_epoch: the present transaction, or the next one; of a shared one the
            first of its members' ids, or -1 where no version is open.
        timeout_ms: after which leaders that are held up have it aborted.
        is_ephemeral: nobody opens the id again; it is forgotten an hour after its last transaction.
        last_outcome: "committed" or "aborted": the newest that ended; "reopened": a producer has
            opened the id since, and what was open then, if anything was, is aborted; of a shared
            one: a higher version was begun, which aborted the open one; None: none of these.
        last_reason: why it was aborted: "program", "timeout", "operator"; else None.
        last_version: the highest version that was committed; None: no transaction had one.
        last_count: rows of it, as its program counted them; None: it did not say.
        unsettled: commits that some partitions have not marked yet.
        unsettled_partitions: topic and number of these.
        changed_at_ms: when that was, or, as long as there was none, when the id was opened; in
            milliseconds since 1970-01-01 UTC.
        lineage: of a shared one, whose versions these are; None: it is not shared.
        open_version: of a shared one: which version is open; None: none.
        members: how many have joined that version.
    """

    transaction_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    is_ephemeral: bool
    last_outcome: str | None
    last_reason: str | None
    last_version: int | None
    last_count: int | None
    unsettled: int
    unsettled_partitions: tuple[TopicPartition, ...]
    changed_at_ms: int | None
    lineage: str | None = None
    open_version: int | None = None
    members: int = 0


@dataclass(frozen=True, slots=True)
class OpenInTopic:
    """A transaction that holds back the readers of a partition.

    Attributes:
        transaction_id: None: the quorum does not know any (any more), so it will be aborted.
        first_offset: of its first record there.
        open_seconds: for how long the present leader has had it open.
        last_stable_offset, high_watermark: of the partition: readers wait at the first, and would
            be at the second.
    """

    topic: str
    partition: int
    transaction_id: str | None
    producer_id: int
    producer_epoch: int
    first_offset: int
    open_seconds: float
    last_stable_offset: int
    high_watermark: int
