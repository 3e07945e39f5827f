"""What can be asked of a broker: the number of each request, and the versions that we know.

Owns the numbers and who may ask. A number is never given to another meaning. Where the meaning is
Kafka's the number is, too; our own begin at 1000. A version is raised only where the meaning of a
request changes; fields are added at the end, with a default, within a version.
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
    HELLO = 18  # where Kafka has ApiVersions
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    CREATE_PARTITIONS = 37
    ELECT_LEADERS = 43
    ALTER_CONFIGS = 44  # Kafka's IncrementalAlterConfigs
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TOPICS = 75
    PING = 1000
    REPLICA_FETCH = 1001
    REPLICA_PROGRESS = 1002
    PROPOSE = 1003
    BROKER_HEARTBEAT = 1004
    READ_BARRIER = 1005


class VersionRange(NamedTuple):
    """Both ends are known."""

    min: int
    max: int


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType(
    {key: VersionRange(0, 0) for key in ApiKey}
)
# What only brokers ask of each other: refused on the listeners of clients.
CLUSTER_APIS = frozenset(
    {
        ApiKey.REPLICA_FETCH,
        ApiKey.REPLICA_PROGRESS,
        ApiKey.PROPOSE,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.READ_BARRIER,
    }
)
ONE_WAY = frozenset({ApiKey.REPLICA_PROGRESS})  # never answered, not even with an error
