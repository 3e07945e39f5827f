"""Topics and partitions: made, grown and deleted, as clients ask for it.

Owns these requests from their wishes to their outcomes: each topic stands for itself. An answer
comes when this broker's own metadata shows the change, or when the time is up. Who asks again for
a topic that was made learns that it exists already. That there are too few brokers is said only by
one that has asked the controller's node how much there is to know, and knows that.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.metadata_changes import ChangeStep, plan_each
from raftmq.config import TOPIC_KEYS, TopicConfig, TopicKey, parse_topic_config
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
from raftmq.metadata.commands import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DeleteTopic,
    ElectionKind,
    ElectLeader,
    PartitionId,
)
from raftmq.metadata.placement import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    creation,
    growth,
    hosts_of,
    place,
)
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT, ID_BYTES, PartitionOutcome, TopicOutcome, clip_message
from raftmq.wire.messages.configs import (
    AlterConfigsReply,
    ConfigEntry,
    DescribeConfigsReply,
    TopicConfigDescription,
)
from raftmq.wire.messages.topics import (
    CreatePartitionsReply,
    CreateTopicsReply,
    DeleteTopicsReply,
    ElectLeadersReply,
    TopicCreated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from random import Random

    from raftmq.broker.metadata_changes import Change, ChangeOutcome, MetadataChanges
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import MetadataImage, TopicState
    from raftmq.metadata.placement import Assignments, BrokerUsage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs
    from raftmq.wire.messages.topics import (
        CreatePartitions as CreatePartitionsRequest,
    )
    from raftmq.wire.messages.topics import (
        CreateTopics,
        DeleteTopics,
        ElectLeaders,
        MorePartitions,
        NewTopic,
        WantedElection,
    )


# -- Topic plans ----------------------------------------------------------------------------------
# What a wish for topics or partitions comes to: the commands, and how to see that they had effect.
#
# Owns the defaults of new topics and the bound of one request. Pure: the chance is handed in. Looks
# at this broker's image only to place replicas and to read what cannot go back; whatever may have
# changed since is left to the controller to refuse. The image may be behind, and then brokers that
# came are missing: a planner tells where it would have used more (`lacks_brokers`), so that its
# plan can be made again from an image that is known to be new.


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
        self._known_hosts: list[BrokerUsage] | None = None
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
    def _hosts(self) -> list[BrokerUsage]:
        if self._known_hosts is None:
            self._known_hosts = hosts_of(self._image)
        return self._known_hosts


def _hosting_also(hosts: list[BrokerUsage], assignments: Assignments) -> list[BrokerUsage]:
    replicas = Counter(broker_id for members in assignments for broker_id in members)
    leaders = Counter(members[0] for members in assignments)
    return [
        host._replace(
            replica_count=host.replica_count + replicas[host.broker_id],
            leader_count=host.leader_count + leaders[host.broker_id],
        )
        for host in hosts
    ]


def _step(command: CreateTopic | AddPartitions) -> ChangeStep:
    """An id that was drawn here is in no other command; partitions never become fewer."""
    topic_id = command.topic_id
    if isinstance(command, CreateTopic):
        is_made = partial(_is_made, topic_id)
        return ChangeStep(command, is_made, is_made)
    end = command.expected_count + len(command.assignments)

    def is_shown(image: MetadataImage) -> bool:
        topic = image.topics.get(topic_id)
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


DEFAULTS = TopicDefaults()


class TopicRequests:
    """`chance` draws the ids of topics and places their replicas; `voters` are of the quorum."""

    def __init__(
        self,
        changes: MetadataChanges,
        chance: Random,
        defaults: TopicDefaults = DEFAULTS,
        *,
        voters: Collection[int] = (),
    ) -> None:
        self._changes, self._chance, self._defaults = changes, chance, defaults
        self._voters = voters

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.CREATE_PARTITIONS: self.grow,
            ApiKey.DELETE_TOPICS: self.delete,
        }

    async def create(
        self, _context: RequestContext, request: CreateTopics, _payload: Buffer
    ) -> Reply:
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
        if not planner.lacks_brokers:
            return planned, timeout_ms
        try:
            await self._changes.catch_up(timeout_ms=timeout_ms)
        except NotController as error:
            doubt = error
        spent_ms = int((trio.current_time() - begin) * 1000)
        return plan(self._planner(doubt)), max(0, timeout_ms - spent_ms)

    def _planner(self, doubt: RaftmqError | None = None) -> TopicPlanner:
        return TopicPlanner(
            self._changes.image, self._chance, self._defaults, voters=self._voters, doubt=doubt
        )


def _deletion(before: MetadataImage, topic_id: bytes) -> ChangeStep:
    """A topic that was here and is not is gone for good. One that was not here may be new."""

    def is_gone(image: MetadataImage) -> bool:
        return topic_id not in image.topics

    return ChangeStep(DeleteTopic(topic_id), is_gone, None if is_gone(before) else is_gone)


def _refused(wanted: NewTopic, outcome: ChangeOutcome) -> TopicCreated:
    return TopicCreated(wanted.name, outcome.code, outcome.message)


def _created(wanted: NewTopic, change: Change, outcome: ChangeOutcome) -> TopicCreated:
    """Where nobody knows whether it was made, whoever asked can look for the id."""
    create, assignments = change[0].command, _assignments(change)
    assert isinstance(create, CreateTopic), f"a topic begins with {create}"
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
    """Says as well what was made before the error came."""
    if isinstance(change, Exception) or outcome.error is None or not outcome.done:
        return outcome.message
    made, wanted = len(_assignments(change[: outcome.done])), len(_assignments(change))
    return clip_message(f"{made} of {wanted} partitions were made; then: {outcome.error}")


def _assignments(steps: Sequence[ChangeStep]) -> Assignments:
    """Of all partitions that these steps make."""
    made: list[tuple[int, ...]] = []
    for step in steps:
        assert isinstance(step.command, CreateTopic | AddPartitions), f"{step.command}"
        made += step.command.assignments
    return tuple(made)


# -- Configs --------------------------------------------------------------------------------------
# The configuration of topics: told with its defaults, and changed key by key.
#
# Owns both requests. What is told is as of this broker's image; what is changed goes through the
# controller, and is answered once it shows here.


class TopicConfigRequests:
    def __init__(self, changes: MetadataChanges) -> None:
        self._changes = changes

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_CONFIGS: self.describe, ApiKey.ALTER_CONFIGS: self.alter}

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
def default_text(key: TopicKey) -> str:
    """As somebody would write it."""
    default = getattr(TopicConfig(), key.field)
    for choice in key.choices:
        if getattr(parse_topic_config({key.name: choice}), key.field) == default:
            return choice
    return str(default)


def _alteration(before: MetadataImage, wanted: ConfigChange) -> Change:
    """Nothing proves that it was this command: another may have set the same.

    Raises:
        InvalidConfig: of what is set; what is removed is looked at where it is applied.
    """
    kept = {key: value for key, value in wanted.changes.items() if value is not None}
    parse_topic_config(kept, feature_level=before.feature_level)
    topic_id, changes = wanted.topic_id, wanted.changes
    known = before.topics.get(topic_id)

    def is_shown(image: MetadataImage) -> bool:
        topic = image.topics.get(topic_id)
        if topic is None:
            return known is not None  # deleted meanwhile
        is_newer = known is None or topic.config_epoch > known.config_epoch
        return is_newer or all(topic.configs.get(key) == changes[key] for key in changes)

    return (ChangeStep(AlterTopicConfig(topic_id, dict(changes), wanted.expected_epoch), is_shown),)


# -- Elections ------------------------------------------------------------------------------------
# Elections of leaders on demand.
#
# Owns the request: the preferred leaders back, or with `is_unclean` anybody who is there. Each
# partition stands for itself. Who may lead is the metadata's business.


class ElectionRequests:
    def __init__(self, changes: MetadataChanges) -> None:
        self._changes = changes

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.ELECT_LEADERS: self.elect}

    async def elect(
        self, _context: RequestContext, request: ElectLeaders, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        kind = ElectionKind.UNCLEAN if request.is_unclean else ElectionKind.PREFERRED
        planned = plan_each(
            request.partitions,
            lambda it: (_election(image, it, kind),),
            key=lambda it: (it.topic_id, it.partition),
        )
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            PartitionOutcome(wanted.topic_id, wanted.partition, outcome.code, outcome.message)
            for wanted, outcome in zip(request.partitions, outcomes, strict=True)
        ]
        return Reply(ElectLeadersReply(tuple(told)))


def _election(before: MetadataImage, wanted: WantedElection, kind: ElectionKind) -> ChangeStep:
    """Each election has an epoch of its own; that it was this one, nothing proves."""
    key = PartitionId(wanted.topic_id, wanted.partition)
    known = before.partitions.get(key)

    def is_shown(image: MetadataImage) -> bool:
        state = image.partitions.get(key)
        if state is None:
            return known is not None  # deleted meanwhile
        return known is None or state.leader_epoch > known.leader_epoch

    return ChangeStep(ElectLeader(*key, kind, wanted.leader_epoch), is_shown)
