"""The immutable metadata image: topics, partitions, brokers, groups (Kafka: MetadataImage).

Owns the record types and the lookups; only `apply` makes new images. Maps are persistent hash
tries (immutables.Map): a changed image shares all but the changed path with its predecessor, so
a change costs O(change) at any size, and readers keep an old image as long as they need it
(decision 0010).

Invariants (asserted after every command of the simulations by `tests.metadata_invariants`):
  1. `hosted[b]` holds exactly the partitions that have b among their replicas.
  2. A partition's leader is in its ISR; ISR and eligible replicas are disjoint subsets of replicas.
  3. A fenced broker leads nothing and is in no ISR, except while its `pending` review goes on.
  4. partition_epoch grows at each change of a partition, leader_epoch at each change of leader.
  5. `tallies[b]` counts the partitions in which b has a role; without a role it has no entry.
  6. `deleted_topics` holds each id once, and none of an existing topic.
  7. `transaction_ids` holds exactly the producer ids of `TransactionState.producer_ids`, all of
     which are below `next_producer_id`.
  8. `moving` holds exactly the partitions with a reassignment in progress.
  9. `moves` holds plans of partitions that exist, for brokers that are registered, and none for
     the replicas that its partition has, or is becoming, in any case.
"""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

from crc32c import crc32c
from immutables import Map
from msgspec import field

from raftmq.metadata.commands import (
    NO_BROKER,
    NO_EPOCH,
    NO_VERSION,
    AnyResult,
    Endpoint,
    GroupMemberRecord,
    PartitionId,
    RecoveryState,
    Value,
)
from raftmq.model import AbortReason
from raftmq.wire.batch.header import NAMED_FIRST
from raftmq.wire.messages.groups import SLOTS_MAX

# Coordinator slots. Fixed for ever: `slot_of` maps a group to a slot by modulo, and its committed
# offsets are reached through that slot (decision 0021).
SLOT_COUNT = SLOTS_MAX  # lists of groups say which of them they cover
# Ids of the last deleted topics (160 kB), for brokers that were down then. More deletions during
# one downtime leave their directories on that broker's disk (decision 0030).
DELETED_TOPICS_MAX = 10_000
# Results kept of each broker's current epoch: a retry within the last 1,024 commands gets its first
# result again, an older one is refused. They stand in every snapshot, so they are bounded.
RECENT_COMMANDS_MAX = 1024
# Plans of moves that wait: they stand in every snapshot, and the controller goes through them.
MOVES_MAX = 10_000
PRODUCER_ID_MAX = NAMED_FIRST - 1  # from NAMED_FIRST (2^62) on: ids derived from producer names


class Pending(IntFlag):
    """What a review of a broker's partitions still has to do, slice by slice (decision 0013)."""

    NOTHING = 0
    MOVE_LEADERS = 1  # the broker is fenced or stopping: leads nothing, leaves every ISR
    REVOKE_PAGE_CACHE = 2  # its page cache was lost: no trust where a topic relied on it
    REVOKE_ALL = 4  # its disk is not the registered one: no replica on it is trusted


class BrokerState(Value, frozen=True):
    broker_id: int
    broker_epoch: int  # the version at which this incarnation registered
    incarnation: bytes
    directory_id: bytes
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None  # of no known failure domain
    feature_level_min: int = 1  # the levels that its version supports
    feature_level_max: int = 1
    boot_id: str = ""  # of its kernel: another one means that the page cache was lost
    fenced: bool = True  # every registration begins fenced
    in_controlled_shutdown: bool = False  # leads and is in sync only while no other could lead
    pending: Pending = Pending.NOTHING  # invariant: not unfenced before this is NOTHING
    pending_since: int = NO_EPOCH  # the version at which `pending` last grew
    damaged: tuple[tuple[bytes, int], ...] = ()  # partitions whose replica here lost data; sorted
    disk_epoch: int = NO_EPOCH  # broker epoch when last unfenced: its disk has this one or a later
    # For operators, and for plans of topics. No rule of `apply` may read these two: nodes of an
    # earlier version do not keep them.
    software_version: str = ""
    logs_max: int = 0  # partitions that its file descriptors allow; 0: not known


class TopicState(Value, frozen=True):
    topic_id: bytes
    name: str
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)
    config_epoch: int = 0  # the version of the last change of `configs`
    trusts_page_cache: bool = False  # never cleared: records acknowledged then may be unsynced


class PartitionState(Value, frozen=True):
    """The assignment record of one partition (docs/GLOSSARY.md has the words)."""

    replicas: tuple[int, ...]  # preferred leader first
    isr: tuple[int, ...]
    leader: int = NO_BROKER
    leader_epoch: int = 0  # invariant 4
    partition_epoch: int = 0  # the compare-and-set token of its leader's proposals
    adding: tuple[int, ...] = ()  # by the reassignment in progress
    removing: tuple[int, ...] = ()  # when it is complete
    eligible: tuple[int, ...] = ()  # KIP-966: left the ISR below min ISR, holds all committed
    last_known_eligible: tuple[int, ...] = ()
    recovery_state: RecoveryState = RecoveryState.RECOVERED  # else: elected uncleanly
    log_start_offset: int = 0  # records before it were deleted on request; only rises

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment; the present ones, if none is in progress."""
        return tuple(b for b in self.replicas if b not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(b for b in self.replicas if b not in self.adding)


class PlannedMove(Value, frozen=True):
    """Replicas that a partition is to have once its turn comes (decision 0044).

    `planned_at`: the version at which it was planned; plans have their turn in this order.
    """

    replicas: tuple[int, ...]  # preferred leader first
    planned_at: int


class SlotState(Value, frozen=True):
    """One coordinator slot: which broker coordinates its groups, since which change."""

    broker_id: int = NO_BROKER
    epoch: int = 0


class GroupState(Value, frozen=True):
    """A consumer group as of its last complete rebalance. Offsets stand in `image.offsets`."""

    generation: int
    protocol_type: str = "consumer"
    protocol: str = ""
    leader: str = ""
    members: tuple[GroupMemberRecord, ...] = ()
    changed_at_ms: int = 0
    tags: str = ""  # the filter of all members, an expression; empty: none


class Crashes(Value, frozen=True):
    """Of the first record that is not committed (decision 0043).

    Attributes:
        count: of crashes of the members that had its partition.
        alone_by: the member that handles it, and nothing else; empty: none does.
    """

    count: int = 0
    alone_by: str = ""


class CommittedOffset(Value, frozen=True):
    """`offset` -1: nothing is committed, and only crashes are known."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    committed_at_ms: int = 0
    crashes: Crashes | None = None  # none, of most


# Members of one version, and producer ids of a block: so a producer id says in which block it is.
MEMBERS_MAX = 8_192


class TransactionDecision(Value, frozen=True):
    """What became of a transaction; answers a retry of its end."""

    producer_id: int
    producer_epoch: int
    is_committed: bool
    reason: AbortReason = AbortReason.NONE
    version: int = NO_VERSION


class UnsettledCommit(Value, frozen=True):
    """A committed transaction, until each of `partitions` has its marker below the high watermark.

    Attributes:
        decided_at: the version of the metadata that decided it.
        numbers: of a shared one: its members that count, as bits (`SharedEnd`); `producer_id` is
            their block then.
    """

    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[bytes, int], ...]
    decided_at: int
    numbers: bytes = b""


class SharedVersions(Value, frozen=True):
    """Of a transaction id whose versions many producers write, its members, each under a producer
    id of its own: block + number, in epoch 0.

    Attributes:
        lineage: whose versions these are: numbers that begin again are another lineage's.
        open_version: -1: none is open.
        block: the first of `MEMBERS_MAX` producer ids, all of this opening of that version.
        joined: how many of them were given out.
    """

    lineage: str
    open_version: int = NO_VERSION
    block: int = -1
    joined: int = 0


class TransactionState(Value, frozen=True):
    """A transaction id. (producer_id, producer_epoch) is its present transaction, or the next one:
    whether a log has records of it is known by that log alone. Of a `shared` one both are -1.
    """

    producer_id: int
    producer_epoch: int
    owner: bytes
    opening: int
    timeout_ms: int
    is_ephemeral: bool = False
    last: TransactionDecision | None = None  # the newest
    last_version: int = NO_VERSION  # the highest that was committed
    last_count: int = NO_VERSION  # of that version
    settling: tuple[UnsettledCommit, ...] = ()  # the oldest first
    changed_at_ms: int = 0
    shared: SharedVersions | None = None

    def producer_ids(self) -> frozenset[int]:
        """Those of its present transaction and of commits that are not settled yet; of a shared one
        the blocks.
        """
        present = self.producer_id if self.shared is None else self.shared.block
        ids = [present, *(one.producer_id for one in self.settling)]
        return frozenset(each for each in ids if each >= 0)


class OriginState(NamedTuple):
    """The last commands of one broker: a retry gets the stored result, and is not applied again.

    Invariant: `results` holds sequences in (highest - RECENT_COMMANDS_MAX, highest] only.
    """

    epoch: int
    highest: int
    results: Map[int, AnyResult]


class ChangeKind(IntFlag):
    """Which part of the image a `TouchedKey` touched."""

    BROKER = 1
    TOPIC = 2
    PARTITION = 4
    SLOT = 8
    GROUP = 16
    OFFSETS = 32
    PRODUCER_IDS = 64
    FEATURE_LEVEL = 128
    # Keys are producer ids: those that the command gave to a transaction id, took from it, or left.
    TRANSACTION = 256
    # The same of blocks of members.
    TRANSACTION_BLOCK = 512
    MOVE = 1024  # plans; a reassignment in progress is a change of its PARTITION


class TouchedKey(NamedTuple):
    """One changed object: `key` is its key in the image's map of that kind."""

    kind: ChangeKind
    key: object


class MetadataImage(NamedTuple):
    """All metadata after the command at `version` (a Raft index)."""

    version: int = 0
    feature_level: int = 1
    next_producer_id: int = 0
    slots: tuple[SlotState, ...] = (SlotState(),) * SLOT_COUNT
    brokers: Map[int, BrokerState] = Map()
    topics: Map[bytes, TopicState] = Map()
    topic_ids: Map[str, bytes] = Map()  # derived from `topics`
    partitions: Map[PartitionId, PartitionState] = Map()
    hosted: Map[int, Map[PartitionId, None]] = Map()  # derived: invariant 1
    tallies: Map[int, Tally] = Map()  # derived: invariant 5
    moves: Map[PartitionId, PlannedMove] = Map()  # that wait; at most MOVES_MAX
    # Which replicas each reassignment in progress adds; derived: invariant 8
    moving: Map[PartitionId, tuple[int, ...]] = Map()
    groups: Map[str, GroupState] = Map()
    offsets: Map[str, Map[PartitionId, CommittedOffset]] = Map()
    transactions: Map[str, TransactionState] = Map()
    transaction_ids: Map[int, str] = Map()  # by producer id; derived: invariant 7
    origins: Map[int, OriginState] = Map()  # by broker id
    # Ids, in order, for brokers that were down. No rule of `apply` may read it: nodes of an earlier
    # version have none (docs/decisions/0030).
    deleted_topics: tuple[bytes, ...] = ()
    changes: tuple[TouchedKey, ...] = ()  # objects that the command at `version` changed

    def topic_named(self, name: str) -> TopicState | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker may lead and be in an ISR."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not (broker.fenced or broker.in_controlled_shutdown)

    def is_unfenced(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def hosted_by(self, broker_id: int) -> Map[PartitionId, None]:
        return self.hosted.get(broker_id, Map())

    def tally_of(self, broker_id: int) -> Tally:
        return self.tallies.get(broker_id, NO_TALLY)

    def led_count(self, broker_id: int) -> int:
        """How many partitions the broker leads, in O(1)."""
        return self.tally_of(broker_id).led


EMPTY_IMAGE = MetadataImage()  # of a new cluster, before its first command


def slot_of(group: str) -> int:
    """The coordinator slot of a group; stable for ever, as offsets depend on it."""
    return crc32c(group.encode()) % SLOT_COUNT


# -- Tallies --------------------------------------------------------------------------------------
# In how many partitions a broker has which role: counts that would otherwise need a scan of all.
#
# Owns `Tally` and the counting. Tallies are derived from the partitions: updated with each change
# of a partition, rebuilt when an image is decoded, and not part of snapshots.


class Tally(NamedTuple):
    """Partitions of one broker by role; `unsynced`: eligible, in topics that used a page cache."""

    led: int = 0
    in_sync: int = 0
    eligible: int = 0
    unsynced: int = 0
    last_led: int = 0


NO_TALLY = Tally()  # of a broker without any role


class Tallying:
    """Changes to the tallies, collected partition by partition and then applied at once."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def add(self, partition: PartitionState, *, trusts_page_cache: bool, times: int = 1) -> None:
        """Count a partition; `times` is -1 to subtract the state that it had before a change."""
        if partition.leader != NO_BROKER:
            self._of(partition.leader)[0] += times
        for broker_id in partition.isr:
            self._of(broker_id)[1] += times
        for broker_id in partition.eligible:
            counts = self._of(broker_id)
            counts[2] += times
            counts[3] += times * trusts_page_cache
        for broker_id in partition.last_known_eligible:
            self._of(broker_id)[4] += times

    def _of(self, broker_id: int) -> list[int]:
        counts = self._counts.get(broker_id)
        if counts is None:  # the first change of this broker in this command
            counts = self._counts[broker_id] = [0, 0, 0, 0, 0]
        return counts

    def added_to(self, tallies: Map[int, Tally]) -> Map[int, Tally]:
        """The next tallies; a broker without any role has no entry (invariant 5)."""
        for broker_id, counts in self._counts.items():
            before = tallies.get(broker_id, NO_TALLY)
            after = Tally(*[old + new for old, new in zip(before, counts, strict=True)])
            assert min(after) >= 0, f"broker {broker_id} has less than nothing: {after}"
            if after != NO_TALLY:  # see invariant 5
                tallies = tallies.set(broker_id, after)
            elif broker_id in tallies:  # its last role ended: equal states must have equal maps
                tallies = tallies.delete(broker_id)
        return tallies
