"""The configuration of topics: told with its defaults, and changed key by key.

Owns both requests. What is told is as of this broker's image; what is changed goes through the
controller, and is answered once it shows here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from raftmq.broker.changes import Step, plan_each
from raftmq.config import TOPIC_KEYS, TopicConfig, TopicKey, parse_topic_config
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import AlterTopicConfig
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import TopicOutcome
from raftmq.wire.messages.configs import (
    AlterConfigsReply,
    ConfigEntry,
    DescribeConfigsReply,
    TopicConfigDescription,
)

if TYPE_CHECKING:
    from raftmq.broker.changes import Change, Changes
    from raftmq.metadata.image import MetadataImage, TopicState
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs


class TopicConfigs:
    def __init__(self, changes: Changes) -> None:
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

    return (Step(AlterTopicConfig(topic_id, dict(changes), wanted.expected_epoch), is_shown),)
