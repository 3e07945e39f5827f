"""The configuration of topics: read, and changed key by key.

Values travel as the texts that people write; `raftmq.config` knows what they mean.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    CONFIG_KEYS_MAX,
    TIMEOUT_MS,
    TOPICS_MAX,
    Body,
    ConfigText,
    ErrorMessage,
    ErrorNumber,
    Milliseconds,
    Name,
    NaturalOrAbsent,
    Request,
    TopicId,
    TopicOutcome,
)


class ConfigEntry(Body, frozen=True):
    """What holds for one key, whether it was set or is the default."""

    name: Name
    value: ConfigText
    is_default: bool = False


class TopicConfigDescription(Body, frozen=True):
    """`config_epoch`: for AlterConfigs, to change nothing but what was read."""

    topic_id: TopicId
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    config_epoch: NaturalOrAbsent = ABSENT
    entries: Annotated[tuple[ConfigEntry, ...], Meta(max_length=CONFIG_KEYS_MAX)] = ()


class DescribeConfigsReply(Body, frozen=True):
    topics: Annotated[tuple[TopicConfigDescription, ...], Meta(max_length=TOPICS_MAX)] = ()


class DescribeConfigs(Request, frozen=True):
    api_key: ClassVar[ApiKey] = ApiKey.DESCRIBE_CONFIGS
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = DescribeConfigsReply

    topics: Annotated[tuple[TopicId, ...], Meta(max_length=TOPICS_MAX)]


Changes: TypeAlias = Annotated[dict[Name, ConfigText | None], Meta(max_length=CONFIG_KEYS_MAX)]


class ConfigChange(Body, frozen=True):
    """None brings a key back to its default; keys that are not named stay.

    `expected_epoch` is that of the configuration which was read; -1: whatever is there.
    """

    topic_id: TopicId
    changes: Changes
    expected_epoch: NaturalOrAbsent = ABSENT


class AlterConfigsReply(Body, frozen=True):
    topics: Annotated[tuple[TopicOutcome, ...], Meta(max_length=TOPICS_MAX)] = ()


class AlterConfigs(Request, frozen=True):
    api_key: ClassVar[ApiKey] = ApiKey.ALTER_CONFIGS
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = AlterConfigsReply

    topics: Annotated[tuple[ConfigChange, ...], Meta(max_length=TOPICS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    is_dry_run: bool = False  # check, and change nothing
