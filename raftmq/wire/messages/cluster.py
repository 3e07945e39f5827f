"""The cluster itself: its brokers, and what they owe the controller."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    BROKERS_MAX,
    TIMEOUT_MS,
    Body,
    BrokerEpoch,
    BrokerId,
    BrokerIdOrAbsent,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    Nothing,
    Number,
    Port,
    Request,
)

COMMAND_BYTES_MAX = 1 << 20  # of a command of the metadata: a header must have room for it
RESULT_BYTES_MAX = 1 << 20
LISTENERS_MAX = 32
VOTERS_MAX = 99
SECONDS_MAX = 1e9
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]


class ListenerAddress(Body, frozen=True):
    listener: Name
    host: Name
    port: Port


class BrokerDescription(Body, frozen=True):
    broker_id: BrokerId
    broker_epoch: NaturalOrAbsent = ABSENT
    listeners: Annotated[tuple[ListenerAddress, ...], Meta(max_length=LISTENERS_MAX)] = ()
    rack: Name | None = None
    is_fenced: bool = False
    in_controlled_shutdown: bool = False
    clock_ahead_ms: Number | None = None  # of a clock that is wrong; None for all others


class VoterAddress(Body, frozen=True):
    """Where a voter listens for the others, and for whoever asks how the quorum is."""

    node_id: BrokerId
    host: Name
    port: Port


class DescribeClusterReply(Body, frozen=True):
    """`voters`: as the settings of the broker that answers have them."""

    cluster_id: Name
    controller_id: BrokerIdOrAbsent = ABSENT
    metadata_version: NaturalOrAbsent = ABSENT
    feature_level: Natural = 0
    brokers: Annotated[tuple[BrokerDescription, ...], Meta(max_length=BROKERS_MAX)] = ()
    voters: Annotated[tuple[VoterAddress, ...], Meta(max_length=VOTERS_MAX)] = ()


class DescribeCluster(Request, frozen=True):
    api_key: ClassVar[ApiKey] = ApiKey.DESCRIBE_CLUSTER
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = DescribeClusterReply


class ProposeReply(Body, frozen=True):
    """The answer to the command, in the metadata's own bytes."""

    result: Annotated[bytes, Meta(max_length=RESULT_BYTES_MAX)]


class Propose(Request, frozen=True):
    """A broker's command for the quorum, in the metadata's own bytes, said to whoever leads it."""

    api_key: ClassVar[ApiKey] = ApiKey.PROPOSE
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = ProposeReply

    command: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS


class WrongClockRow(Body, frozen=True):
    """A broker whose wall clock is not that of the others. Negative: it is behind them."""

    broker_id: BrokerId
    ahead_ms: Number


class BrokerHeartbeatReply(Body, frozen=True):
    """`is_clock_confirmed`: most brokers' clocks agree with the one in the heartbeat.
    `clock_ahead_ms`: what it is ahead of those that are confirmed, if any is.
    """

    is_fenced: bool
    may_shut_down: bool
    is_clock_confirmed: bool = False
    wrong_clocks: Annotated[tuple[WrongClockRow, ...], Meta(max_length=BROKERS_MAX)] = ()
    clock_ahead_ms: Number | None = None


class BrokerHeartbeat(Request, frozen=True):
    """`metadata_version`: what it has applied. `pending_flush_seconds`: age of the oldest flush
    that has not returned, by which a frozen disk is known. `wall_clock_ms`: what time it is there.
    """

    api_key: ClassVar[ApiKey] = ApiKey.BROKER_HEARTBEAT
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = BrokerHeartbeatReply

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    metadata_version: NaturalOrAbsent
    pending_flush_seconds: Seconds = 0.0
    wants_shutdown: bool = False
    wall_clock_ms: Number | None = None


class ReadBarrierReply(Body, frozen=True):
    """Whoever has applied this version knows all that was acknowledged before the question."""

    metadata_version: Natural


class ReadBarrier(Request, frozen=True):
    """How much metadata is there? Said to whoever leads the quorum."""

    api_key: ClassVar[ApiKey] = ApiKey.READ_BARRIER
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = ReadBarrierReply


class Ping(Request, frozen=True):
    """Are you there?"""

    api_key: ClassVar[ApiKey] = ApiKey.PING
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = Nothing
