"""Rules for topics: create, add partitions, alter configuration, delete.

Owns topic names, configuration and the number of partitions (Kafka: ReplicationControlManager,
ConfigurationControlManager). A topic is identified by its id: a topic deleted and created again is
another one, and no record or offset of the old one is taken for the new. A change of
`min.insync.replicas` raises the partition epochs, so that a leader that still counts with the old
number cannot change an ISR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode, InvalidConfig
from raftmq.metadata.apply.assignments import assignments_refusal, put_partitions
from raftmq.metadata.apply.reviews import rules_of
from raftmq.metadata.commands import Done, PartitionId, Refused
from raftmq.metadata.election import min_isr_of, with_min_isr
from raftmq.metadata.image import TopicState
from raftmq.topic_config import (
    TOPIC_KEYS,
    is_page_cached,
    parse_topic_config,
    topic_name_problem,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.metadata.apply.assignments import Assignments
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AddPartitions,
        AlterTopicConfig,
        AnyResult,
        CreateTopic,
        DeleteTopic,
    )
    from raftmq.metadata.image import PartitionState

# Of all keys and values. Every node validates them while it applies the command, and searches a
# suggestion for each unknown key, which is slow.
CONFIG_CHARS_MAX = 10_000
TOPIC_ID_BYTES = 16  # of a UUID
ANY_EPOCH = -1  # of AlterTopicConfig: overwrite any configuration
_KEYS = frozenset(key.name for key in TOPIC_KEYS)


def create_topic(draft: Draft, command: CreateTopic) -> AnyResult:
    answer = (
        _existing(draft, command)
        or _name_refusal(command)
        or _config_refusal(draft, command.configs)
        or assignments_refusal(draft, command.assignments, first=0)
    )
    if answer is not None:  # refused, or done before
        return answer
    topic = TopicState(
        topic_id=command.topic_id,
        name=command.name,
        partition_count=len(command.assignments),
        configs=_in_order(command.configs),
        config_epoch=draft.version,
        trusts_page_cache=is_page_cached(command.configs),
    )
    draft.put_topic(topic)
    put_partitions(draft, topic.topic_id, command.assignments)
    return Done()


def delete_topic(draft: Draft, command: DeleteTopic) -> AnyResult:
    """Committed offsets of groups stay until their coordinators remove them."""
    topic = draft.topic(command.topic_id)
    if topic is None:
        return _unknown_topic(command.topic_id)
    for number in range(topic.partition_count):
        draft.remove_partition(PartitionId(topic.topic_id, number))
    draft.remove_topic(topic)
    return Done()


def create_partitions(draft: Draft, command: AddPartitions) -> AnyResult:
    topic = draft.topic(command.topic_id)
    if topic is None:
        return _unknown_topic(command.topic_id)
    first, count = command.expected_count, topic.partition_count
    if first != count:  # a retry, or another command has added partitions
        return _counted_otherwise(draft, topic, command)
    refusal = assignments_refusal(draft, command.assignments, first=first)
    if refusal is not None:
        return refusal
    draft.put_topic(replace(topic, partition_count=count + len(command.assignments)))
    put_partitions(draft, topic.topic_id, command.assignments, first=first)
    return Done()


def alter_topic_config(draft: Draft, command: AlterTopicConfig) -> AnyResult:
    topic = draft.topic(command.topic_id)
    if topic is None:
        return _unknown_topic(command.topic_id)
    # Another command has changed it since it was read.
    if command.expected_epoch not in (ANY_EPOCH, topic.config_epoch):
        return Refused(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the configuration of topic {topic.name} has epoch {topic.config_epoch}, expected was"
            f" {command.expected_epoch}: read it again",
        )
    wanted = {**topic.configs, **command.changes}
    # Removing an unknown key is refused like setting one: it is a mistyped name.
    kept = {
        key: value or "" for key, value in wanted.items() if value is not None or key not in _KEYS
    }
    refusal = _config_refusal(draft, kept)
    if refusal is not None:
        return refusal
    if kept != topic.configs:  # a retry must not raise the configuration epoch
        draft.put_topic(
            replace(
                topic,
                configs=_in_order(kept),
                config_epoch=draft.version,
                trusts_page_cache=topic.trusts_page_cache or is_page_cached(kept),
            )
        )
        _follow_min_isr(draft, topic, kept)
    return Done()


def _existing(draft: Draft, command: CreateTopic) -> AnyResult | None:
    """The answer where the id or the name is in use; Done for a retry of the same creation."""
    topic = draft.topic(command.topic_id)
    if topic is not None and topic.name != command.name:
        message = f"id {command.topic_id.hex()} is that of topic {topic.name}: draw another"
        return Refused(ErrorCode.INCONSISTENT_TOPIC_ID, message)
    if topic is not None and _is_retry(draft, topic, command.assignments, first=0):  # a retry
        return Done()
    if topic is not None or draft.topic_id_named(command.name) is not None:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {command.name} exists already")
    return None


def _is_retry(draft: Draft, topic: TopicState, assignments: Assignments, *, first: int) -> bool:
    """Whether partitions `first` and up to the topic's last one have exactly these replicas."""
    # It has grown since, or the retry is of something else.
    if first < 0 or topic.partition_count != first + len(assignments):
        return False
    return all(
        _partition(draft, topic, number).replicas == replicas
        for number, replicas in enumerate(assignments, first)
    )


def _counted_otherwise(draft: Draft, topic: TopicState, command: AddPartitions) -> AnyResult:
    """The answer where `expected_count` is not the count; Done for a retry that was applied."""
    first, count = command.expected_count, topic.partition_count
    # The count is what this command has made it.
    if _is_retry(draft, topic, command.assignments, first=first):
        return Done()
    message = f"topic {topic.name} has {count} partitions, expected were {first}: read it again"
    return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)


def _name_refusal(command: CreateTopic) -> Refused | None:
    if len(command.topic_id) != TOPIC_ID_BYTES:
        message = f"topic id of {len(command.topic_id)} bytes: it has {TOPIC_ID_BYTES}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    problem = topic_name_problem(command.name)
    return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem) if problem else None


def _config_refusal(draft: Draft, configs: Mapping[str, str]) -> Refused | None:
    size = sum(len(key) + len(value) for key, value in configs.items())
    if size > CONFIG_CHARS_MAX:  # before the keys are parsed, which costs more
        message = f"configuration of {size} characters: at most {CONFIG_CHARS_MAX}"
        return Refused(ErrorCode.INVALID_CONFIG, message)
    try:
        parse_topic_config(configs, feature_level=draft.feature_level)
    except InvalidConfig as error:
        return Refused(ErrorCode.INVALID_CONFIG, str(error))
    return None


def _in_order(configs: Mapping[str, str]) -> dict[str, str]:
    """A copy in the order of its keys: equal configurations have equal bytes in a snapshot."""
    return dict(sorted(configs.items()))


def _follow_min_isr(draft: Draft, before: TopicState, configs: Mapping[str, str]) -> None:
    """Apply a change of min.insync.replicas to the partitions whose effective min ISR changes."""
    old = parse_topic_config(before.configs).min_insync_replicas
    new = parse_topic_config(configs).min_insync_replicas
    if old == new:  # no partition is concerned
        return
    rules = rules_of(draft, before.topic_id)
    for number in range(before.partition_count):
        state = _partition(draft, before, number)
        # Capped by the number of replicas, it may be equal.
        if min_isr_of(state, old, rules.level) != min_isr_of(state, new, rules.level):
            key = PartitionId(before.topic_id, number)
            draft.put_partition(key, with_min_isr(state, rules))


def _partition(draft: Draft, topic: TopicState, number: int) -> PartitionState:
    state = draft.partition(PartitionId(topic.topic_id, number))
    assert state is not None, f"partition {number} of topic {topic.name} is missing"
    return state


def _unknown_topic(topic_id: bytes) -> Refused:
    message = f"no topic has id {topic_id.hex()}: it was deleted, or never made"
    return Refused(ErrorCode.UNKNOWN_TOPIC_ID, message)
