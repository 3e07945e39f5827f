"""API keys: the number of each request, its supported versions, and who may send it.

Owns the numbers, and which requests only brokers may send. A number never changes its meaning. If a
request means the same as in Kafka it has Kafka's number; our own begin at 1000. A version is raised
only when the meaning of a request changes; fields are added at the end, with a default, within a
version.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    HELLO = 18  # where Kafka has ApiVersions
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_CONFIGS = 44  # Kafka's IncrementalAlterConfigs
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPICS = 75
    PING = 1000
    REPLICA_FETCH = 1001
    REPLICA_PROGRESS = 1002
    PROPOSE = 1003
    BROKER_HEARTBEAT = 1004
    READ_BARRIER = 1005
    FENCE_PRODUCER = 1006
    REPORT_CORRUPTION = 1007
    DESCRIBE_DAMAGE = 1008


class VersionRange(NamedTuple):
    """Versions from `min` to `max`, both included."""

    min: int
    max: int


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: VersionRange(0, 0) for key in ApiKey}
)
# Requests between brokers: refused on the listeners of clients, who could take a broker's place.
CLUSTER_APIS = frozenset(
    {
        ApiKey.REPLICA_FETCH,
        ApiKey.REPLICA_PROGRESS,
        ApiKey.PROPOSE,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.READ_BARRIER,
    }
)
# Never answered, not even with an error: the next report replaces a lost one.
ONE_WAY = frozenset({ApiKey.REPLICA_PROGRESS})
# Answered when the other members have joined or the group's leader has sent its plan, perhaps
# minutes later. They do not count against the in-flight limit of a connection: several members may
# share one, and would keep each other from joining.
PATIENT = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
