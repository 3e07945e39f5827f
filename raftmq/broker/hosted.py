"""From the metadata to what replicas and logs understand: names, configs, assignments.

Pure. Owns the name of a partition's folder and what `min.insync.replicas` means where there are
fewer replicas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from raftmq.config import TopicConfig, parse_topic_config
from raftmq.metadata.commands import RecoveryState
from raftmq.partition.around import PartitionKey
from raftmq.partition.leader import Assignment
from raftmq.partition.storage.directory import LogId

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage, PartitionState, TopicState

_TOPIC_FOLDER = re.compile(r".+-(?P<topic_id>[0-9a-f]{32})")
_PARTITION_FOLDER = re.compile(r"Partition-(?P<partition>\d+)")


def log_id_of(topic: TopicState, partition: int) -> LogId:
    return LogId(f"{topic.name}-{topic.topic_id.hex()}", partition)


def key_of(topic_folder: str, partition_folder: str) -> PartitionKey | None:
    """The partition that a folder belongs to; None for a folder that is none of ours."""
    topic = _TOPIC_FOLDER.fullmatch(topic_folder)
    partition = _PARTITION_FOLDER.fullmatch(partition_folder)
    if topic is None or partition is None:
        return None
    return PartitionKey(bytes.fromhex(topic["topic_id"]), int(partition["partition"]))


def config_of(topic: TopicState) -> TopicConfig:
    """What was checked when it was set."""
    return parse_topic_config(topic.configs)


def assignment_of(state: PartitionState, config: TopicConfig) -> Assignment:
    return Assignment(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        min_isr=min(config.min_insync_replicas, len(state.replicas)),
        is_recovering=state.recovery_state is RecoveryState.RECOVERING,
        log_start_offset=state.log_start_offset,
    )


def epoch_in_isr(image: MetadataImage, broker_id: int) -> int | None:
    """The broker epoch of a broker that may be in an in-sync set; None if it may not."""
    return image.brokers[broker_id].broker_epoch if image.is_active(broker_id) else None
