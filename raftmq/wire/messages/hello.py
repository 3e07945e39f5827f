"""Hello: the handshake of each connection; cluster id, node id, API versions, features, limits.

The side that connects sends it before anything else (Kafka: ApiVersions). With an empty cluster id
it accepts any cluster; with one, a broker of another cluster refuses it (INCONSISTENT_CLUSTER_ID).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta, field

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

if TYPE_CHECKING:
    from collections.abc import Iterable

API_KEYS_MAX = 1_000
FEATURES_MAX = 64
# Name of a feature -> the highest level of it that this side supports.
Features: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Natural], Meta(max_length=FEATURES_MAX)
]


class ApiVersions(Body, frozen=True):
    """The supported versions of one request, both ends included."""

    api_key: Version
    version_min: Version
    version_max: Version


def versions_of(requests: Iterable[type[Request]]) -> tuple[ApiVersions, ...]:
    """What a broker supports that serves these, by number."""
    found: dict[int, list[int]] = {}
    for api_key, version in sorted((one.api_key, one.version) for one in requests):
        found.setdefault(api_key, []).append(version)
    return tuple(ApiVersions(key, versions[0], versions[-1]) for key, versions in found.items())


class HelloReply(Body, frozen=True):
    """`node_id`: of the answering broker. `frame_bytes_max`: it refuses larger frames."""

    cluster_id: Name
    node_id: BrokerId
    api_versions: Annotated[tuple[ApiVersions, ...], Meta(max_length=API_KEYS_MAX)] = ()
    features: Features = field(default_factory=dict)
    frame_bytes_max: ByteCount = 64 << 20
    listener: Name = ""


class Hello(Request, frozen=True):
    """`node_id` is -1 for a client."""

    api_key = 18
    reply = HelloReply

    cluster_id: Name = ""
    node_id: BrokerIdOrAbsent = ABSENT
    client_id: Name = ""
    software: Name = ""  # name and version of the client, for the broker's logs
    features: Features = field(default_factory=dict)
