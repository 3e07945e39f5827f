"""The first exchange of each connection: who talks, to whom, and what both understand.

The dialler says Hello before anything else. With an empty cluster id it takes whatever cluster it
finds; with one, it is refused by any other (INCONSISTENT_CLUSTER_ID).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, field

from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    Body,
    BrokerId,
    BrokerIdOrAbsent,
    ByteCount,
    Name,
    Natural,
    Request,
    Version,
)

API_KEYS_MAX = 1_000
FEATURES_MAX = 64
# Name of a feature -> the highest level of it that is understood.
Features: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Natural], Meta(max_length=FEATURES_MAX)
]


class ApiVersions(Body, frozen=True):
    """The versions of one request that are understood, both ends included."""

    api_key: Version
    version_min: Version
    version_max: Version


class HelloReply(Body, frozen=True):
    """`node_id` is that of the broker that answers. Nobody may send frames over its limit."""

    cluster_id: Name
    node_id: BrokerId
    api_versions: Annotated[tuple[ApiVersions, ...], Meta(max_length=API_KEYS_MAX)] = ()
    features: Features = field(default_factory=dict)
    frame_bytes_max: ByteCount = 64 << 20
    listener: Name = ""


class Hello(Request, frozen=True):
    """`node_id` is -1 for whoever is no broker."""

    api_key: ClassVar[ApiKey] = ApiKey.HELLO
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = HelloReply

    cluster_id: Name = ""
    node_id: BrokerIdOrAbsent = ABSENT
    client_id: Name = ""
    software: Name = ""  # name and version of the program, for people who look for a culprit
    features: Features = field(default_factory=dict)
