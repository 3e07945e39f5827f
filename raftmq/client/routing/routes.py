"""Which topics there are and who leads their partitions, as far as a client has heard. Pure.

Owns as well what is doubted and has to be asked for again, and what is forgotten: of topics that
come and go only those used last are known.

Invariants, as long as a topic is not forgotten: what a broker said of it never gives way to what is
of an older metadata version; the leader of a partition never to one of a lower leader epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from immutables import Map

from raftmq.errors import (
    CorruptRecord,
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
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.fetch import PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset
from raftmq.wire.messages.produce import PartitionProduced
from raftmq.wire.messages.producers import PartitionFenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.metadata import MetadataReply, TopicMetadata


TOPICS_MAX = 10_000  # known at a time


class LeaderPlace(NamedTuple):
    """Where a partition is led. `leader` is -1 where nobody leads."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int


class TopicRoutes(NamedTuple):
    """As of `version`. A topic that is not there has an error and no id."""

    version: int
    error: int
    topic_id: bytes | None
    places: Map[int, LeaderPlace]

    @property
    def is_led(self) -> bool:
        """Every partition has a leader."""
        return bool(self.places) and all(place.leader != ABSENT for place in self.places.values())


class Routes:
    """
    Args:
        topics_max: of these one more makes the one that was used longest ago forgotten.

    Attributes:
    version: of the metadata of which the brokers were told last, -1 before.
    cluster_id: empty before.
    addresses: of the brokers.
    """

    def __init__(self, *, topics_max: int = TOPICS_MAX) -> None:
        self.version = ABSENT
        self.cluster_id = ""
        self.addresses: dict[int, Address] = {}
        self._topics_max = topics_max
        self._topics: dict[str, TopicRoutes] = {}  # the one that was used longest ago comes first
        self._names: dict[bytes, str] = {}
        self._doubted: set[str] = set()  # of these, what was last asked for in vain

    def use(self, name: str) -> bool:
        """Whether something is known of the topic that nobody doubts; from now on it was used."""
        found = self._topics.pop(name, None)
        if found is None:
            return False
        self._topics[name] = found
        return name not in self._doubted

    def doubt(self, name: str) -> None:
        """It has led to a failure: until a broker has told about the topic again."""
        if name in self._topics:
            self._doubted.add(name)

    def topic(self, name: str) -> TopicRoutes | None:
        """None: nobody was asked about it yet."""
        return self._topics.get(name)

    def topic_id(self, name: str) -> bytes:
        """Raises UnknownTopicOrPartition, or what a broker said of the topic."""
        found = self._topics.get(name)
        if found is None or found.topic_id is None:
            error = found.error if found else ErrorCode.NONE
            raise error_for(error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
        return found.topic_id

    def find(self, name: str, partition: int) -> LeaderPlace | None:
        """Whether or not anybody leads there; None: no such partition is known."""
        found = self._topics.get(name)
        return found.places.get(partition) if found else None

    def place(self, name: str, partition: int) -> LeaderPlace:
        """Where to ask.

        Raises:
            UnknownTopicOrPartition, LeaderNotAvailable, or what a broker said of the topic.
        """
        self.topic_id(name)
        place = self.find(name, partition)
        if place is None:
            count = len(self._topics[name].places)
            raise UnknownTopicOrPartition(f"{name} has {count} partitions, there is no {partition}")
        if place.leader == ABSENT:
            raise LeaderNotAvailable(f"{name}-{partition}: nobody leads")
        return place

    def take_in(self, reply: MetadataReply) -> bool:
        """Whether it told anything new but its version.

        Raises:
            InconsistentClusterId: it is of another cluster; nothing is taken in.
        """
        if self.cluster_id not in ("", reply.cluster_id):
            raise InconsistentClusterId(
                f"a broker of cluster {reply.cluster_id!r} answered, this is "
                f"{self.cluster_id!r}: check the bootstrap addresses"
            )
        is_news = self._take_brokers(reply)
        for found in reply.topics:
            is_news |= self._take_topic(found, reply.metadata_version)
        return is_news

    def on_leader(self, topic_id: bytes, partition: int, *, leader: int, leader_epoch: int) -> bool:
        """Somebody said who leads; whether that is newer than what was known."""
        name = self._names.get(topic_id)
        old = self.find(name, partition) if name is not None else None
        if name is None or old is None or leader == ABSENT or leader_epoch <= old.leader_epoch:
            return False
        topic = self._topics[name]
        places = topic.places.set(partition, LeaderPlace(topic_id, partition, leader, leader_epoch))
        self._topics[name] = topic._replace(places=places)
        return True

    def _take_brokers(self, reply: MetadataReply) -> bool:
        if reply.metadata_version < self.version or not reply.brokers:
            return False
        self.version, self.cluster_id = reply.metadata_version, reply.cluster_id
        old = self.addresses
        self.addresses = {
            broker.broker_id: Address(broker.host, broker.port) for broker in reply.brokers
        }
        return self.addresses != old

    def _take_topic(self, found: TopicMetadata, version: int) -> bool:
        old = self._forget(found.name)
        if version < old.version:
            self._remember(found.name, old)
            return False
        new = TopicRoutes(version, found.error, found.topic_id, _places(found, old))
        self._remember(found.name, new)
        if len(self._topics) > self._topics_max:
            self._forget(next(iter(self._topics)))
        return new[1:] != old[1:]

    def _remember(self, name: str, topic: TopicRoutes) -> None:
        self._topics[name] = topic
        if topic.topic_id is not None:
            self._names[topic.topic_id] = name

    def _forget(self, name: str) -> TopicRoutes:
        """What was known of it, and whether that is doubted."""
        self._doubted.discard(name)
        topic = self._topics.pop(name, _NOTHING)
        if topic.topic_id is not None:
            self._names.pop(topic.topic_id, None)
        return topic


_NOTHING = TopicRoutes(ABSENT, ErrorCode.NONE, None, Map())


def _places(found: TopicMetadata, old: TopicRoutes) -> Map[int, LeaderPlace]:
    if found.topic_id is None:
        return Map()
    places = {}
    for told in found.partitions:
        place = LeaderPlace(found.topic_id, told.partition, told.leader, told.leader_epoch)
        known = old.places.get(told.partition)
        if known and known.topic_id == place.topic_id and known.leader_epoch > place.leader_epoch:
            place = known
        places[told.partition] = place
    return Map(places)


# -- Answers --------------------------------------------------------------------------------------
# What an answer of a partition's leader says about that one partition. Pure.
#
# Questions name one partition, so answers must, too; one that does not is no answer, and then
# nothing is known of what was done.


PartitionAnswer: TypeAlias = PartitionProduced | PartitionFenced | PartitionFetched | FoundOffset


def answer_for(place: LeaderPlace, partitions: Sequence[PartitionAnswer]) -> PartitionAnswer:
    """Raises ServerError, which is indefinite."""
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
    if isinstance(answer, PartitionProduced) and _was_refused(answer):
        return LeaderElsewhere(message)
    error = error_for(answer.error, message)
    if isinstance(answer, PartitionProduced) and isinstance(
        error, (MessageTooLarge, InvalidTimestamp)
    ):
        error.allowed = answer.allowed
    return error


def _was_refused(answer: PartitionProduced) -> bool:
    """Before anything was appended: otherwise the answer says where."""
    is_elsewhere = answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return is_elsewhere and answer.base_offset == ABSENT


def leader_told(answer: PartitionAnswer) -> tuple[int, int] | None:
    """Who leads, in which epoch, if an error says so."""
    if isinstance(answer, FoundOffset) or not answer.error:
        return None
    return answer.leader, answer.leader_epoch


def check_batches(data: Buffer, offset: int, *, high_watermark: int, where: str) -> None:
    """Whether `data` is what a fetch from `offset` may bring: batches in a row, all committed.

    Raises:
        CorruptRecord: and says what is wrong, and at which byte.
    """
    expected = None
    for position, header in iter_batches(data, where=where):
        problem = ""
        if expected is None and not header.base_offset <= offset < header.end_offset:
            problem = f"offsets {header.base_offset} to {header.end_offset}, wanted {offset}"
        elif expected is not None and header.base_offset != expected:
            problem = f"base offset {header.base_offset}, expected {expected}"
        elif header.end_offset > high_watermark:
            problem = f"end offset {header.end_offset}, committed is up to {high_watermark}"
        if problem:
            raise CorruptRecord(problem, position=position, where=where)
        expected = header.end_offset
