"""What `Admin` answers with: plain values, frozen, named as people speak of them.

Nothing here asks anybody. Broker ids and offsets are ints, times are milliseconds, None is what
nobody knows or what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from raftmq.config import MIN_ISR, replication_warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.errors import RaftmqError
    from raftmq.model import Address


BrokerState: TypeAlias = Literal["active", "down", "stopping"]
ElectionOutcome: TypeAlias = Literal["elected", "led already", "failed"]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What was made. Where no numbers were given these are the cluster's own choice.

    Attributes:
        replication_factor: fewer than the cluster's default where the cluster has fewer nodes.
        warning: what one broker that is down does to it, where another choice would have kept
            it in service; empty: nothing.
    """

    name: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    warning: str = ""


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list.

    Attributes:
        replication_factor: of the partition that has the most replicas.
        under_replicated: partitions of which a replica is not in sync, or not there.
        leaderless: partitions that nobody leads: they can be neither written nor read.
    """

    name: str
    topic_id: bytes
    partition_count: int
    replication_factor: int
    under_replicated: int
    leaderless: int


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """Attributes:
    leader: None: nobody leads.
    leader_epoch: grows with each election.
    partition_epoch: grows with each change of leader, replicas or in-sync set.
    replicas: broker ids, the preferred leader first.
    isr: the replicas that are in sync.
    start_offset: of the oldest record; None: no leader has told.
    end_offset: after the newest committed record; None: no leader has told.
    is_recovering: its last election was unclean, and records may have been lost.
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


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """What holds for one key, as text; `is_default`: nobody has set it for this topic."""

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
        """Of the partition that has the most replicas."""
        return max((len(one.replicas) for one in self.partitions), default=0)

    @property
    def warning(self) -> str:
        """As of `CreatedTopic`: of the partition that has the fewest replicas."""
        fewest = min((len(one.replicas) for one in self.partitions), default=0)
        min_isr = self.config.get(MIN_ISR)
        return replication_warning(fewest, int(min_isr.value) if min_isr else 0)


@dataclass(frozen=True, slots=True)
class Election:
    """What became of the wish for another leader of one partition; `error`: why it failed."""

    partition: int
    outcome: ElectionOutcome
    error: RaftmqError | None = None


@dataclass(frozen=True, slots=True)
class BrokerDetails:
    """Attributes:
    address: where programs reach it; None: it has no listener for them.
    listeners: all addresses, by the names of the listeners.
    rack: None: it was not told.
    state: "down": the cluster does not count on it; "stopping": it hands over what it leads.
    clock_ahead_ms: of a clock that is wrong, see `WrongClock`; None for all others.
    """

    broker_id: int
    address: Address | None
    listeners: Mapping[str, Address]
    rack: str | None
    state: BrokerState
    clock_ahead_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterDetails:
    """Attributes:
    controller_id: the broker that leads the quorum; None: nobody, as far as is known.
    metadata_version: how many changes of the metadata there have been.
    feature_level: what all nodes understand.
    brokers: all that ever registered, by id.
    voters: of the quorum, where they listen for each other; empty: the brokers do not tell.
    """

    cluster_id: str
    controller_id: int | None
    metadata_version: int
    feature_level: int
    brokers: tuple[BrokerDetails, ...]
    voters: Mapping[int, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Numbers of partitions: that a broker leads, that it holds, and of these it is not in sync."""

    leads: int
    replicas: int
    not_in_sync: int


@dataclass(frozen=True, slots=True)
class AilingPartition:
    """`missing`: its replicas that are not in sync."""

    topic: str
    partition: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DamagedReplica:
    """Of a broker that has found that what stands on its disk is not what was written.

    Attributes:
        offset: the first that it cannot read.
        what: where it is, and what is wrong.
    """

    topic: str
    partition: int
    broker_id: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class FragileTopic:
    """A topic that one broker which is down takes out of service, for some or for all.

    Attributes:
        replication_factor: of the partition that has the fewest replicas.
        min_insync_replicas: as configured; all replicas, where there are fewer.
        warning: what that means, in words.
    """

    topic: str
    replication_factor: int
    min_insync_replicas: int
    warning: str


@dataclass(frozen=True, slots=True)
class WrongClock:
    """`ahead_ms`: of most other brokers' clocks; negative: it is behind them."""

    broker_id: int
    ahead_ms: int


@dataclass(frozen=True, slots=True)
class Health:
    """Attributes:
    brokers_down: broker ids; a voter of the quorum that never registered counts as well.
    leaderless: can be neither written nor read.
    under_replicated: can be used; one broker more that fails may change that.
    fragile: topics made so that one broker that is down stops them. No sign of ill health: it was
        chosen, or nobody has thought of it.
    wrong_clocks: of brokers that delete nothing for its age until their clocks agree again.
    damaged: as the brokers themselves say, until they have it from another one again; 500 of
        each broker at most.
    damaged_count: of all.
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
    damaged: tuple[DamagedReplica, ...] = ()
    damaged_count: int = 0

    @property
    def is_healthy(self) -> bool:
        has_controller = self.controller_id is not None
        return has_controller and not (
            self.brokers_down
            or self.leaderless
            or self.under_replicated
            or self.wrong_clocks
            or self.damaged_count
        )


# -- Results --------------------------------------------------------------------------------------
# What the calls about consumer groups answer with: plain values, frozen.
#
# Nothing here asks anybody. An offset that a group has committed is that of the next record that it
# will read. None is what nobody knows or what is not there.


TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list.

    Attributes:
        state: Empty, PreparingRebalance, CompletingRebalance or Stable.
        protocol_type: "consumer"; empty: nobody ever joined, its offsets were committed from
            outside.
        coordinator: the broker that looks after it.
    """

    name: str
    state: str
    protocol_type: str
    member_count: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Attributes:
    instance_id: None: it is not a static member.
    client_id: what the program calls itself.
    host: where its connection comes from.
    topics: to which it has subscribed; None: it says so in a way that is not known here.
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
        generation: grows whenever the partitions are dealt out anew.
        protocol: the assignor that its members have agreed on; empty without members.
        leader: the member that deals out the partitions; empty without members.
        coordinator: the broker that looks after it.
    """

    name: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    coordinator: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Attributes:
    offset: of the next record to be read.
    leader_epoch: of the record before it; None: it was not told.
    metadata: the text that was committed with it.
    committed_at_ms: since 1970-01-01 UTC; None: it was not told.
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
        end_offset: after the newest committed record; None: no leader has told.
        lag: offsets, not records, from what is committed to the end; from the oldest record if
            that is later, or if nothing is committed. Control batches take offsets, too:
            behind the last record it stays above 0 until a member has passed and committed them.
            None: no leader has told the end.
        member: who reads it now.
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    lag: int | None
    member: GroupMember | None


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Attributes:
    old: what was committed; None: nothing.
    new: what is committed now, or would be.
    start_offset, end_offset: of the log; `new` lies between them, or at one of them.
    asked: what was asked for, where that lies outside of the log; None: it does not.
    """

    old: int | None
    new: int
    start_offset: int
    end_offset: int
    asked: int | None = None
