"""Which topics there are, and who leads their partitions: what every client asks first.

All topics come in pages, in the order of their names, so that no answer outgrows a header.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    BROKERS_MAX,
    PARTITIONS_MAX,
    TOPICS_MAX,
    Body,
    BrokerId,
    BrokerIdOrAbsent,
    BrokerIds,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Name,
    NaturalOrAbsent,
    Partition,
    Port,
    Request,
    TopicId,
)


class BrokerRow(Body, frozen=True):
    """Where the listener on which was asked is reached at another broker."""

    broker_id: BrokerId
    host: Name
    port: Port
    rack: Name | None = None


class PartitionMetadata(Body, frozen=True):
    error: ErrorNumber
    partition: Partition
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    replicas: BrokerIds = ()
    isr: BrokerIds = ()
    offline: BrokerIds = ()  # replicas on brokers that are not there now


class TopicMetadata(Body, frozen=True):
    """`topic_id` is None where there is no such topic."""

    error: ErrorNumber
    name: Name
    topic_id: TopicId | None = None
    partitions: Annotated[tuple[PartitionMetadata, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    min_insync_replicas: NaturalOrAbsent = ABSENT  # as configured; -1: the broker does not tell


class MetadataReply(Body, frozen=True):
    """As of `metadata_version`. A page that is not the last one has `is_complete` unset."""

    metadata_version: NaturalOrAbsent
    cluster_id: Name
    controller_id: BrokerIdOrAbsent = ABSENT
    brokers: Annotated[tuple[BrokerRow, ...], Meta(max_length=BROKERS_MAX)] = ()
    topics: Annotated[tuple[TopicMetadata, ...], Meta(max_length=TOPICS_MAX)] = ()
    is_complete: bool = True


class Metadata(Request, frozen=True):
    """`topics`: names, or None for all. `after`: a name; of all topics, those that follow it."""

    api_key: ClassVar[ApiKey] = ApiKey.METADATA
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = MetadataReply

    topics: Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)] | None = None
    after: Name = ""
    topics_max: Annotated[int, Meta(ge=1, le=TOPICS_MAX)] = TOPICS_MAX
