"""What a wish for topics or partitions comes to: the commands, and how to see that they had effect.

Owns the defaults of new topics and the bound of one request. Pure: the chance is handed in. Looks
at this broker's image only to place replicas and to read what cannot go back; whatever may have
changed since is left to the controller to refuse. The image may be behind, and then brokers that
came are missing: a planner tells where it would have used more (`lacks_brokers`), so that its plan
can be made again from an image that is known to be new.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.broker.changes import Step
from raftmq.config import parse_topic_config
from raftmq.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    TopicAlreadyExists,
    UnknownTopicId,
)
from raftmq.metadata.commands import CreatePartitions, CreateTopic, PartitionId
from raftmq.metadata.placement import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    creation,
    growth,
    hosts_of,
    place,
)
from raftmq.wire.bodies import ABSENT, ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from raftmq.broker.changes import Change
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import MetadataImage, TopicState
    from raftmq.metadata.placement import Assignments, Host
    from raftmq.wire.messages.topics import MorePartitions, NewTopic

REQUEST_PARTITIONS_MAX = 10_000  # that one request makes: placing them holds up the broker


class TopicDefaults(NamedTuple):
    """Of a new topic. A cluster of fewer nodes than `replication_factor` has one on each."""

    partition_count: int = 1
    replication_factor: int = 3


class TopicPlanner:
    """For one request: each wish is placed as if those before it were carried out.

    Args:
        voters: of the quorum: nodes of this cluster, whether they have registered yet or not.
        doubt: why nobody knows whether the image is new enough; raised for each wish of which that
            would have to be known.

    Attributes:
        lacks_brokers: some wish was refused, or cut down, because so few brokers are active.
    """

    def __init__(
        self,
        image: MetadataImage,
        chance: Random,
        defaults: TopicDefaults,
        *,
        voters: Collection[int] = (),
        doubt: RaftmqError | None = None,
    ) -> None:
        self._image, self._chance, self._defaults = image, chance, defaults
        self._voters = frozenset(voters)
        self._doubt, self.lacks_brokers = doubt, False
        self._known_hosts: list[Host] | None = None
        self._left = REQUEST_PARTITIONS_MAX

    def plan_topic(self, wanted: NewTopic) -> Change:
        """
        Raises:
            InvalidConfig, InvalidPartitions, InvalidReplicationFactor, InvalidRequest
            TopicAlreadyExists: and could not be made now.
        """
        parse_topic_config(wanted.configs, feature_level=self._image.feature_level)
        try:
            assignments = self._assignments_of(wanted)
        except InvalidReplicationFactor:
            if wanted.name in self._image.topic_ids:  # who wants it to be there misses no broker
                raise TopicAlreadyExists(f"topic {wanted.name} exists already") from None
            raise
        topic_id = self._chance.randbytes(ID_BYTES)
        commands = creation(topic_id, wanted.name, assignments, wanted.configs)
        return tuple(map(_step, commands))

    def plan_partitions(self, wanted: MorePartitions) -> Change:
        """
        Raises:
            UnknownTopicId, InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor
        """
        topic = self._image.topics.get(wanted.topic_id)
        if topic is None:
            raise UnknownTopicId(f"topic {wanted.topic_id.hex()} is not known here: look it up")
        added = self._added(topic, wanted)
        commands = growth(topic.topic_id, added, first=topic.partition_count)
        return tuple(map(_step, commands))

    def _assignments_of(self, wanted: NewTopic) -> Assignments:
        partition_count, replication_factor = wanted.partition_count, wanted.replication_factor
        if wanted.assignments:
            if (partition_count, replication_factor) != (ABSENT, ABSENT):
                raise InvalidRequest(
                    f"topic {wanted.name}: both replicas and numbers are given: leave out one"
                )
            return self._spend(wanted.assignments)
        if partition_count == ABSENT:
            partition_count = self._defaults.partition_count
        if replication_factor == ABSENT:
            replication_factor = self._default_factor(wanted.name)
        return self._place(partition_count, replication_factor=replication_factor)

    def _default_factor(self, name: str) -> int:
        """One for each node of a small cluster, whether that is there now or not: replicas cannot
        be added later, and who did not ask for a number would not look whether there are fewer.
        """
        self._note_hosts(self._defaults.replication_factor)
        nodes = self._voters.union(self._image.brokers)
        factor = min(self._defaults.replication_factor, max(1, len(nodes)))
        active = {host.broker_id for host in self._hosts}
        if factor <= len(active):
            return factor
        missing = ", ".join(map(str, sorted(nodes - active)))
        replicas = "1 replica" if factor == 1 else f"{factor} replicas"
        fewer = (
            f", or ask for fewer replicas with --replication-factor {len(active)}"
            f" (SDK: replication_factor={len(active)})"
        )
        raise InvalidReplicationFactor(
            f"topic {name}: by default it has {replicas}, for good, and of the nodes of this"
            f" cluster these are not active: {missing}; start them{fewer if active else ''}"
        )

    def _added(self, topic: TopicState, wanted: MorePartitions) -> Assignments:
        count = topic.partition_count
        if not count < wanted.partition_count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name} has {count} partitions, wanted are {wanted.partition_count}:"
                f" allowed {count + 1} to {PARTITIONS_MAX}"
            )
        added = wanted.partition_count - count
        if not wanted.assignments:
            first = self._image.partitions[PartitionId(topic.topic_id, 0)]
            factor = len(first.replicas) - len(first.removing)
            return self._place(added, replication_factor=factor)
        if len(wanted.assignments) != added:
            raise InvalidReplicaAssignment(
                f"topic {topic.name}: replicas of {len(wanted.assignments)} partitions are given,"
                f" and {added} are to be added"
            )
        return self._spend(wanted.assignments)

    def _place(self, partition_count: int, *, replication_factor: int) -> Assignments:
        self._check_left(partition_count)
        self._note_hosts(replication_factor)
        assignments = place(
            self._hosts,
            partition_count=partition_count,
            replication_factor=replication_factor,
            chance=self._chance,
        )
        self._known_hosts = _hosting_also(self._hosts, assignments)
        return self._spend(assignments)

    def _note_hosts(self, replication_factor: int) -> None:
        """Raises what is doubted."""
        if len(self._hosts) < replication_factor <= REPLICAS_MAX:
            self.lacks_brokers = True
            if self._doubt is not None:
                raise self._doubt

    def _spend(self, assignments: Assignments) -> Assignments:
        self._check_left(len(assignments))
        self._left -= len(assignments)
        return assignments

    def _check_left(self, partition_count: int) -> None:
        if self._left < partition_count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"{partition_count} partitions: one request makes {REQUEST_PARTITIONS_MAX} at most,"
                f" {self._left} of them are left: send another request"
            )

    @property
    def _hosts(self) -> list[Host]:
        if self._known_hosts is None:
            self._known_hosts = hosts_of(self._image)
        return self._known_hosts


def _hosting_also(hosts: list[Host], assignments: Assignments) -> list[Host]:
    replicas = Counter(broker_id for members in assignments for broker_id in members)
    leaders = Counter(members[0] for members in assignments)
    return [
        host._replace(
            replica_count=host.replica_count + replicas[host.broker_id],
            leader_count=host.leader_count + leaders[host.broker_id],
        )
        for host in hosts
    ]


def _step(command: CreateTopic | CreatePartitions) -> Step:
    """An id that was drawn here is in no other command; partitions never become fewer."""
    topic_id = command.topic_id
    if isinstance(command, CreateTopic):
        is_made = partial(_is_made, topic_id)
        return Step(command, is_made, is_made)
    end = command.expected_count + len(command.assignments)

    def is_shown(image: MetadataImage) -> bool:
        topic = image.topics.get(topic_id)
        return topic is None or topic.partition_count >= end

    return Step(command, is_shown, partial(_is_grown, command))


def _is_made(topic_id: bytes, image: MetadataImage) -> bool:
    return topic_id in image.topics


def _is_grown(command: CreatePartitions, image: MetadataImage) -> bool:
    states = [
        image.partitions.get(PartitionId(command.topic_id, number))
        for number, _ in enumerate(command.assignments, command.expected_count)
    ]
    return [state and state.replicas for state in states] == list(command.assignments)
