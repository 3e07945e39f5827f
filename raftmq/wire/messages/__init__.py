"""All requests and replies of the protocol, one module for each family; `REQUESTS` by api key.

A request class names its api key, its version and the class of its reply. Types only: handlers are
in `raftmq/broker/requests/`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from raftmq.wire.messages.cluster import (
    BrokerHeartbeat,
    DescribeCluster,
    Ping,
    Propose,
    ReadBarrier,
)
from raftmq.wire.messages.configs import AlterConfigs, DescribeConfigs
from raftmq.wire.messages.corruption import DescribeDamage, ReportCorruption
from raftmq.wire.messages.fetch import Fetch
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetDelete, OffsetFetch
from raftmq.wire.messages.groups import (
    DeleteGroups,
    DescribeGroups,
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    SyncGroup,
)
from raftmq.wire.messages.hello import Hello
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.offsets import ListOffsets, OffsetForLeaderEpoch
from raftmq.wire.messages.produce import Produce
from raftmq.wire.messages.producers import FenceProducer, InitProducerId
from raftmq.wire.messages.replicate import ReplicaFetch, ReplicaProgress
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    DescribeTopics,
    ElectLeaders,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.wire.bodies import Request

_CLASSES: tuple[type[Request], ...] = (
    Produce, Fetch, ListOffsets, Metadata, Hello, CreateTopics, DeleteTopics, DeleteRecords,
    OffsetForLeaderEpoch, DescribeConfigs, CreatePartitions, ElectLeaders, AlterConfigs,
    DescribeCluster, DescribeTopics, Ping, ReplicaFetch, ReplicaProgress, Propose, BrokerHeartbeat,
    ReadBarrier, OffsetCommit, OffsetFetch, FindCoordinator, JoinGroup, Heartbeat, LeaveGroup,
    SyncGroup, DescribeGroups, ListGroups, InitProducerId, DeleteGroups, OffsetDelete,
    FenceProducer, ReportCorruption, DescribeDamage,
)  # fmt: skip
REQUESTS: Mapping[tuple[int, int], type[Request]] = MappingProxyType(
    {(cls.api_key, cls.version): cls for cls in _CLASSES}
)
