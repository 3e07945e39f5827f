"""The configuration of topics: read with its defaults, changed key by key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raftmq.client.administration.questions import ask_any, find_topic_id, only_one
from raftmq.client.administration.results import ConfigValue
from raftmq.client.routing.attempts import Repeats
from raftmq.errors import error_for
from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.configs import AlterConfigsReply, DescribeConfigsReply


async def describe_config(
    cluster: Cluster, name: str, *, deadline: float
) -> dict[str, ConfigValue]:
    """Every key that the cluster knows."""
    topic_id = await find_topic_id(cluster, name, deadline=deadline)

    def read(reply: DescribeConfigsReply) -> dict[str, ConfigValue]:
        told = only_one(reply.topics, "DescribeConfigs")
        if told.error:
            raise error_for(told.error, told.message)
        return {one.name: ConfigValue(one.value, one.is_default) for one in told.entries}

    return await ask_any(
        cluster,
        lambda _timeout_ms: DescribeConfigs((topic_id,)),
        read,
        deadline=deadline,
        repeats=Repeats.HARMLESS,
    )


async def alter_config(
    cluster: Cluster, name: str, changes: Mapping[str, str | None], *, deadline: float
) -> None:
    """All keys at once, or none. It may be asked for twice: then the same is set again.

    Raises:
        OutcomeUnknown: it may have been changed, or soon be.
        InvalidConfig, RaftmqError: nothing was changed. Definite.
    """
    topic_id = await find_topic_id(cluster, name, deadline=deadline)

    def read(reply: AlterConfigsReply) -> None:
        outcome = only_one(reply.topics, "AlterConfigs")
        if outcome.error:
            raise error_for(outcome.error, outcome.message)

    await ask_any(
        cluster,
        partial(AlterConfigs, (ConfigChange(topic_id, dict(changes)),)),
        read,
        deadline=deadline,
        repeats=Repeats.ACCEPTED,
    )
