"""Topic calls of the admin: create, delete, list, describe, grow, configuration; waits until
usable.

A change is never sent again when the first request may have been carried out, unless a repetition
sets the same values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration.offsets import ends_of, find_offsets
from raftmq.client.administration.questions import (
    ask_any,
    find_topic,
    find_topic_id,
    id_of,
    know_addresses,
    naming,
    only_success,
    settle,
)
from raftmq.client.administration.results import (
    ConfigValue,
    CreatedTopic,
    PartitionDetails,
    TopicDetails,
    TopicSummary,
)
from raftmq.client.consumer.subscription import UNKNOWN_SECONDS_MAX
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import (
    ErrorCode,
    LeaderNotAvailable,
    OutcomeUnknown,
    RaftmqError,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raftmq.model import IsolationLevel
from raftmq.topic_config import topic_warning
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, TOPICS_MAX
from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs
from raftmq.wire.messages.metadata import Metadata, MetadataReply
from raftmq.wire.messages.offsets import EARLIEST, ListOffsets, WantedOffset
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.administration.offsets import Ends
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.configs import AlterConfigsReply, DescribeConfigsReply
    from raftmq.wire.messages.metadata import TopicMetadata
    from raftmq.wire.messages.topics import (
        CreatePartitionsReply,
        CreateTopicsReply,
        DeleteTopicsReply,
        PartitionDescription,
        TopicCreated,
    )


# -- Configuration --------------------------------------------------------------------------------
# The configuration of topics: read with its defaults, changed key by key.


async def describe_config(
    cluster: Cluster, name: str, *, deadline: float
) -> dict[str, ConfigValue]:
    """Every key that the cluster knows."""
    topic_id = await find_topic_id(cluster, name, deadline=deadline)

    def read(reply: DescribeConfigsReply) -> dict[str, ConfigValue]:
        told = only_success(reply.topics, "DescribeConfigs")
        return {one.name: ConfigValue(one.value, one.is_default) for one in told.entries}

    with naming(name):
        return await ask_any(
            cluster,
            lambda _timeout_ms: DescribeConfigs((topic_id,)),
            read,
            deadline=deadline,
            repeats=RepeatEffect.HARMLESS,
        )


async def alter_config(
    cluster: Cluster, name: str, changes: Mapping[str, str | None], *, deadline: float
) -> None:
    """All keys at once, or none. May be sent twice: that sets the same values again.

    Raises:
        OutcomeUnknown: it may have been changed, or soon be. Indefinite.
        InvalidConfig, RaftmqError: nothing was changed. Definite.
    """
    # By id, a later topic of the same name cannot be hit.
    topic_id = await find_topic_id(cluster, name, deadline=deadline)

    def read(reply: AlterConfigsReply) -> None:
        only_success(reply.topics, "AlterConfigs")

    with naming(name):
        await ask_any(
            cluster,
            partial(AlterConfigs, (ConfigChange(topic_id, dict(changes)),)),
            read,
            deadline=deadline,
            repeats=RepeatEffect.ACCEPTED,
        )


# -- Topics ---------------------------------------------------------------------------------------


FRESH_SECONDS_MAX = 2.0  # after that, a broker with older metadata is better than no answer


async def make_topic(
    cluster: Cluster,
    name: str,
    *,
    partition_count: int,
    replication_factor: int,
    configs: Mapping[str, str],
    is_existing_fine: bool = False,
    deadline: float,
) -> CreatedTopic:
    """Create a topic, and wait until every partition has a leader that accepts records.

    Args:
        is_existing_fine: a topic that exists is taken as it is. Then attempts are repeated also
            where one may have been carried out: the next one finds the topic.

    Raises:
        OutcomeUnknown: it may exist now, or soon; or it does, and cannot be used yet. Indefinite.
        TopicAlreadyExists, RaftmqError: nothing was created. Definite.
    """
    wanted = NewTopic(name, partition_count, replication_factor, configs=dict(configs))
    made = await _create(cluster, wanted, is_existing_fine=is_existing_fine, deadline=deadline)
    if made is None:
        return await _take_existing(cluster, wanted, deadline=deadline)
    topic_id = id_of(made)
    await _wait_usable(cluster, name, f"topic {name} was made", deadline=deadline)
    warning = topic_warning(made.replication_factor, configs)
    return CreatedTopic(name, topic_id, made.partition_count, made.replication_factor, warning)


async def _take_existing(cluster: Cluster, wanted: NewTopic, *, deadline: float) -> CreatedTopic:
    """The topic that has the name already, once it can be used.

    Raises:
        UnknownTopicOrPartition: it was deleted meanwhile.
        RaftmqError: it cannot be used. Definite: nothing was created.
    """
    known_by = min(deadline, anyio.current_time() + UNKNOWN_SECONDS_MAX)
    attempts = cluster.new_attempts(deadline=known_by, repeats=RepeatEffect.HARMLESS)
    while True:
        try:
            return await _describe_existing(cluster, wanted, deadline=deadline)
        # The controller knows it; the broker that was asked hears of it a moment later.
        except UnknownTopicOrPartition as error:
            pause = attempts.on_failure(error, now=anyio.current_time())
        await anyio.sleep(pause)
        attempts.check_time(anyio.current_time())


async def _describe_existing(
    cluster: Cluster, wanted: NewTopic, *, deadline: float
) -> CreatedTopic:
    """Raises RaftmqError."""
    name = wanted.name
    found = await find_topic(cluster, name, deadline=deadline)
    await wait_leaders(cluster, name, deadline=deadline)
    count = found.partition_count
    factor = max((len(one.replicas) for one in found.partitions), default=0)
    has = {"partitions": str(count), "replication_factor": str(factor)}
    if wanted.configs:
        config = await describe_config(cluster, name, deadline=deadline)
        has |= {key: one.value for key, one in config.items()}
    warnings = [_differences(wanted, has), topic_warning(factor, found.configs)]
    warning = "; ".join(filter(None, warnings))
    return CreatedTopic(name, id_of(found), count, factor, warning, is_new=False)


def _differences(wanted: NewTopic, has: Mapping[str, str]) -> str:
    """What of a topic that exists is not as it was asked for; `has`: its numbers and its config."""
    asked = dict(wanted.configs)
    if wanted.partition_count != ABSENT:
        asked["partitions"] = str(wanted.partition_count)
    if wanted.replication_factor != ABSENT:
        asked["replication_factor"] = str(wanted.replication_factor)
    told = [
        f"{key} = {has.get(key)}, not {asked[key]}" for key in asked if has.get(key) != asked[key]
    ]
    return f"it was there already, with {', '.join(told)}" if told else ""


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partition_count: int = ABSENT,
    replication_factor: int = ABSENT,
    configs: Mapping[str, str] | None = None,
    deadline: float,
) -> TopicCreated:
    """Create a topic. Its partitions have leaders a little later: `wait_leaders`.

    Args:
        partition_count, replication_factor: -1: the cluster's default.

    Raises:
        OutcomeUnknown: it may exist now, or soon. Indefinite.
        TopicAlreadyExists, RaftmqError: nothing was created. Definite.
    """
    wanted = NewTopic(name, partition_count, replication_factor, configs=dict(configs or {}))
    made = await _create(cluster, wanted, is_existing_fine=False, deadline=deadline)
    assert made is not None, "exists, and no error"
    return made


async def _create(
    cluster: Cluster, wanted: NewTopic, *, is_existing_fine: bool, deadline: float
) -> TopicCreated | None:
    """None: it exists already."""

    def read(reply: CreateTopicsReply) -> TopicCreated | None:
        try:
            return only_success(reply.topics, "CreateTopics")
        except TopicAlreadyExists:
            if not is_existing_fine:
                raise
            return None

    repeats = RepeatEffect.ACCEPTED if is_existing_fine else RepeatEffect.FORBIDDEN
    return await ask_any(
        cluster, partial(CreateTopics, (wanted,)), read, deadline=deadline, repeats=repeats
    )


# A broker applies a deletion within milliseconds; one that needs longer than this is cut off.
GONE_SECONDS_MAX = 5.0
GONE_PAUSE_SECONDS = 0.01  # before a broker is asked again; then twice as long each time


async def delete_topic(cluster: Cluster, name: str, *, deadline: float) -> None:
    """Delete the topic that has this name now, and no other that may get the name later. Then wait
    until no broker serves it any more, as far as brokers answer, for 5 s at most.

    Raises:
        OutcomeUnknown: it may be gone, or soon be. Indefinite.
        UnknownTopicOrPartition, RaftmqError: nothing was deleted. Definite.
    """
    # Deleting by id cannot hit a topic that is created under the name in the meantime.
    topic = await find_topic(cluster, name, deadline=deadline)
    topic_id = id_of(topic)

    def read(reply: DeleteTopicsReply) -> None:
        only_success(reply.topics, "DeleteTopics")

    with naming(name):
        await ask_any(
            cluster,
            partial(DeleteTopics, (topic_id,)),
            read,
            deadline=deadline,
            repeats=RepeatEffect.FORBIDDEN,
        )
    await _wait_gone(cluster, topic_id, topic.partitions, deadline=deadline)


async def _wait_gone(
    cluster: Cluster,
    topic_id: bytes,
    partitions: Sequence[PartitionDescription],
    *,
    deadline: float,
) -> None:
    """The deletion is committed, but a leader that has not applied it yet would still acknowledge
    records: wait until each broker has let go of the topic. One that does not answer may be dead,
    or cut off, and is not waited for.
    """
    asked = [WantedOffset(topic_id, one.partition, ABSENT, EARLIEST) for one in partitions]
    requests = [
        ListOffsets(tuple(asked[start : start + PARTITIONS_MAX]))
        for start in range(0, len(asked), PARTITIONS_MAX)
    ]
    latest = min(deadline, anyio.current_time() + GONE_SECONDS_MAX)
    holders = {broker_id for one in partitions for broker_id in one.replicas}
    await know_addresses(cluster, holders, deadline=latest)

    async def wait_at(broker_id: int) -> None:
        pause = GONE_PAUSE_SECONDS
        while not await _is_gone_at(cluster, broker_id, requests, deadline=latest):
            await anyio.sleep(pause)
            pause *= 2

    with anyio.CancelScope(deadline=latest):
        # Each ends with its broker's answer, or when the broker does not answer.
        await settle([partial(wait_at, broker_id) for broker_id in cluster.routes.addresses])


async def _is_gone_at(
    cluster: Cluster, broker_id: int, requests: Sequence[ListOffsets], *, deadline: float
) -> bool:
    """The broker's metadata do not have the topic any more, nor has it a replica of it."""
    for request in requests:
        answer = await cluster.ask(broker_id, request, deadline=deadline)
        if any(found.error != ErrorCode.UNKNOWN_TOPIC_ID for found in answer.body.partitions):
            return False
    return True


async def grow_topic(cluster: Cluster, name: str, total: int, *, deadline: float) -> None:
    """Grow to `total` partitions, and wait until every one has a leader.

    Raises:
        OutcomeUnknown: it may have grown; or it has, and some of it cannot be used yet. Indefinite.
        InvalidPartitions: it has as many already, or more. Definite.
    """
    # By id, a later topic of the same name cannot be hit.
    topic_id = await find_topic_id(cluster, name, deadline=deadline)

    def read(reply: CreatePartitionsReply) -> None:
        only_success(reply.topics, "CreatePartitions")

    with naming(name):
        await ask_any(
            cluster,
            partial(CreatePartitions, (MorePartitions(topic_id, total),)),
            read,
            deadline=deadline,
            repeats=RepeatEffect.FORBIDDEN,
        )
    what = f"topic {name} has {total} partitions now"
    await _wait_usable(cluster, name, what, deadline=deadline)


async def list_topics(
    cluster: Cluster, names: Sequence[str] | None = None, *, deadline: float
) -> tuple[TopicSummary, ...]:
    """All topics, or those of these that exist, by name."""
    reply = await all_metadata(cluster, names, deadline=deadline)
    return tuple(_summary(topic) for topic in reply.topics if topic.topic_id is not None)


async def all_metadata(
    cluster: Cluster, names: Sequence[str] | None = None, *, deadline: float
) -> MetadataReply:
    """The metadata of all topics, or of these, from one broker.

    Its version is at least the newest that was seen, unless no such broker answers for 2 s.
    """
    fresh_until = min(deadline, anyio.current_time() + FRESH_SECONDS_MAX)

    async def attempt(broker_id: int) -> MetadataReply:
        newest_version = cluster.newest_version
        reply = await _all_pages(cluster, broker_id, names, deadline=deadline)
        # A topic that was just created must be in the list.
        is_behind = reply.metadata_version < newest_version
        if is_behind and anyio.current_time() < fresh_until:
            raise LeaderNotAvailable(
                f"broker {broker_id} is behind: metadata version {reply.metadata_version},"
                f" others have {newest_version}"
            )
        return reply

    return await cluster.at_any(attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS)


async def _all_pages(
    cluster: Cluster, broker_id: int, names: Sequence[str] | None, *, deadline: float
) -> MetadataReply:
    topics: dict[str, TopicMetadata] = {}
    first: MetadataReply | None = None
    while True:
        body = Metadata(None, after=next(reversed(topics), ""))
        if names is not None:
            rest = names[len(topics) :]
            body = Metadata(tuple(rest[:TOPICS_MAX]))
        answer = await cluster.ask(broker_id, body, deadline=deadline)
        page: MetadataReply = answer.body
        known = len(topics)
        topics |= {topic.name: topic for topic in page.topics}
        first = first or page
        if page.is_complete and (names is None or len(topics) >= len(names)):  # the last page
            break
        # A faulty broker must not make this loop for ever.
        if len(topics) == known:
            raise ServerError(f"broker {broker_id}: pages of topics that lead nowhere")
    return MetadataReply(
        first.metadata_version,
        first.cluster_id,
        first.controller_id,
        first.brokers,
        tuple(topics[name] for name in sorted(topics)),
    )


async def topic_details(cluster: Cluster, name: str, *, deadline: float) -> TopicDetails:
    """Offsets are None where no leader answers within a few seconds."""
    found = await find_topic(cluster, name, deadline=deadline)
    led = [one.partition for one in found.partitions if one.leader != ABSENT]
    uncommitted = IsolationLevel.READ_UNCOMMITTED
    ends = await ends_of(cluster, name, led, deadline=deadline, isolation=uncommitted)
    # Afterwards: in the other order records that came meanwhile would look like open transactions.
    stable = await ends_of(cluster, name, list(ends), deadline=deadline)
    config = await describe_config(cluster, name, deadline=deadline)
    partitions = tuple(
        _partition(one, ends.get(one.partition), stable.get(one.partition))
        for one in found.partitions
    )
    return TopicDetails(name, id_of(found), partitions, config)


async def wait_leaders(cluster: Cluster, name: str, *, deadline: float) -> None:
    """Wait until every partition of the topic has a leader.

    Raises:
        LeaderNotAvailable, UnknownTopicOrPartition, RaftmqError: the last problem when the time was
            over.
    """
    attempts = cluster.new_attempts(deadline=deadline, repeats=RepeatEffect.HARMLESS)
    while True:
        try:
            await cluster.refresh(name, deadline=deadline)
            _check_led(cluster, name)
            return
        # Retried while the topic, or some leader, is missing; other errors are raised here.
        except RaftmqError as error:
            pause = attempts.on_failure(error, now=anyio.current_time())
        await anyio.sleep(pause)
        attempts.check_time(anyio.current_time())


def _check_led(cluster: Cluster, name: str) -> None:
    cluster.routes.topic_id(name)
    topic = cluster.routes.topic(name)
    if topic is None or not topic.is_led:
        raise LeaderNotAvailable(f"{name}: not every partition has a leader")


async def _wait_usable(cluster: Cluster, name: str, what: str, *, deadline: float) -> None:
    """Leaders are named a moment before they have taken over: send each one a request."""
    try:
        await wait_leaders(cluster, name, deadline=deadline)
        await find_offsets(cluster, name, EARLIEST, None, deadline=deadline)
    # The change itself has succeeded, so the error must not look definite.
    except RaftmqError as error:
        raise OutcomeUnknown(f"{what}, and cannot be used yet: {error}") from error


def _summary(topic: TopicMetadata) -> TopicSummary:
    assert topic.topic_id is not None, "a topic that is not there"
    partitions = topic.partitions
    return TopicSummary(
        topic.name,
        topic.topic_id,
        len(partitions),
        max((len(one.replicas) for one in partitions), default=0),
        under_replicated=sum(not set(one.replicas) <= set(one.isr) for one in partitions),
        leaderless=sum(one.leader == ABSENT for one in partitions),
    )


def _partition(
    told: PartitionDescription, ends: Ends | None, stable: Ends | None
) -> PartitionDetails:
    return PartitionDetails(
        told.partition,
        None if told.leader == ABSENT else told.leader,
        told.leader_epoch,
        told.partition_epoch,
        told.replicas,
        told.isr,
        start_offset=ends.start if ends else None,
        end_offset=ends.end if ends else None,
        is_recovering=told.is_recovering,
        last_stable_offset=min(stable.end, ends.end) if stable and ends else None,
        adding=told.adding,
        removing=told.removing,
    )
