"""Messages of topics: create, delete, grow, delete records, elect leaders, describe them and logs.

A topic that is changed is named by its id, so that a later topic of the same name is not changed by
a late request. Each topic and partition of a request has an outcome of its own.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, field

from raftmq.errors import ErrorCode
from raftmq.wire.bodies import (
    ABSENT,
    ID_MAX,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    TIMEOUT_MS,
    TOPICS_MAX,
    Body,
    BrokerIdOrAbsent,
    BrokerIds,
    Configs,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    Offset,
    OffsetOrAbsent,
    Partition,
    PartitionOutcome,
    Request,
    TopicId,
    TopicOutcome,
)

PARTITIONS_PER_PAGE = 2_000  # of DescribeTopics, as in Kafka; and of DescribeLogs

PartitionCount: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
ReplicationFactor: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=REPLICAS_MAX)]
# The replicas of each partition, the preferred leader first; empty: the cluster chooses.
Assignments: TypeAlias = Annotated[tuple[BrokerIds, ...], Meta(max_length=PARTITIONS_MAX)]
TopicOutcomes: TypeAlias = Annotated[tuple[TopicOutcome, ...], Meta(max_length=TOPICS_MAX)]


class NewTopic(Body, frozen=True):
    """With `assignments` the two numbers are -1; without, -1 is the cluster's default."""

    name: Name
    partition_count: Annotated[int, Meta(ge=ABSENT, le=ID_MAX)] = ABSENT
    replication_factor: ReplicationFactor = ABSENT
    assignments: Assignments = ()
    configs: Configs = field(default_factory=dict)


class TopicCreated(Body, frozen=True):
    """`topic_id` is None if no topic was created."""

    name: Name
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    topic_id: TopicId | None = None
    partition_count: PartitionCount = 0
    replication_factor: ReplicationFactor = ABSENT


class CreateTopicsReply(Body, frozen=True):
    topics: Annotated[tuple[TopicCreated, ...], Meta(max_length=TOPICS_MAX)] = ()


class CreateTopics(Request, frozen=True):
    api_key = 19
    reply = CreateTopicsReply

    topics: Annotated[tuple[NewTopic, ...], Meta(max_length=TOPICS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    is_dry_run: bool = False  # check only


class DeleteTopicsReply(Body, frozen=True):
    topics: TopicOutcomes = ()


class DeleteTopics(Request, frozen=True):
    api_key = 20
    reply = DeleteTopicsReply

    topics: Annotated[tuple[TopicId, ...], Meta(max_length=TOPICS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS


class MorePartitions(Body, frozen=True):
    """`partition_count`: the new total. `assignments`: of the new partitions."""

    topic_id: TopicId
    partition_count: PartitionCount
    assignments: Assignments = ()


class CreatePartitionsReply(Body, frozen=True):
    topics: TopicOutcomes = ()


class CreatePartitions(Request, frozen=True):
    api_key = 37
    reply = CreatePartitionsReply

    topics: Annotated[tuple[MorePartitions, ...], Meta(max_length=TOPICS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    is_dry_run: bool = False  # check only


class RecordsToDelete(Body, frozen=True):
    """Delete everything before `before_offset`; -1: everything that is committed."""

    topic_id: TopicId
    partition: Partition
    before_offset: OffsetOrAbsent


class RecordsDeleted(Body, frozen=True):
    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    log_start_offset: OffsetOrAbsent = ABSENT


class DeleteRecordsReply(Body, frozen=True):
    partitions: Annotated[tuple[RecordsDeleted, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class DeleteRecords(Request, frozen=True):
    """Sent to the leaders of the partitions."""

    api_key = 21
    reply = DeleteRecordsReply

    partitions: Annotated[tuple[RecordsToDelete, ...], Meta(max_length=PARTITIONS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS


class WantedElection(Body, frozen=True):
    """`leader_epoch`: of the leader by the client's metadata; -1: of any."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class ElectLeadersReply(Body, frozen=True):
    partitions: Annotated[tuple[PartitionOutcome, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class ElectLeaders(Request, frozen=True):
    """Elect preferred leaders; with `is_unclean`, replicas that may lack committed records; with
    `starts_empty`, new replicas of partitions that no active broker has.
    """

    api_key = 43
    reply = ElectLeadersReply

    partitions: Annotated[tuple[WantedElection, ...], Meta(max_length=PARTITIONS_MAX)]
    is_unclean: bool = False
    timeout_ms: Milliseconds = TIMEOUT_MS
    starts_empty: bool = False


class PartitionDescription(Body, frozen=True):
    """The state of a partition in the metadata. `is_recovering`: its last election was unclean."""

    partition: Partition
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    partition_epoch: NaturalOrAbsent = ABSENT
    replicas: BrokerIds = ()
    isr: BrokerIds = ()
    eligible: BrokerIds = ()
    last_known_eligible: BrokerIds = ()
    adding: BrokerIds = ()
    removing: BrokerIds = ()
    is_recovering: bool = False


class TopicDescription(Body, frozen=True):
    """`topic_id` is None if there is no such topic. `configs`: only the keys that were set."""

    name: Name
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    topic_id: TopicId | None = None
    partition_count: PartitionCount = 0
    partitions: Annotated[tuple[PartitionDescription, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    configs: Configs = field(default_factory=dict)


class Cursor(Body, frozen=True):
    """The first partition of a page."""

    topic: Name
    partition: Partition


class DescribeTopicsReply(Body, frozen=True):
    """`next`: where the next page begins; None: this was the last one."""

    topics: Annotated[tuple[TopicDescription, ...], Meta(max_length=TOPICS_MAX)] = ()
    next: Cursor | None = None


class DescribeTopics(Request, frozen=True):
    """Partitions come in pages: in the order of `topics`, then by number."""

    api_key = 75
    reply = DescribeTopicsReply

    topics: Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)]
    partitions_max: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = PARTITIONS_PER_PAGE
    first: Cursor | None = None  # None: from the beginning


class LogCursor(Body, frozen=True):
    """The first log of a page."""

    topic_id: TopicId
    partition: Partition


class LogRow(Body, frozen=True):
    """The log of one replica. `size_bytes`: of its batches, without indexes."""

    topic_id: TopicId
    partition: Partition
    size_bytes: Natural
    log_start_offset: Offset
    log_end_offset: Offset


class DescribeLogsReply(Body, frozen=True):
    """`next`: where the next page begins; None: this was the last one."""

    logs: Annotated[tuple[LogRow, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    next: LogCursor | None = None


class DescribeLogs(Request, frozen=True):
    """The logs of the replicas on the broker that is asked; a client asks each broker. They come in
    pages: by topic id, then by number. (Kafka: DescribeLogDirs)
    """

    api_key = 35
    reply = DescribeLogsReply

    topics: Annotated[tuple[TopicId, ...], Meta(max_length=TOPICS_MAX)] | None = None  # None: all
    logs_max: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = PARTITIONS_PER_PAGE
    first: LogCursor | None = None  # None: from the beginning
