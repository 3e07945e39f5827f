"""Cached metadata of a client: topics, partition leaders, broker addresses. Pure.

Kafka: Metadata. Also owns which topics are in doubt and must be asked for again, and which are
forgotten: only the 10,000 topics used last are kept.

Invariants, as long as a topic is not forgotten: an answer never replaces one of a newer metadata
version; a partition's leader never gives way to one of a lower leader epoch.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import (
    ErrorCode,
    InconsistentClusterId,
    InvalidTimestamp,
    LeaderElsewhere,
    LeaderNotAvailable,
    MessageTooLarge,
    ServerError,
    UnknownTopicOrPartition,
    error_for,
)
from raftmq.model import Address
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.fetch import PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset
from raftmq.wire.messages.produce import PartitionProduced
from raftmq.wire.messages.producers import PartitionFenced
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.metadata import MetadataReply, TopicMetadata


TOPICS_MAX = 10_000  # bounds the memory of a program that uses ever new topics


class LeaderPlace(NamedTuple):
    """The leader of a partition. `leader` is -1 without a leader."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int


class TopicRoutes(NamedTuple):
    """A topic as of metadata `version`. A topic that does not exist has an error and no id.

    Attributes:
        told_at: when a broker has answered so.
        is_page_cached: durability = page_cache; False also where the broker is too old to tell.
    """

    version: int
    error: int
    topic_id: bytes | None
    places: dict[int, LeaderPlace]
    told_at: float = -inf
    is_page_cached: bool = False

    @property
    def is_led(self) -> bool:
        """Every partition has a leader."""
        return bool(self.places) and all(place.leader != ABSENT for place in self.places.values())


def no_topic(name: str) -> str:
    """The text for a topic that does not exist, and how to create it."""
    return f"there is no topic {name!r}: make it first, raftmq topic create {name}"


class Routes:
    """The cache.

    Args:
        topics_max: beyond so many, the topic that was used longest ago is forgotten.

    Attributes:
        version: of the metadata that listed the brokers last, -1 before.
        cluster_id: empty before the first answer.
        addresses: of the brokers, by id.
    """

    def __init__(self, *, topics_max: int = TOPICS_MAX) -> None:
        self.version = ABSENT
        self.cluster_id = ""
        self.addresses: dict[int, Address] = {}
        self._topics_max = topics_max
        self._topics: dict[str, TopicRoutes] = {}  # the one that was used longest ago first
        self._names: dict[bytes, str] = {}
        self._doubted: set[str] = set()  # topics whose cached leaders have led to a failure

    def use(self, name: str) -> bool:
        """Whether the topic is cached and not in doubt; marks it as used."""
        found = self._topics.pop(name, None)
        if found is None:  # never asked for, or forgotten
            return False
        self._topics[name] = found
        return name not in self._doubted

    def doubt(self, name: str) -> None:
        """It has led to a failure: not to be relied on before metadata were refreshed."""
        if name in self._topics:  # forgotten topics are asked for anyway
            self._doubted.add(name)

    def topic(self, name: str) -> TopicRoutes | None:
        """None: no broker was asked about it yet."""
        return self._topics.get(name)

    def topic_id(self, name: str) -> bytes:
        """Raises UnknownTopicOrPartition, or the topic's error in the metadata."""
        found = self._topics.get(name)
        if found is None or found.topic_id is None:
            error = found.error if found else ErrorCode.NONE
            raise error_for(error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic(name))
        return found.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        """None: it is not cached."""
        return self._names.get(topic_id)

    def page_cached(self, topic_ids: Iterable[bytes]) -> list[str]:
        """The names of those whose records a power cut of all replicas may take."""
        names = [self._names.get(topic_id, "") for topic_id in topic_ids]
        return sorted(name for name in names if name and self._topics[name].is_page_cached)

    def find(self, name: str, partition: int) -> LeaderPlace | None:
        """The partition, with or without a leader; None: no such partition is known."""
        found = self._topics.get(name)
        return found.places.get(partition) if found else None

    def place(self, name: str, partition: int) -> LeaderPlace:
        """The partition with its leader.

        Raises:
            UnknownTopicOrPartition, LeaderNotAvailable, or the topic's error in the metadata.
        """
        self.topic_id(name)
        place = self.find(name, partition)
        if place is None:
            count = len(self._topics[name].places)
            has = counted(count, "partition")
            raise UnknownTopicOrPartition(f"{name} has {has}, there is no {partition}")
        if place.leader == ABSENT:
            raise LeaderNotAvailable(f"{name}-{partition}: no leader")
        return place

    def take_in(self, reply: MetadataReply, now: float = -inf) -> bool:
        """Apply a metadata answer. Returns whether it changed anything but the version.

        Raises:
            InconsistentClusterId: it is of another cluster; nothing is applied.
        """
        # Mixing two clusters would write records to the wrong one.
        if self.cluster_id not in ("", reply.cluster_id):
            raise InconsistentClusterId(
                f"a broker of cluster {reply.cluster_id!r} answered, this is "
                f"{self.cluster_id!r}: check the bootstrap addresses"
            )
        is_news = self._take_brokers(reply)
        for found in reply.topics:
            is_news |= self._take_topic(found, reply.metadata_version, now)
        return is_news

    def on_leader(self, topic_id: bytes, partition: int, *, leader: int, leader_epoch: int) -> bool:
        """An answer named a partition's leader. Returns whether that was newer than the cache."""
        name = self._names.get(topic_id)
        old = self.find(name, partition) if name is not None else None
        # Of a forgotten topic, or a late answer about an earlier epoch.
        if name is None or old is None or leader == ABSENT or leader_epoch <= old.leader_epoch:
            return False
        place = LeaderPlace(topic_id, partition, leader, leader_epoch)
        self._topics[name].places[partition] = place
        return True

    def _take_brokers(self, reply: MetadataReply) -> bool:
        # A late answer, or one of a broker that has no metadata yet.
        if reply.metadata_version < self.version or not reply.brokers:
            return False
        self.version, self.cluster_id = reply.metadata_version, reply.cluster_id
        old = self.addresses
        self.addresses = {
            broker.broker_id: Address(broker.host, broker.port) for broker in reply.brokers
        }
        return self.addresses != old

    def _take_topic(self, found: TopicMetadata, version: int, now: float) -> bool:
        old = self._forget(found.name)
        # A late answer: keep the newer state.
        if version < old.version:
            self._remember(found.name, old)
            return False
        new = TopicRoutes(
            version, found.error, found.topic_id, _places(found, old), now, found.is_page_cached
        )
        self._remember(found.name, new)
        if len(self._topics) > self._topics_max:
            self._forget(next(iter(self._topics)))
        return new[1:4] != old[1:4]

    def _remember(self, name: str, topic: TopicRoutes) -> None:
        self._topics[name] = topic
        if topic.topic_id is not None:
            self._names[topic.topic_id] = name

    def _forget(self, name: str) -> TopicRoutes:
        """Remove the topic, also from those in doubt. Returns what was cached of it."""
        self._doubted.discard(name)
        topic = self._topics.pop(name, _NOTHING)
        if topic.topic_id is not None:
            self._names.pop(topic.topic_id, None)
        return topic


# Stands for a topic that was never asked for: any version is newer.
_NOTHING = TopicRoutes(ABSENT, ErrorCode.NONE, None, {})


def _places(found: TopicMetadata, old: TopicRoutes) -> dict[int, LeaderPlace]:
    # The topic does not exist.
    if found.topic_id is None:
        return {}
    places = {}
    for told in found.partitions:
        place = LeaderPlace(found.topic_id, told.partition, told.leader, told.leader_epoch)
        known = old.places.get(told.partition)
        # An error answer named a newer leader than the metadata have.
        if known and known.topic_id == place.topic_id and known.leader_epoch > place.leader_epoch:
            place = known
        places[told.partition] = place
    return places


# -- Answers --------------------------------------------------------------------------------------
# Checks of a partition leader's answer, and its errors. Pure.
#
# Requests name one partition, so answers must, too; an answer that does not leaves the outcome
# unknown.


PartitionAnswer: TypeAlias = PartitionProduced | PartitionFenced | PartitionFetched | FoundOffset


def answer_for(place: LeaderPlace, partitions: Sequence[PartitionAnswer]) -> PartitionAnswer:
    """The one partition's answer. Raises ServerError, which is indefinite."""
    found = [(one.topic_id, one.partition) for one in partitions]
    if found != [(place.topic_id, place.partition)]:
        raise ServerError(
            f"broker {place.leader} was asked for partition {place.partition} of topic "
            f"{place.topic_id.hex()} and answered for {len(found)} partitions that are not it"
        )
    return partitions[0]


def error_in(answer: PartitionAnswer) -> RaftmqError | None:
    if not answer.error:
        return None
    message = "" if isinstance(answer, FoundOffset) else answer.message
    code = next((code.name for code in ErrorCode if code == answer.error), answer.error)
    message = message or f"refused for partition {answer.partition}: {code}"
    # The leader had changed before the append: definite, unlike the error's general meaning.
    if isinstance(answer, PartitionProduced) and _was_refused(answer):
        return LeaderElsewhere(message)
    error = error_for(answer.error, message)
    # The sender finds by the limit which records of the request were at fault.
    if isinstance(answer, PartitionProduced) and isinstance(
        error, (MessageTooLarge, InvalidTimestamp)
    ):
        error.allowed = answer.allowed
    return error


def _was_refused(answer: PartitionProduced) -> bool:
    """Before anything was appended: otherwise the answer has an offset."""
    is_elsewhere = answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return is_elsewhere and answer.base_offset == ABSENT


def leader_told(answer: PartitionAnswer) -> tuple[int, int] | None:
    """Leader and leader epoch, if an error answer names them."""
    # Offset answers carry no leader; others name it only with an error.
    if isinstance(answer, FoundOffset) or not answer.error:
        return None
    return answer.leader, answer.leader_epoch
