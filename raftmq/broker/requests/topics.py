"""Topic administration: create, grow and delete topics, alter configs.

Owns these requests from wish to outcome; each topic or partition stands for itself. An answer comes
when this broker's own image shows the change, or at the deadline. A repeated request for a topic
that was created gets TopicAlreadyExists. "Too few brokers" is answered only after a read barrier,
so that it is not a sign of old metadata.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING

import trio

from raftmq.broker.metadata_changes import ChangeStep, plan_each
from raftmq.errors import (
    ErrorCode,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NotController,
    TopicAlreadyExists,
    UnknownTopicId,
)
from raftmq.metadata.apply.assignments import PARTITIONS_MAX, REPLICAS_MAX
from raftmq.metadata.commands import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DeleteTopic,
    PartitionId,
)
from raftmq.metadata.placement import check_room, creation, growth, hosting_also, hosts_of, place
from raftmq.rpc.reply import Reply
from raftmq.topic_config import TOPIC_KEYS, TopicConfig, TopicKey, parse_topic_config
from raftmq.wire.bodies import ABSENT, ID_BYTES, TopicOutcome, clip_message
from raftmq.wire.messages.configs import (
    AlterConfigs,
    AlterConfigsReply,
    ConfigEntry,
    DescribeConfigs,
    DescribeConfigsReply,
    TopicConfigDescription,
)
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreatePartitionsReply,
    CreateTopics,
    CreateTopicsReply,
    DeleteTopics,
    DeleteTopicsReply,
    TopicCreated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from random import Random

    from raftmq.broker.metadata_changes import Change, ChangeOutcome, MetadataChanges
    from raftmq.errors import RaftmqError
    from raftmq.metadata.apply.assignments import Assignments
    from raftmq.metadata.image import MetadataImage, TopicState
    from raftmq.metadata.placement import BrokerUsage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.configs import ConfigChange
    from raftmq.wire.messages.topics import (
        CreatePartitions as CreatePartitionsRequest,
    )
    from raftmq.wire.messages.topics import MorePartitions, NewTopic


# -- Topic plans ----------------------------------------------------------------------------------
# From wishes for topics or partitions to commands, and how to see their effect.
#
# Owns the defaults of new topics and the limit of one request. Pure: randomness is an argument. It
# reads this broker's image only to place replicas and to read what never decreases; if anything
# has changed since, the controller refuses. An old image may lack brokers that have come: the
# planner says where it would have used more (`lacks_brokers`), so that the caller can plan again
# with an image that is known to be new.


REQUEST_PARTITIONS_MAX = 10_000  # created by one request: placing them blocks the event loop
# Of a new topic that names no numbers. With fewer nodes than that each of them has a replica.
PARTITION_COUNT_DEFAULT, REPLICATION_FACTOR_DEFAULT = 1, 3


class TopicPlanner:
    """Plans one request: each wish is placed as if those before it had been carried out.

    Args:
        voters: of the quorum: nodes of this cluster, registered or not.
        doubt: why it is unknown whether the image is new enough; raised for each wish that
            depends on it.

    Attributes:
        lacks_brokers: a wish was refused, or cut down, because few brokers are active.
    """

    def __init__(
        self,
        image: MetadataImage,
        chance: Random,
        *,
        voters: Collection[int] = (),
        doubt: RaftmqError | None = None,
    ) -> None:
        self._image, self._chance = image, chance
        self._voters = frozenset(voters)
        self._doubt, self.lacks_brokers = doubt, False
        self._known_hosts: list[BrokerUsage] | None = None
        self._left = REQUEST_PARTITIONS_MAX  # partitions that this request may still create
        self._placed = Counter[int]()  # replicas that it has placed, by broker

    def plan_topic(self, wanted: NewTopic) -> Change:
        """
        Raises:
            InvalidConfig, InvalidPartitions, InvalidReplicationFactor, InvalidRequest
            TopicAlreadyExists: it does; in addition it could not be created now.
        """
        parse_topic_config(wanted.configs, feature_level=self._image.feature_level)
        try:
            assignments = self._assignments_of(wanted)
        # A client that wants the topic to exist is not helped by "too few brokers", or descriptors.
        except (InvalidPartitions, InvalidReplicationFactor):
            if wanted.name in self._image.topic_ids:
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
        if topic is None:  # deleted, or created a moment ago elsewhere
            raise UnknownTopicId(f"topic {wanted.topic_id.hex()} is not known here: look it up")
        added = self._added(topic, wanted)
        commands = growth(topic.topic_id, added, first=topic.partition_count)
        return tuple(map(_step, commands))

    def _assignments_of(self, wanted: NewTopic) -> Assignments:
        partition_count, replication_factor = wanted.partition_count, wanted.replication_factor
        # Three cases: replicas given, numbers given, or defaults.
        if wanted.assignments:
            # Ambiguous: replicas say both numbers already.
            if (partition_count, replication_factor) != (ABSENT, ABSENT):
                raise InvalidRequest(
                    f"topic {wanted.name}: both replicas and numbers are given: leave out one"
                )
            return self._spend(wanted.assignments)
        if partition_count == ABSENT:
            partition_count = PARTITION_COUNT_DEFAULT
        if replication_factor == ABSENT:
            replication_factor = self._default_factor(wanted.name)
        return self._place(partition_count, replication_factor=replication_factor)

    def _default_factor(self, name: str) -> int:
        """One replica for each node of a small cluster, active now or not: replicas cannot be
        added later, and a client that named no number does not check how many it got.
        """
        self._note_hosts(REPLICATION_FACTOR_DEFAULT)
        # Voters that never registered are nodes too: a cluster that is just starting.
        nodes = self._voters.union(self._image.brokers)
        factor = min(REPLICATION_FACTOR_DEFAULT, max(1, len(nodes)))
        active = {host.broker_id for host in self._hosts}
        if factor <= len(active):
            return factor
        # Fewer are active than belong to the cluster: name the missing ones and the ways out.
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
        # Partitions never become fewer: keys would map to others, and records would be lost.
        if not count < wanted.partition_count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name} has {count} partitions, wanted are {wanted.partition_count}:"
                f" allowed {count + 1} to {PARTITIONS_MAX}"
            )
        added = wanted.partition_count - count
        if not wanted.assignments:  # the broker places them
            # As partition 0 has, less what a reassignment is about to remove.
            first = self._image.partitions[PartitionId(topic.topic_id, 0)]
            factor = len(first.replicas) - len(first.removing)
            return self._place(added, replication_factor=factor)
        # Replicas are given for each new partition, or for none.
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
        self._known_hosts = hosting_also(self._hosts, assignments)
        return self._spend(assignments)

    def _note_hosts(self, replication_factor: int) -> None:
        """Raises `doubt` where more brokers would change the plan."""
        # More than REPLICAS_MAX is refused in any case.
        if len(self._hosts) < replication_factor <= REPLICAS_MAX:
            self.lacks_brokers = True
            if self._doubt is not None:  # it is not known whether there really are so few
                raise self._doubt

    def _spend(self, assignments: Assignments) -> Assignments:
        self._check_left(len(assignments))
        placed = self._placed + Counter(member for members in assignments for member in members)
        check_room(self._image, placed)
        self._left, self._placed = self._left - len(assignments), placed
        return assignments

    def _check_left(self, partition_count: int) -> None:
        # A single wish over PARTITIONS_MAX has an error of its own.
        if self._left < partition_count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"{partition_count} partitions: one request makes {REQUEST_PARTITIONS_MAX} at most,"
                f" {self._left} of them are left: send another request"
            )

    @property
    def _hosts(self) -> list[BrokerUsage]:
        # Counted once, then kept up to date with what this request has placed.
        if self._known_hosts is None:
            self._known_hosts = hosts_of(self._image)
        return self._known_hosts


def _step(command: CreateTopic | AddPartitions) -> ChangeStep:
    """How the image proves a step: ids drawn here are in no other command, and partitions never
    become fewer."""
    topic_id = command.topic_id
    if isinstance(command, CreateTopic):  # each command has a proof of its own kind
        is_made = partial(_is_made, topic_id)
        return ChangeStep(command, is_made, is_made)
    end = command.expected_count + len(command.assignments)

    def is_shown(image: MetadataImage) -> bool:
        topic = image.topics.get(topic_id)
        # A topic that is gone was deleted meanwhile: waiting for more would last for ever.
        return topic is None or topic.partition_count >= end

    return ChangeStep(command, is_shown, partial(_is_grown, command))


def _is_made(topic_id: bytes, image: MetadataImage) -> bool:
    return topic_id in image.topics


def _is_grown(command: AddPartitions, image: MetadataImage) -> bool:
    states = [
        image.partitions.get(PartitionId(command.topic_id, number))
        for number, _ in enumerate(command.assignments, command.expected_count)
    ]
    return [state and state.replicas for state in states] == list(command.assignments)


# -- Topics ---------------------------------------------------------------------------------------


class TopicRequests:
    """`chance` draws the ids of topics and places their replicas; `voters` are of the quorum."""

    def __init__(
        self,
        changes: MetadataChanges,
        chance: Random,
        *,
        voters: Collection[int] = (),
    ) -> None:
        self._changes, self._chance, self._voters = changes, chance, voters

    def handlers(self) -> Handlers:
        return {
            CreateTopics: self.create,
            CreatePartitions: self.grow,
            DeleteTopics: self.delete,
        }

    async def create(
        self, _context: RequestContext, request: CreateTopics, _payload: Buffer
    ) -> Reply:
        # May take a read barrier, where brokers are missing.
        planned, timeout_ms = await self._plan(
            lambda planner: plan_each(
                request.topics, planner.plan_topic, key=lambda topic: topic.name
            ),
            request.timeout_ms,
        )
        outcomes = await self._changes.make(
            planned, timeout_ms=timeout_ms, is_dry_run=request.is_dry_run
        )
        created = [
            _refused(wanted, outcome)
            if isinstance(change, Exception)
            else _created(wanted, change, outcome)
            for wanted, change, outcome in zip(request.topics, planned, outcomes, strict=True)
        ]
        return Reply(CreateTopicsReply(tuple(created)))

    async def grow(
        self, _context: RequestContext, request: CreatePartitionsRequest, _payload: Buffer
    ) -> Reply:
        # May take a read barrier, where brokers are missing.
        planned, timeout_ms = await self._plan(
            lambda planner: plan_each(
                request.topics, planner.plan_partitions, key=lambda topic: topic.topic_id
            ),
            request.timeout_ms,
        )
        outcomes = await self._changes.make(
            planned, timeout_ms=timeout_ms, is_dry_run=request.is_dry_run
        )
        told = [
            TopicOutcome(wanted.topic_id, outcome.code, _message(change, outcome))
            for wanted, change, outcome in zip(request.topics, planned, outcomes, strict=True)
        ]
        return Reply(CreatePartitionsReply(tuple(told)))

    async def delete(
        self, _context: RequestContext, request: DeleteTopics, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        planned = plan_each(request.topics, lambda it: (_deletion(image, it),), key=lambda it: it)
        # Committed, and gone from this image if there is time.
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            TopicOutcome(topic_id, outcome.code, outcome.message)
            for topic_id, outcome in zip(request.topics, outcomes, strict=True)
        ]
        return Reply(DeleteTopicsReply(tuple(told)))

    async def _plan(
        self, plan: Callable[[TopicPlanner], list[Change | RaftmqError]], timeout_ms: int
    ) -> tuple[list[Change | RaftmqError], int]:
        """The plans, and the milliseconds that are left for them.

        Where too few brokers are known here, they are made again once that is known to be true.
        """
        begin, doubt = trio.current_time(), None
        planner = self._planner()
        planned = plan(planner)
        # The usual case: no round to the controller.
        if not planner.lacks_brokers:
            return planned, timeout_ms
        try:
            # A read barrier: brokers may have registered a moment ago.
            await self._changes.catch_up(timeout_ms=timeout_ms)
        # Not certain: the planner then refuses what depends on it, with this reason.
        except NotController as error:
            doubt = error
        spent_ms = int((trio.current_time() - begin) * 1000)
        return plan(self._planner(doubt)), max(0, timeout_ms - spent_ms)

    def _planner(self, doubt: RaftmqError | None = None) -> TopicPlanner:
        return TopicPlanner(self._changes.image, self._chance, voters=self._voters, doubt=doubt)


def _deletion(before: MetadataImage, topic_id: bytes) -> ChangeStep:
    """Gone counts as proof only if it was here before: an unknown topic may be about to come."""

    def is_gone(image: MetadataImage) -> bool:
        return topic_id not in image.topics

    return ChangeStep(DeleteTopic(topic_id), is_gone, None if is_gone(before) else is_gone)


def _refused(wanted: NewTopic, outcome: ChangeOutcome) -> TopicCreated:
    return TopicCreated(wanted.name, outcome.code, outcome.message)


def _created(wanted: NewTopic, change: Change, outcome: ChangeOutcome) -> TopicCreated:
    """With the id where it may have been created, so that the client can look for it."""
    create, assignments = change[0].command, _assignments(change)
    assert isinstance(create, CreateTopic), f"a topic begins with {create}"
    # The partitions that were created before the error came.
    if outcome.error is not None:
        assignments = _assignments(change[: outcome.done])
    may_be_there = outcome.done > 0 or outcome.is_uncertain  # after a dry run it is neither
    factors = {len(replicas) for replicas in assignments}
    return TopicCreated(
        wanted.name,
        outcome.code,
        _message(change, outcome),
        topic_id=create.topic_id if may_be_there else None,
        partition_count=len(assignments),
        replication_factor=factors.pop() if len(factors) == 1 else ABSENT,
    )


def _message(change: Change | RaftmqError, outcome: ChangeOutcome) -> str:
    """The error, and how much was created before it."""
    if isinstance(change, Exception) or outcome.error is None or not outcome.done:
        return outcome.message
    made, wanted = len(_assignments(change[: outcome.done])), len(_assignments(change))
    return clip_message(f"{made} of {wanted} partitions were made; then: {outcome.error}")


def _assignments(steps: Sequence[ChangeStep]) -> Assignments:
    """Of all partitions that these steps create."""
    made: list[tuple[int, ...]] = []
    for step in steps:
        assert isinstance(step.command, CreateTopic | AddPartitions), f"{step.command}"
        made += step.command.assignments
    return tuple(made)


# -- Configs --------------------------------------------------------------------------------------
# Topic configs: described with their defaults, and changed key by key.
#
# Owns both requests. A description is of this broker's image; a change goes through the controller
# and is answered once this image shows it.


class TopicConfigRequests:
    def __init__(self, changes: MetadataChanges) -> None:
        self._changes = changes

    def handlers(self) -> Handlers:
        return {DescribeConfigs: self.describe, AlterConfigs: self.alter}

    def describe(
        self, _context: RequestContext, request: DescribeConfigs, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        described = [_describe(image, topic_id) for topic_id in request.topics]
        return Reply(DescribeConfigsReply(tuple(described)))

    async def alter(
        self, _context: RequestContext, request: AlterConfigs, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        planned = plan_each(
            request.topics, lambda it: _alteration(image, it), key=lambda it: it.topic_id
        )
        outcomes = await self._changes.make(
            planned, timeout_ms=request.timeout_ms, is_dry_run=request.is_dry_run
        )
        told = [
            TopicOutcome(wanted.topic_id, outcome.code, outcome.message)
            for wanted, outcome in zip(request.topics, outcomes, strict=True)
        ]
        return Reply(AlterConfigsReply(tuple(told)))


def _describe(image: MetadataImage, topic_id: bytes) -> TopicConfigDescription:
    topic = image.topics.get(topic_id)
    if topic is None:
        message = f"topic {topic_id.hex()} is not known here: look it up"
        return TopicConfigDescription(topic_id, ErrorCode.UNKNOWN_TOPIC_ID, message)
    # Keys of a newer feature level cannot be set yet, so they are not shown.
    keys = [key for key in TOPIC_KEYS if key.since_level <= image.feature_level]
    return TopicConfigDescription(
        topic_id,
        config_epoch=topic.config_epoch,
        entries=tuple(_entry(topic, key) for key in keys),
    )


def _entry(topic: TopicState, key: TopicKey) -> ConfigEntry:
    value = topic.configs.get(key.name)
    if value is None:
        return ConfigEntry(key.name, default_text(key), is_default=True)
    return ConfigEntry(key.name, value)


@cache
# Cached: the same for every topic, and found by trying.
def default_text(key: TopicKey) -> str:
    """The default as a user would write it."""
    default = getattr(TopicConfig(), key.field)
    for choice in key.choices:
        if getattr(parse_topic_config({key.name: choice}), key.field) == default:
            return choice
    return str(default)


def _alteration(before: MetadataImage, wanted: ConfigChange) -> Change:
    """No proof: another command may have set the same values.

    Raises:
        InvalidConfig: of values that are set; removals are checked where they are applied.
    """
    kept = {key: value for key, value in wanted.changes.items() if value is not None}
    parse_topic_config(kept, feature_level=before.feature_level)
    topic_id, changes = wanted.topic_id, wanted.changes
    known = before.topics.get(topic_id)

    def is_shown(image: MetadataImage) -> bool:
        topic = image.topics.get(topic_id)
        if topic is None:  # unknown before and now: wait for it to appear
            return known is not None  # deleted meanwhile
        # An unknown topic shows the change by its values, as its old epoch is not known.
        is_newer = known is None or topic.config_epoch > known.config_epoch
        return is_newer or all(topic.configs.get(key) == changes[key] for key in changes)

    return (ChangeStep(AlterTopicConfig(topic_id, dict(changes), wanted.expected_epoch), is_shown),)
