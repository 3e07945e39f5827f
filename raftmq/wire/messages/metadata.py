"""Metadata request and reply: topics, partition leaders, replicas, ISR, brokers.

A request for all topics is answered in pages, sorted by name, so that no answer is larger than a
header may be.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

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
    """The address of a broker, on the same listener on which the client asks."""

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
    offline: BrokerIds = ()  # replicas on brokers that are fenced or gone


class TopicMetadata(Body, frozen=True):
    """`topic_id` is None if there is no such topic."""

    error: ErrorNumber
    name: Name
    topic_id: TopicId | None = None
    partitions: Annotated[tuple[PartitionMetadata, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    min_insync_replicas: NaturalOrAbsent = ABSENT  # as configured; -1: an older broker
    is_page_cached: bool = False  # durability = page_cache; False also: an older broker


class MetadataReply(Body, frozen=True):
    """As of `metadata_version`. `is_complete` is False if another page follows."""

    metadata_version: NaturalOrAbsent
    cluster_id: Name
    controller_id: BrokerIdOrAbsent = ABSENT
    brokers: Annotated[tuple[BrokerRow, ...], Meta(max_length=BROKERS_MAX)] = ()
    topics: Annotated[tuple[TopicMetadata, ...], Meta(max_length=TOPICS_MAX)] = ()
    is_complete: bool = True


class Metadata(Request, frozen=True):
    """`topics`: names, or None for all; then `after`: the last name of the page before."""

    api_key = 3
    reply = MetadataReply

    topics: Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)] | None = None
    after: Name = ""
    topics_max: Annotated[int, Meta(ge=1, le=TOPICS_MAX)] = TOPICS_MAX
