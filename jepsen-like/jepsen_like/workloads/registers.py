"""A topic as a register: the admin requests for it, and what their answers certainly say.

The value of a register is a number in the topic's configuration; without the topic there is none.
What was read names the topic by its id and the configuration by its epoch, so that it can be
replaced only as it was read. A request that may have happened is not retried.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.administration.questions import (
    ask_any,
    find_topic_id,
    only_one,
    only_success,
)
from raftmq.client.administration.topics import create_topic
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import ErrorCode, UnknownTopicId, UnknownTopicOrPartition, error_for
from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs
from raftmq.wire.messages.topics import DeleteTopics

if TYPE_CHECKING:
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.configs import (
        AlterConfigsReply,
        DescribeConfigsReply,
        TopicConfigDescription,
    )
    from raftmq.wire.messages.topics import DeleteTopicsReply

CONFIG_KEY = "retention.ms"
ZERO = 10**9  # milliseconds, 11 days, added to each value: no record expires while a test runs
NOT_THERE = (UnknownTopicId, UnknownTopicOrPartition)


class Found(NamedTuple):
    """As some broker knew it, which may be behind. `epoch`: of the configuration."""

    topic_id: bytes
    value: int
    epoch: int


async def look(cluster: Cluster, name: str, *, deadline: float) -> Found | None:
    """None: there is no such topic, as some broker knew it."""
    try:
        topic_id = await find_topic_id(cluster, name, deadline=deadline)
        told = await ask_any(
            cluster,
            lambda _timeout_ms: DescribeConfigs((topic_id,)),
            _read_description,
            deadline=deadline,
            repeats=RepeatEffect.HARMLESS,
        )
    except NOT_THERE:
        return None
    texts = {entry.name: entry.value for entry in told.entries}
    return Found(topic_id, int(texts[CONFIG_KEY]) - ZERO, told.config_epoch)


async def create(
    cluster: Cluster, name: str, value: int, *, replication_factor: int, deadline: float
) -> None:
    """Raises RaftmqError; TopicAlreadyExists does not say which process has made it."""
    await create_topic(
        cluster,
        name,
        partition_count=1,
        replication_factor=replication_factor,
        configs={CONFIG_KEY: str(ZERO + value)},
        deadline=deadline,
    )


async def swap(cluster: Cluster, found: Found, value: int, *, deadline: float) -> bool:
    """Set `value` if nothing has changed since `found`; whether that was so.

    With the value that was found it changes nothing, and says that this was the value meanwhile.

    Raises:
        RaftmqError: as `definite` says.
    """
    change = ConfigChange(found.topic_id, {CONFIG_KEY: str(ZERO + value)}, found.epoch)

    def read(reply: AlterConfigsReply) -> bool:
        outcome = only_one(reply.topics, "AlterConfigs")
        if outcome.error == ErrorCode.INVALID_UPDATE_VERSION:
            return False
        if outcome.error:
            raise error_for(outcome.error, outcome.message)
        return True

    make = partial(AlterConfigs, (change,))
    return await ask_any(cluster, make, read, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)


async def delete(cluster: Cluster, found: Found, *, deadline: float) -> None:
    """Raises RaftmqError, as `definite` says."""

    def read(reply: DeleteTopicsReply) -> None:
        only_success(reply.topics, "DeleteTopics")

    make = partial(DeleteTopics, (found.topic_id,))
    await ask_any(cluster, make, read, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)


def _read_description(reply: DescribeConfigsReply) -> TopicConfigDescription:
    return only_success(reply.topics, "DescribeConfigs")
