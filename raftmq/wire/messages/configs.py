"""Messages of topic configuration: describe configs, alter configs key by key.

Values are sent as the texts that people write; `raftmq.topic_config` parses and checks them.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
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
    """The value in force of one key, set or default."""

    name: Name
    value: ConfigText
    is_default: bool = False


class TopicConfigDescription(Body, frozen=True):
    """`config_epoch`: for AlterConfigs, which then changes only the configuration that was read."""

    topic_id: TopicId
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    config_epoch: NaturalOrAbsent = ABSENT
    entries: Annotated[tuple[ConfigEntry, ...], Meta(max_length=CONFIG_KEYS_MAX)] = ()


class DescribeConfigsReply(Body, frozen=True):
    topics: Annotated[tuple[TopicConfigDescription, ...], Meta(max_length=TOPICS_MAX)] = ()


class DescribeConfigs(Request, frozen=True):
    api_key = 32
    reply = DescribeConfigsReply

    topics: Annotated[tuple[TopicId, ...], Meta(max_length=TOPICS_MAX)]


Changes: TypeAlias = Annotated[dict[Name, ConfigText | None], Meta(max_length=CONFIG_KEYS_MAX)]


class ConfigChange(Body, frozen=True):
    """None resets a key to its default; keys that are not named stay.

    `expected_epoch`: of the configuration that was read, a compare-and-set; -1: of any.
    """

    topic_id: TopicId
    changes: Changes
    expected_epoch: NaturalOrAbsent = ABSENT


class AlterConfigsReply(Body, frozen=True):
    topics: Annotated[tuple[TopicOutcome, ...], Meta(max_length=TOPICS_MAX)] = ()


class AlterConfigs(Request, frozen=True):
    api_key = 44
    reply = AlterConfigsReply

    topics: Annotated[tuple[ConfigChange, ...], Meta(max_length=TOPICS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    is_dry_run: bool = False  # check, and change nothing
